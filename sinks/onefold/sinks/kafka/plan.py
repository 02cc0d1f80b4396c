"""What a Kafka sink was told. Pickles: it travels to the executors inside the sink."""

from __future__ import annotations

from dataclasses import dataclass, field

from onefold.sinks.kafka.encoding import Encoding
from onefold.sinks.kafka.keyed.ids import Ids
from onefold.sinks.kafka.naming import Names, progress_topic

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    topic: str
    bootstrap_servers: str
    name: str
    mode: str
    encoding: Encoding
    prefix: str
    progress: str | None  # the progress topic, where it is named
    transaction_timeout_s: float
    outage_max_s: float  # what is prepared must live so much longer when the epoch is decided
    timeout_s: float
    client: tuple[tuple[str, str], ...] = field(repr=False)  # librdkafka's, sorted; a password may be among them
    ids: Ids  # of mode="keyed"
    repartition: bool

    def progress_topic(self, pipeline: str) -> str:
        return self.progress or progress_topic(pipeline)

    def names(self, pipeline: str) -> Names:
        return Names(self.prefix, pipeline, self.name)

    @property
    def librdkafka(self) -> dict[str, str]:
        return dict(self.client)

    @property
    def cluster(self) -> tuple[str, dict[str, str], float]:
        """What a connection to the brokers needs."""
        return self.bootstrap_servers, self.librdkafka, self.timeout_s

    def where(self, pipeline: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}"
