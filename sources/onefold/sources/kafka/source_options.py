"""The options of a Kafka source, each said once: its name, type and default, and its name as a Spark option."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Self, get_args

from onefold.clients.kafka import client_roles
from onefold.clients.option_texts import HIDDEN, from_texts, to_texts
from onefold.clients.options import in_one_form, names_of
from onefold.core.errors import ConfigError
from onefold.sources.formats.record_options import RecordOptions
from onefold.sources.kafka.formats.record_columns import Choice as Column
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.subscription import Subscription
from onefold.sources.native.library import Choice as CompiledFetch
from onefold.sources.native.library import check_choice

Format = Literal["raw", "string", "json", "csv", "avro"]

FORMATS: tuple[Format, ...] = get_args(Format)

# Spark shows options in its plans, but for those whose names say password, secret, token or URL.
_SECRET = re.compile(r"user\.info$|\.pem$|oauthbearer\.config$")

_REFUSED = {
    "failondataloss": "records that Kafka has deleted always fail with DataLoss; to accept a loss, start with a new "
    "pipeline name and explicit startingOffsets",
    "assign": "name the topics in subscribe; every partition is read",
    "includeheaders": "format=raw always has headers, the others with columns='headers'",
    "startingoffsetsbytimestampstrategy": "a partition with no record from that time on starts at its end",
    "kafka.group.id": "positions are kept in the checkpoint, no consumer group is joined; to show them in one, give "
    "commitToGroup",
}
# Of the data source alone: they say what one query reads, and not what the source is.
_OF_A_QUERY = ("endingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


@dataclass(frozen=True)
class KafkaSourceConfig(RecordOptions):
    """What planners, readers and parsers of a Kafka source take. `KafkaSource` describes the options.

    The fields hold what was given in one form: tuples of names, texts, and mappings. `clients/option_texts.py` says how
    they are options of Spark's. Passwords may be in the mappings, so no `repr` shows them.
    """

    topics: str | Sequence[str] = field(default=(), metadata={"option": "subscribe"})
    _: KW_ONLY
    bootstrap_servers: str = field(metadata={"option": "kafka.bootstrap.servers"})
    format: Format = "raw"
    schema: str | None = None
    starting_offsets: start_positions.StartingOffsets = "earliest"
    max_offsets_per_trigger: int | None = None
    client_config: Mapping[str, str] = field(
        default_factory=dict, hash=False, repr=False, metadata={"option": "kafka."}
    )
    timeout_s: float = field(default=60.0, metadata={"option": "timeoutMs"})
    columns: Column | Sequence[Column] = ()
    avro_schema: str | None = None
    avro_written_as: str | None = None
    schema_registry: str | Mapping[str, str] | None = field(
        default=None, metadata={"option": "schema.registry."}, hash=False, repr=False
    )
    compiled_fetch: CompiledFetch = "auto"
    topics_pattern: str | None = field(default=None, metadata={"option": "subscribePattern"})
    max_offsets_per_second: int | None = None
    commit_to_group: str | None = None
    forget_topics: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        registry = self.schema_registry
        in_one_form(
            self,
            topics=names_of(self.topics),
            columns=tuple(dict.fromkeys(names_of(self.columns))),
            forget_topics=names_of(self.forget_topics),
            starting_offsets=start_positions.text_of(self.starting_offsets),
            client_config=dict(self.client_config),
            schema_registry={"url": registry} if isinstance(registry, str) else registry,
        )
        self._check()

    def _check(self) -> None:
        """Raise `ConfigError` for a value that makes no sense whatever the format is. Asks no server."""
        self.subscription.check()
        if not isinstance(self.bootstrap_servers, str) or not self.bootstrap_servers.strip():
            raise ConfigError("option-missing", "bootstrap_servers is missing: 'localhost:9092'")
        if not self.timeout_s > 0:
            raise ConfigError("option-value", f"timeout_s is a time above 0, not {self.timeout_s!r}")
        self.check_records("max_offsets_per_trigger", "max_offsets_per_second")
        if self.commit_to_group is not None and not (
            isinstance(self.commit_to_group, str) and self.commit_to_group.strip()
        ):
            raise ConfigError("option-value", f"commit_to_group names a consumer group, not {self.commit_to_group!r}")
        client_roles.check_consumer(self.client_config)
        check_choice(self.compiled_fetch, "compiled_fetch")
        if self.starting_text not in start_positions.KEYWORDS:
            start_positions.parse("starting_offsets", self.starting_text, self.subscription)

    @property
    def subscription(self) -> Subscription:
        return Subscription(tuple(self.topics), self.topics_pattern, tuple(self.forget_topics))

    @property
    def starting_text(self) -> str:
        """`starting_offsets` as a word, a time, or JSON."""
        return start_positions.text_of(self.starting_offsets)

    @property
    def registry(self) -> Mapping[str, str] | None:
        """The settings of the schema registry's client."""
        assert not isinstance(self.schema_registry, str), "it is in one form"
        return self.schema_registry

    def broker(self) -> Broker:
        """A new connection for questions to the brokers."""
        return Broker(self.bootstrap_servers, self.client_config, self.timeout_s)

    def options(self) -> dict[str, str]:
        """The options of the data source `onefold_kafka`: what differs from the defaults."""
        return {f"{HIDDEN}{name}" if _SECRET.search(name) else name: text for name, text in to_texts(self).items()}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The source that these data source options describe. Names are matched without regard to case.

        Raises ConfigError for options that are none, and for values that make no sense.
        """
        found = from_texts("onefold_kafka", options, KafkaSourceConfig, refused=_REFUSED, beside=_OF_A_QUERY)
        if "topics" not in found and "topics_pattern" not in found:
            raise ConfigError(
                "option-missing",
                "the option 'subscribe' is missing: name the topics, comma-separated; or subscribePattern",
            )
        starting_offsets = start_positions.of_options({name.lower(): text for name, text in options.items()})
        return cls(**{"bootstrap_servers": "", **found, "starting_offsets": starting_offsets})
