"""The options of a Kafka sink. They pickle, and travel to the executors inside the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Literal

from onefold.clients.kafka.client_roles import PRODUCER
from onefold.clients.kafka.cluster import cluster
from onefold.clients.options import in_one_form, names_of, options_model
from onefold.core.errors import ConfigError
from onefold.sinks.kafka.encoding import Format, RecordEncoding
from onefold.sinks.kafka.keyed_ids import Ids
from onefold.sinks.kafka.naming import Names, check_prefix, ledger_topic


@options_model
@dataclass(frozen=True)
class KafkaSinkConfig:
    """The options of KafkaSink, whose docstring explains them. A password may be in `client_config`: not for logs."""

    topic: str
    _: KW_ONLY
    bootstrap_servers: str = field(metadata={"option": "kafka.bootstrap.servers"})
    delivery: Literal["transactional", "keyed"] = "transactional"
    name: str = ""
    format: Format = "json"
    key: str | Sequence[str] = ()
    headers: str | Sequence[str] = ()
    transactional_id_prefix: str = "onefold"
    ledger: str | None = None
    transaction_timeout_s: float = 900
    outage_max_s: float | None = None
    timeout_s: float = 30
    client_config: Mapping[str, str] = field(
        default_factory=dict, hash=False, repr=False, metadata={"option": "kafka."}
    )
    id: str | Sequence[str] = ()
    id_header: str | None = None
    repartition: bool = True

    def __post_init__(self) -> None:
        names = {name: names_of(getattr(self, name)) for name in ("key", "headers", "id")}
        in_one_form(self, name=self.name or self.topic, client_config=dict(self.client_config), **names)
        if not self.topic or not isinstance(self.topic, str):
            raise ConfigError("option-value", f"{self.topic!r} is not a topic's name: KafkaSink('orders', ...)")
        self.check_apart(self.ledger)
        if not isinstance(self.bootstrap_servers, str) or not self.bootstrap_servers.strip():
            raise ConfigError("option-missing", "bootstrap_servers is missing: 'localhost:9092'")
        if not self.transaction_timeout_s >= 1 or not 0 < self.outage_s < self.transaction_timeout_s:
            raise ConfigError(
                "option-value",
                f"transaction_timeout_s={self.transaction_timeout_s:g} must be 1 or more, and outage_max_s="
                f"{self.outage_s:g} above 0 and below it",
            )
        if not self.timeout_s > 0:
            raise ConfigError("option-value", f"timeout_s is a time above 0, not {self.timeout_s!r}")
        self.encoding.check_settings()
        check_prefix(self.transactional_id_prefix)
        PRODUCER.check(self.client_config)
        if self.delivery == "keyed":
            self.ids.check_settings(self.encoding)
        elif self.ids != Ids():
            raise ConfigError(
                "options-conflict", "id= and id_header= belong to delivery='keyed': transactions need no ids"
            )
        cluster(*self.cluster)  # security settings that don't fit are best known now

    def check_apart(self, ledger: str | None) -> None:
        """Raise ConfigError for a ledger that is the topic itself."""
        if self.topic == ledger:
            raise ConfigError(
                "ledger-is-target", "ledger names the sink's own book-keeping: it cannot be the topic that it writes to"
            )

    @cached_property
    def encoding(self) -> RecordEncoding:
        return RecordEncoding(self.format, tuple(self.key), tuple(self.headers))

    @cached_property
    def ids(self) -> Ids:
        """Of delivery="keyed"."""
        return Ids(tuple(self.id), self.id_header)

    @property
    def outage_s(self) -> float:
        """How long what is prepared must still live when the epoch is decided."""
        return self.transaction_timeout_s / 3 if self.outage_max_s is None else self.outage_max_s

    def ledger_topic(self, pipeline: str) -> str:
        return self.ledger or ledger_topic(pipeline)

    def names(self, pipeline: str) -> Names:
        return Names(self.transactional_id_prefix, pipeline, self.name)

    @property
    def cluster(self) -> tuple[str, Mapping[str, str], float]:
        """What a connection to the brokers needs."""
        return self.bootstrap_servers, self.client_config, self.timeout_s

    def where(self, pipeline: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}"
