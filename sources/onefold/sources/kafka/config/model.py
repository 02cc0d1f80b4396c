"""The options of a Kafka source, each said once: its name, type and default, and its name as a Spark option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, get_args

from onefold.clients.kafka import client_roles
from onefold.clients.options import in_one_form, names_of
from onefold.core.errors import ConfigError
from onefold.sources.kafka.fetching.fetched_records import RECORD_BYTES_MAX
from onefold.sources.kafka.formats.record_columns import Choice as Column
from onefold.sources.kafka.native import Choice as CompiledFetch
from onefold.sources.kafka.native import check_choice
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.subscription import Subscription

__all__ = ["FORMATS", "KafkaSourceConfig"]

Format = Literal["raw", "string", "json", "csv", "avro"]
OnError = Literal["fail", "dead_letter", "skip"]

FORMATS: tuple[Format, ...] = get_args(Format)
_RECORD_BYTES_LIMIT = 1 << 30  # an Arrow array of values has 2 GiB


@dataclass(frozen=True)
class KafkaSourceConfig:
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
    on_error: OnError = "fail"
    bad_records_max: int = 1000
    record_bytes_max: int = RECORD_BYTES_MAX
    avro_schema: str | None = None
    avro_written_as: str | None = None
    schema_registry: str | Mapping[str, str] | None = field(
        default=None, metadata={"option": "schema.registry."}, hash=False, repr=False
    )
    csv_delimiter: str = ","
    compiled_fetch: CompiledFetch = "auto"
    topics_pattern: str | None = field(default=None, metadata={"option": "subscribePattern"})
    max_bytes_per_trigger: int | None = None
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
        for name in ("max_offsets_per_trigger", "max_bytes_per_trigger", "max_offsets_per_second"):
            if (value := getattr(self, name)) is not None and not _is_whole(value, 1):
                raise ConfigError("option-value", f"{name} is a whole number from 1, not {value!r}")
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                "option-value", f"on_error is one of {', '.join(get_args(OnError))}, not {self.on_error!r}"
            )
        if not _is_whole(self.bad_records_max, 0):
            raise ConfigError(
                "option-value",
                f"bad_records_max is how many records of an epoch may be bad: 0 or more, not {self.bad_records_max!r}",
            )
        if not _is_whole(self.record_bytes_max, 1) or self.record_bytes_max > _RECORD_BYTES_LIMIT:
            raise ConfigError(
                "option-value",
                f"record_bytes_max is how many bytes a record may have: 1 to {_RECORD_BYTES_LIMIT}, not"
                f" {self.record_bytes_max!r}",
            )
        if self.commit_to_group is not None and not (
            isinstance(self.commit_to_group, str) and self.commit_to_group.strip()
        ):
            raise ConfigError("option-value", f"commit_to_group names a consumer group, not {self.commit_to_group!r}")
        client_roles.check_consumer(self.client_config)
        check_choice(self.compiled_fetch)
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


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
