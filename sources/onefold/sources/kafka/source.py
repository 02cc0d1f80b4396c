"""KafkaSource: what a user names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import pyarrow as pa

from onefold.clients.exposure import of_kafka, of_registry
from onefold.clients.options import options_model
from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.core.source import BoundedSource, Journal, Keep, Part, RecordColumns, Split
from onefold.sources.kafka.fetching.compiled_fetch import described
from onefold.sources.kafka.formats.dispatch import INFER, check_format, record_schema
from onefold.sources.kafka.formats.inferring import find_schema
from onefold.sources.kafka.formats.record_columns import Choice, places_of
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.offset_planner import KafkaSourcePlanner
from onefold.sources.kafka.range_reader import read_parts
from onefold.sources.kafka.source_options import KafkaSourceConfig


@options_model
class KafkaSource(KafkaSourceConfig):
    """Kafka topics, read by position.

        KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long, at timestamp")

    `format="raw"` gives topic, partition, offset, timestamp, key, value, headers; `"json"` and `"csv"` parse values by
    `schema`, a Spark DDL text (of JSON also `"infer"`); `"avro"` reads them as `avro_schema`, the JSON text of an Avro
    schema, where they say what they were written as by an id of `schema_registry` (a URL, or settings of
    confluent-kafka's client), or were written as `avro_written_as`; `"string"` gives them as texts. `columns` adds
    columns to parsed ones: "key", "headers", "timestamp", "position", "topic_id", "value".

    A record that cannot be read so is bad: with `on_error="fail"` it stops the pipeline; with `"dead_letter"` it goes
    to the pipeline's `dead_letters`, with `"skip"` nowhere, and more than `bad_records_max` of an epoch stop it. So is
    one of more than `record_bytes_max` bytes in what is read of it, in every format. See docs/kafka-source.md.

    `starting_offsets`: "earliest", "latest", "ledger" (where the ledger stands; refused without one), a time (the
    first record from then on), or each of these by topic, or by topic and partition,
    `{"orders": {"0": 17, "1": "latest"}, "returns": "2026-11-20T00:00:00Z"}`, with -2 for earliest and -1 for latest.
    `client_config` has librdkafka's own settings (`{"security.protocol": "SSL"}`). `timeout_s` bounds each wait for a
    broker.
    `compiled_fetch`: "auto" uses the compiled helper where it was built, "off" never, "required" fails without it.

    `topics` is one name or several. `topics_pattern`, instead of them: all that match, also those that come later,
    from their first record on. `forget_topics`: such that were read and are gone for good, which otherwise is a loss.
    `max_bytes_per_trigger`: about so many bytes of keys and values in a batch. `max_offsets_per_second`: a stream is
    held back to so many. `commit_to_group`: a consumer group that is told the pipeline's positions, for dashboards;
    nothing reads them back.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_format(self)

    @property
    def name(self) -> str:
        """The topics' names, or the pattern of them."""
        return ",".join(sorted(self.topics)) or str(self.topics_pattern)

    def covers(self, name: str) -> bool:
        return self.reads(name) or name.rpartition("/")[0] in self.forget_topics

    def reads(self, name: str) -> bool:
        return self.subscription.covers(name.rpartition("/")[0])

    def resolved(self, keep: Keep) -> Self:
        """The same source with the schema that was found first, where it names none."""
        if self.has_schema:
            return self
        return self.with_schema(keep(f"{self.format} schema of {self.name}"[:100], lambda: find_schema(self)))

    def arrow_schema(self) -> pa.Schema:
        """The columns of its records, the same as Spark gives them. Raises ConfigError where the schema is open, and
        for columns that the format cannot be parsed to."""
        if not self.has_schema:
            raise ConfigError(
                "schema-not-resolved",
                f"the source {self.name!r} has no schema yet: `resolved` asks the servers for it, or give it one",
            )
        return record_schema(self)

    def record_columns(self) -> RecordColumns:
        """Of the raw format all; of the others those that `columns` adds."""
        place = places_of(self.format, self.columns)
        if self.format == "raw":
            return RecordColumns(place, "key", "headers")
        key, headers = (f"kafka_{each}" if each in self.columns else None for each in ("key", "headers"))
        return RecordColumns(place, key, headers)

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> KafkaSourcePlanner:
        del journal  # its positions are one number a partition
        return KafkaSourcePlanner(self, frozen, until)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        return read_parts(self, self.arrow_schema(), split.range, guarded=guarded)

    def bounded(self) -> BoundedSource:
        """The same source up to where it ends at a flow's first start; partitions that come later are not read."""
        return BoundedSource(self)

    def added(self, known: Positions) -> Positions:
        """Where topics begin that are named, and were added later; of a pattern, where all do. Others that a pattern
        matches later are read from their first record on."""
        begun = {topic for topic in known.topics() if self.subscription.covers(topic)}
        if begun and self.topics_pattern is not None:
            return Positions()
        named = [topic for topic in self.topics if topic not in begun]
        if begun and not named:
            return Positions()
        broker = self.broker()
        return start_positions.initial(broker, self.subscription, self.starting_text, without=begun).positions()

    @property
    def has_schema(self) -> bool:
        """Whether its schema is known. If not, `find_schema` asks the servers, whose answer may change."""
        return self.schema != INFER and (self.format != "avro" or self.avro_schema is not None)

    def with_schema(self, found: str) -> Self:
        """The same source with what `find_schema` found."""
        return replace(self, avro_schema=found) if self.format == "avro" else replace(self, schema=found)

    def with_columns(self, *more: Choice) -> Self:
        """The same source with further `columns`."""
        return replace(self, columns=(*self.columns, *more))

    @property
    def fetching(self) -> str:
        """How this process fetches the records, in words: with the compiled helper, or why without it."""
        return described(self.compiled_fetch)

    def exposure(self) -> str:
        """Why others on the network could read or change what its connections carry; empty if they cannot."""
        registry = "" if self.registry is None else of_registry(str(self.registry.get("url", "")))
        return of_kafka(self.bootstrap_servers, self.client_config) or registry

    def initial_positions(self, broker: Broker | None = None) -> Positions:
        """Where a first batch starts, explicit for every partition, as the broker says now.

        "ledger" is the same as "earliest" here: a pipeline replaces it by its ledger's positions, where it has any.
        """
        return start_positions.initial(broker or self.broker(), self.subscription, self.starting_text).positions()
