"""What a Kafka sink was told. Pickles: it travels to the executors inside the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onefold.sinks.kafka.encoding import Encoding
from onefold.sinks.kafka.keyed.ids import Ids
from onefold.sinks.kafka.naming import Names, ledger_topic

__all__ = ["KafkaSinkConfig"]


@dataclass(frozen=True, slots=True)
class KafkaSinkConfig:
    topic: str
    bootstrap_servers: str
    name: str
    delivery: str
    encoding: Encoding
    prefix: str
    ledger: str | None  # the ledger topic, where it is named
    transaction_timeout_s: float
    outage_max_s: float  # what is prepared must live so much longer when the epoch is decided
    timeout_s: float
    client_config: Mapping[str, str] = field(hash=False, repr=False)  # librdkafka's; a password may be among them
    ids: Ids  # of delivery="keyed"
    repartition: bool

    def ledger_topic(self, pipeline: str) -> str:
        return self.ledger or ledger_topic(pipeline)

    def names(self, pipeline: str) -> Names:
        return Names(self.prefix, pipeline, self.name)

    @property
    def cluster(self) -> tuple[str, Mapping[str, str], float]:
        """What a connection to the brokers needs."""
        return self.bootstrap_servers, self.client_config, self.timeout_s

    def where(self, pipeline: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}"
