"""What a user names: topics, where to start, how to parse; and the same as a data source's options."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onefold.clients.exposure import of_kafka, of_registry
from onefold.clients.kafka import consumer_config as client
from onefold.clients.kafka.librdkafka import near
from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.sources.kafka.config import operations
from onefold.sources.kafka.config.deduplication import Deduplication, check_deduplication
from onefold.sources.kafka.config.groups import GroupPositions
from onefold.sources.kafka.config.options import format_options
from onefold.sources.kafka.config.reading_options import NO_STATE, hidden, topics_and_settings
from onefold.sources.kafka.fetching.records import RECORD_BYTES_MAX
from onefold.sources.kafka.formats.formats import FORMATS, INFER, check_format
from onefold.sources.kafka.native import check_choice, described
from onefold.sources.kafka.planning import starting
from onefold.sources.kafka.planning.offsets import Broker
from onefold.sources.kafka.planning.subscription import Subscription

__all__ = ["KafkaSource"]


@dataclass(frozen=True, init=False)
class KafkaSource:
    """Kafka topics, read by position.

        KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long, at timestamp")

    `format="raw"` gives topic, partition, offset, timestamp, key, value, headers; `"json"` and `"csv"` parse values by
    `schema`, a Spark DDL text (of JSON also `"infer"`); `"avro"` reads them as `avro_schema`, the JSON text of an Avro
    schema, where they say what they were written as by an id of `schema_registry` (a URL, or settings of
    confluent-kafka's client), or were written as `avro_written_as`; `"string"` gives them as texts. `columns` adds
    columns to parsed ones: "key", "headers", "timestamp", "position", "topic_id"; `positions=True` is `position`.

    A record that cannot be read so is bad: with `on_error="fail"` it stops the pipeline; with `"dead_letter"` it goes
    to the pipeline's `dead_letters`, with `"skip"` nowhere, and more than `bad_records_max` of an epoch stop it. So is
    one of more than `record_bytes_max` bytes in what is read of it, in every format. See docs/kafka-source.md.

    `starting_offsets`: "earliest", "latest", "ledger" (where the ledger stands; refused without one), a time (the
    first record from then on), or each of these by topic, or by topic and partition,
    `{"orders": {"0": 17, "1": "latest"}, "returns": "2026-11-20T00:00:00Z"}`, with -2 for earliest and -1 for latest.
    `settings` are librdkafka's own (`{"security.protocol": "SSL"}`). `timeout_s` bounds each wait for a broker.
    `compiled_fetch`: "auto" uses the compiled helper where it was built, "off" never, "required" fails without it.

    `topics_pattern`, instead of topics: all that match, also those that come later, from their first record on.
    `forget_topics`: such that were read and are gone for good, which otherwise is a loss.
    `max_bytes_per_trigger`: about so many bytes of keys and values in a batch. `commit_to_group`: a consumer group that
    is told where the pipeline stands, for dashboards; nobody reads it back. `reader="spark"`: a pipeline reads through
    Spark's own connector, whose jars the session must have.
    With `deduplicate=OrderedIds(...)` or `IdsWithin(...)`, `pipeline.read` drops records whose id was seen before.
    """

    topics: tuple[str, ...]
    bootstrap_servers: str
    format: str
    schema: str | None
    starting_offsets: str
    max_offsets_per_trigger: int | None
    settings: Mapping[str, str] = field(hash=False, repr=False)  # passwords are among them
    timeout_s: float
    columns: tuple[str, ...]
    on_error: str
    bad_records_max: int
    record_bytes_max: int
    avro_schema: str | None
    avro_written_as: str | None
    schema_registry: Mapping[str, str] | None = field(hash=False, repr=False)  # and here
    csv_delimiter: str
    compiled_fetch: str
    topics_pattern: str | None
    max_bytes_per_trigger: int | None
    commit_to_group: str | None
    reader: str
    forget_topics: tuple[str, ...]
    deduplicate: Deduplication | None

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str,
        format: str = "raw",
        schema: str | None = None,
        positions: bool = False,
        starting_offsets: starting.StartingOffsets = "earliest",
        max_offsets_per_trigger: int | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        columns: Sequence[str] = (),
        on_error: str = "fail",
        bad_records_max: int = 1000,
        record_bytes_max: int = RECORD_BYTES_MAX,
        avro_schema: str | None = None,
        avro_written_as: str | None = None,
        schema_registry: str | Mapping[str, str] | None = None,
        csv_delimiter: str = ",",
        compiled_fetch: str = "auto",
        topics_pattern: str | None = None,
        max_bytes_per_trigger: int | None = None,
        commit_to_group: str | None = None,
        reader: str = "onefold",
        forget_topics: Sequence[str] = (),
        deduplicate: Deduplication | None = None,
    ) -> None:
        values = {
            "topics": topics,
            "bootstrap_servers": bootstrap_servers,
            "format": format,
            "schema": schema,
            "starting_offsets": starting.text_of(starting_offsets),
            "max_offsets_per_trigger": max_offsets_per_trigger,
            "settings": dict(settings or {}),
            "timeout_s": timeout_s,
            "columns": tuple(dict.fromkeys([*columns, *(["position"] if positions else [])])),
            "on_error": on_error,
            "bad_records_max": bad_records_max,
            "record_bytes_max": record_bytes_max,
            "avro_schema": avro_schema,
            "avro_written_as": avro_written_as,
            "schema_registry": {"url": schema_registry} if isinstance(schema_registry, str) else schema_registry,
            "csv_delimiter": csv_delimiter,
            "compiled_fetch": compiled_fetch,
            "topics_pattern": topics_pattern,
            "max_bytes_per_trigger": max_bytes_per_trigger,
            "commit_to_group": commit_to_group,
            "reader": reader,
            "forget_topics": tuple(forget_topics),
            "deduplicate": deduplicate,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        self.subscription.check()
        if not isinstance(self.bootstrap_servers, str) or not self.bootstrap_servers.strip():
            raise ConfigError("bootstrap_servers (option kafka.bootstrap.servers) is missing: 'localhost:9092'")
        if self.format not in FORMATS:
            raise ConfigError(f"format is one of {', '.join(FORMATS)}, not {self.format!r}{near(self.format, FORMATS)}")
        check_format(self)
        if self.max_offsets_per_trigger is not None and (
            not isinstance(self.max_offsets_per_trigger, int) or self.max_offsets_per_trigger < 1
        ):
            raise ConfigError(f"maxOffsetsPerTrigger is a whole number from 1, not {self.max_offsets_per_trigger!r}")
        if not self.timeout_s > 0:
            raise ConfigError(f"the timeout is a time above 0, not {self.timeout_s!r}")
        client.check(self.settings)
        check_choice(self.compiled_fetch)
        if self.starting_offsets not in starting.KEYWORDS:
            starting.parse("startingOffsets", self.starting_offsets, self.subscription)
        if self.reader == "spark" and "topic_id" in self.columns:
            raise ConfigError(
                "reader='spark' doesn't tell topics apart that had one name: leave out 'topic_id', or reader="
            )
        operations.check(self.reader, self.max_bytes_per_trigger, self.commit_to_group)
        check_deduplication(self.deduplicate)

    @property
    def subscription(self) -> Subscription:
        return Subscription(self.topics, self.topics_pattern, self.forget_topics)

    @property
    def is_settled(self) -> bool:
        """Whether it says what its records are read as: else only the servers know, and may say otherwise tomorrow."""
        return self.schema != INFER and (self.format != "avro" or self.avro_schema is not None)

    def settled_as(self, found: str) -> KafkaSource:
        """The same source with what `find_schema` found."""
        changed = copy.copy(self)
        object.__setattr__(changed, "avro_schema" if self.format == "avro" else "schema", found)
        changed._check()
        return changed

    def with_columns(self, *more: str) -> KafkaSource:
        """The same source with further `columns`."""
        changed = copy.copy(self)
        object.__setattr__(changed, "columns", (*self.columns, *more))
        changed._check()
        return changed

    @property
    def fetching(self) -> str:
        """How this process fetches the records, in words: with the compiled helper, or why without it."""
        return described(self.compiled_fetch)

    def exposure(self) -> str:
        """Why somebody on the network could read or change what its connections carry; empty where none could."""
        registry = "" if self.schema_registry is None else of_registry(str(self.schema_registry.get("url", "")))
        return of_kafka(self.bootstrap_servers, self.settings) or registry

    def broker(self) -> Broker:
        return Broker(self.bootstrap_servers, self.settings, self.timeout_s)

    def initial_positions(self, broker: Broker | None = None) -> Positions:
        """Where a first batch starts, explicit for every partition, as the broker says now.

        "ledger" is the same as "earliest" here: a pipeline replaces it by its ledger's positions, where it has any.
        """
        broker = broker or self.broker()
        spec = "earliest" if self.starting_offsets == "ledger" else self.starting_offsets
        start = starting.parse("startingOffsets", spec, self.subscription)
        return starting.resolve(broker, self.subscription.find(broker), start).positions()

    def group_positions(self) -> GroupPositions | None:
        """What shows a pipeline's positions in the consumer group, if there is to be one."""
        return GroupPositions(self) if self.commit_to_group is not None else None

    def options(self, positions: Positions | None = None) -> dict[str, str]:
        """The options of the data source `onefold_kafka`; with `positions`, it starts there, as frozen.

        Raises ConfigError for a source with `deduplicate` that no pipeline has frozen: the data source cannot do that.
        """
        if self.deduplicate is not None and positions is None:
            raise ConfigError(f"deduplicate= cannot be an option: {NO_STATE}")
        options = {
            **(
                {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": self.topics_pattern or ""}
            ),
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "format": self.format,
            "startingOffsets": self.starting_offsets if positions is None else positions.to_kafka_json(),
            "timeoutMs": str(int(self.timeout_s * 1000)),
        }
        if positions is not None:
            options["frozen"] = "true"
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        options |= operations.options(self, in_pipeline=positions is not None) | format_options(self)
        if self.compiled_fetch != "auto":
            options["compiledFetch"] = self.compiled_fetch
        options |= {f"kafka.{name}": value for name, value in self.settings.items()}
        return {hidden(name): value for name, value in options.items()}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KafkaSource:
        """The source that these data source options describe. Names are matched without regard to case."""
        topics, settings = topics_and_settings(options)
        return cls(*topics, **settings)
