"""What a user names: topics, where to start, how to parse; and the same as a data source's options."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.sources.kafka import settings as client
from onefold.sources.kafka.deduplication import Deduplication, check_deduplication
from onefold.sources.kafka.formats import FORMATS, INFER, check_format
from onefold.sources.kafka.native import check_choice, described
from onefold.sources.kafka.offsets import Broker
from onefold.sources.kafka.options import FORMAT_OPTIONS, format_options, format_settings

__all__ = ["KafkaSource", "parse_offsets"]

_OPTIONS = {
    "subscribe",
    "format",
    "positions",
    "startingOffsets",
    "endingOffsets",
    "frozen",
    "maxOffsetsPerTrigger",
    "timeoutMs",
    "direct",
    *FORMAT_OPTIONS,
    "compiledFetch",
}
_REFUSED_OPTIONS = {
    "failondataloss": "records that Kafka has deleted always fail with DataLoss; to accept a loss, start with a new "
    "pipeline name and explicit startingOffsets",
    "subscribepattern": "name the topics, comma-separated, in subscribe",
    "assign": "name the topics in subscribe; every partition is read",
    "includeheaders": "format=raw always has headers, the others with columns='headers'",
    "startingoffsetsbytimestamp": "give startingOffsets as JSON",
    "startingtimestamp": "give startingOffsets as JSON",
    "deduplicate": "a data source has no state: use pipeline.read(spark, KafkaSource(..., deduplicate=...)), or "
    "onefold.spark.deduplicate(df, ...)",
    "kafka.group.id": "positions are kept in the checkpoint, no consumer group is joined",
}

Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True, init=False)
class KafkaSource:
    """Kafka topics, read by position.

        KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long, at timestamp")

    `format="raw"` gives topic, partition, offset, timestamp, key, value, headers; `"json"` and `"csv"` parse values by
    `schema`, a Spark DDL text (of JSON also `"infer"`); `"avro"` reads them as `avro_schema`, the JSON text of an Avro
    schema, where they say what they were written as by an id of `schema_registry` (a URL, or settings of
    confluent-kafka's client), or were written as `avro_written_as`; `"string"` gives them as texts. `columns` adds
    columns to parsed ones: "key", "headers", "timestamp", "position"; `positions=True` is the last of these.

    A record that cannot be read so is bad: with `on_error="fail"` it stops the pipeline; with `"dead_letter"` it goes
    to the pipeline's `dead_letters`, with `"skip"` nowhere, and more than `bad_records_max` of an epoch stop it. See
    docs/kafka-source.md.

    `starting_offsets`: "earliest", "latest", "ledger" (where the ledger stands; earliest
    without one), or offsets by topic and partition, `{"orders": {"0": 17}}`, with -2 for earliest and -1 for latest.
    `settings` are librdkafka's own (`{"security.protocol": "SSL"}`). `timeout_s` bounds each wait for a broker.
    `compiled_fetch`: "auto" uses the compiled helper where it was built, "off" never, "required" fails without it.
    With `deduplicate=OrderedIds(...)` or `IdsWithin(...)`, `pipeline.read` drops records whose id was seen before.
    """

    topics: tuple[str, ...]
    bootstrap_servers: str
    format: str
    schema: str | None
    starting_offsets: str
    max_offsets_per_trigger: int | None
    settings: Mapping[str, str] = field(hash=False)
    timeout_s: float
    columns: tuple[str, ...]
    on_error: str
    bad_records_max: int
    avro_schema: str | None
    avro_written_as: str | None
    schema_registry: Mapping[str, str] | None = field(hash=False)
    csv_delimiter: str
    compiled_fetch: str
    deduplicate: Deduplication | None

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str,
        format: str = "raw",
        schema: str | None = None,
        positions: bool = False,
        starting_offsets: str | Mapping[str, Mapping[str, int]] = "earliest",
        max_offsets_per_trigger: int | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        columns: Sequence[str] = (),
        on_error: str = "fail",
        bad_records_max: int = 1000,
        avro_schema: str | None = None,
        avro_written_as: str | None = None,
        schema_registry: str | Mapping[str, str] | None = None,
        csv_delimiter: str = ",",
        compiled_fetch: str = "auto",
        deduplicate: Deduplication | None = None,
    ) -> None:
        starting = starting_offsets if isinstance(starting_offsets, str) else json.dumps(starting_offsets)
        values = {
            "topics": topics,
            "bootstrap_servers": bootstrap_servers,
            "format": format,
            "schema": schema,
            "starting_offsets": starting,
            "max_offsets_per_trigger": max_offsets_per_trigger,
            "settings": dict(settings or {}),
            "timeout_s": timeout_s,
            "columns": tuple(dict.fromkeys([*columns, *(["position"] if positions else [])])),
            "on_error": on_error,
            "bad_records_max": bad_records_max,
            "avro_schema": avro_schema,
            "avro_written_as": avro_written_as,
            "schema_registry": {"url": schema_registry} if isinstance(schema_registry, str) else schema_registry,
            "csv_delimiter": csv_delimiter,
            "compiled_fetch": compiled_fetch,
            "deduplicate": deduplicate,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if not self.topics or not all(isinstance(t, str) and t.strip() for t in self.topics):
            raise ConfigError(f"name at least one topic, not {self.topics!r}: KafkaSource('orders', ...)")
        if bad := [t for t in self.topics if "," in t or "/" in t or t != t.strip()]:
            raise ConfigError(f"{bad[0]!r} is not a topic's name: give several topics as several arguments")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError(f"a topic is named twice: {', '.join(self.topics)}")
        if not isinstance(self.bootstrap_servers, str) or not self.bootstrap_servers.strip():
            raise ConfigError("bootstrap_servers (option kafka.bootstrap.servers) is missing: 'localhost:9092'")
        if self.format not in FORMATS:
            raise ConfigError(
                f"format is one of {', '.join(FORMATS)}, not {self.format!r}{_near(self.format, FORMATS)}"
            )
        check_format(self)
        if self.max_offsets_per_trigger is not None and (
            not isinstance(self.max_offsets_per_trigger, int) or self.max_offsets_per_trigger < 1
        ):
            raise ConfigError(f"maxOffsetsPerTrigger is a whole number from 1, not {self.max_offsets_per_trigger!r}")
        if not self.timeout_s > 0:
            raise ConfigError(f"the timeout is a time above 0, not {self.timeout_s!r}")
        client.check(self.settings)
        check_choice(self.compiled_fetch)
        check_deduplication(self.deduplicate)
        if self.starting_offsets not in ("earliest", "latest", "ledger"):
            parse_offsets("startingOffsets", self.starting_offsets, self.topics)

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

    def broker(self) -> Broker:
        return Broker(self.bootstrap_servers, self.settings, self.timeout_s)

    def initial_positions(self, broker: Broker | None = None) -> Positions:
        """Where a first batch starts, explicit for every partition, as the broker says now.

        "ledger" is the same as "earliest" here: a pipeline replaces it by its ledger's positions, where it has any.
        """
        broker = broker or self.broker()
        spec = self.starting_offsets
        if spec in ("earliest", "latest", "ledger"):
            return broker.resolve(self.topics, "latest" if spec == "latest" else "earliest")
        return broker.resolve(self.topics, parse_offsets("startingOffsets", spec, self.topics))

    def options(self, positions: Positions | None = None) -> dict[str, str]:
        """The options of the data source `onefold_kafka`; with `positions`, it starts there, as frozen."""
        options = {
            "subscribe": ",".join(self.topics),
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "format": self.format,
            "startingOffsets": self.starting_offsets if positions is None else positions.to_kafka_json(),
            "timeoutMs": str(int(self.timeout_s * 1000)),
        }
        if positions is not None:
            options["frozen"] = "true"
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        options |= format_options(self)
        if self.compiled_fetch != "auto":
            options["compiledFetch"] = self.compiled_fetch
        return options | {f"kafka.{name}": value for name, value in self.settings.items()}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KafkaSource:
        """The source that these data source options describe. Names are matched without regard to case."""
        known = {name.lower(): name for name in _OPTIONS}
        given: dict[str, str] = {}
        settings: dict[str, str] = {}
        registry: dict[str, str] = {}
        for key, value in options.items():
            name = key.lower()
            if name in _REFUSED_OPTIONS:
                raise ConfigError(f"the option {key!r} cannot be given: {_REFUSED_OPTIONS[name]}")
            if name.startswith("kafka."):
                settings[name.removeprefix("kafka.")] = value
            elif name.startswith("schema.registry."):
                registry[name.removeprefix("schema.registry.")] = value
            elif name in known:
                given[known[name]] = value
            else:
                hint = _near(name, known) or f"; known are {', '.join(sorted(_OPTIONS))} and kafka.*"
                for lower, proper in known.items():
                    hint = hint.replace(f"{lower!r}", f"{proper!r}")
                raise ConfigError(f"onefold_kafka has no option {key!r}{hint}")
        if "subscribe" not in given:
            raise ConfigError("the option 'subscribe' is missing: name the topics, comma-separated")
        return cls(
            *[topic.strip() for topic in given["subscribe"].split(",")],
            bootstrap_servers=settings.pop("bootstrap.servers", ""),
            format=given.get("format", "raw").lower(),
            positions=_flag("positions", given.get("positions", "false")),
            starting_offsets=_keyword(given.get("startingOffsets", "earliest")),
            max_offsets_per_trigger=_whole("maxOffsetsPerTrigger", given.get("maxOffsetsPerTrigger")),
            settings=settings,
            timeout_s=(_whole("timeoutMs", given.get("timeoutMs")) or 60_000) / 1000,
            schema_registry=registry or None,
            **format_settings(given),
            compiled_fetch=given.get("compiledFetch", "auto").strip().lower(),
        )


def parse_offsets(name: str, text: str, topics: tuple[str, ...]) -> Offsets:
    """Offsets by topic and partition out of JSON; raises `ConfigError` with what is wrong."""
    form = f'{name} is earliest, latest, or JSON such as {{"{topics[0]}": {{"0": 17, "1": -2}}}}'
    try:
        value = json.loads(text)
    except ValueError as error:
        words = ("earliest", "latest", "ledger")
        raise ConfigError(f"{form}, not {text!r} ({error}){_near(text, words)}") from None
    if not isinstance(value, dict) or not all(isinstance(by, dict) for by in value.values()):
        raise ConfigError(f"{form}, not {text!r}")
    for topic, by in value.items():
        if topic not in topics:
            raise ConfigError(f"{name} names the topic {topic!r}, which is not subscribed to{_near(topic, topics)}")
        for partition, offset in by.items():
            if not partition.isdigit():
                raise ConfigError(f'{name}: {topic}/{partition}: a partition is a number such as "0"')
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < -2:
                raise ConfigError(
                    f"{name}: {topic}/{partition}: an offset is a whole number from 0, or -1 for the latest, or -2 for "
                    f"the earliest, not {offset!r}"
                )
    return value


def _keyword(text: str) -> str:
    return text.strip().lower() if text.strip().lower() in ("earliest", "latest", "ledger") else text


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is a whole number, not {text!r}") from None


def _near(name: str, known: Mapping[str, str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
