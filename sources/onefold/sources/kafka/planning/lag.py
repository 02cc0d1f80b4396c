"""How far a pipeline is behind its topics, in figures that a daemon can export."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onefold.core.positions import Positions
from onefold.sources.kafka.offsets import OffsetSnapshot
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.source_options import KafkaSourceConfig

if TYPE_CHECKING:
    from onefold.core.protocol.epoch import Outcome


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: the next offset to be written, and what Kafka has of it. All figures are offsets."""

    topic: str
    partition: int
    position: int
    first: int  # the first record that is still there
    stable_end: int  # the end for a reader that sees only what is committed
    log_end: int

    @property
    def behind(self) -> int:
        """What could be read now. Markers and compacted records count."""
        return max(0, self.stable_end - self.position)

    @property
    def held_back(self) -> int:
        """What waits for an open transaction of some producer to end."""
        return max(0, self.log_end - self.stable_end)

    @property
    def headroom(self) -> int:
        """How many more offsets retention may delete before it deletes what was not read; below 0 it has."""
        return self.position - self.first


@dataclass(frozen=True, slots=True)
class LagFigures:
    """All partitions at one time, after that epoch; `epoch` 0 stands for the pipeline's start."""

    epoch: int
    partitions: tuple[PartitionLag, ...]

    @property
    def behind(self) -> int:
        return sum(partition.behind for partition in self.partitions)

    @property
    def held_back(self) -> int:
        return sum(partition.held_back for partition in self.partitions)


class LagMeter:
    """Remembers where the last epoch ended, and asks the broker how far behind that is, whenever it is read.

        meter = LagMeter(source)
        pipeline = Pipeline("orders", sinks=[...], on_outcome=meter)
        ...
        meter.read().behind    # from any thread: an exporter's, a health check's

    `read` raises `Retriable` where the broker doesn't answer within the source's `timeout_s`.
    """

    def __init__(self, source: KafkaSourceConfig) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._last: tuple[int, Positions] | None = None

    def __call__(self, outcome: Outcome) -> None:
        self._last = outcome.record.epoch, outcome.record.range.end

    def read(self) -> LagFigures:
        """The figures now; before the first epoch, from where the source would start."""
        with self._lock:
            if self._broker is None:
                self._broker = self._source.broker()
            if self._last is None:
                start = start_positions.initial(self._broker, self._source.subscription, self._source.starting_text)
                self._last = 0, start.positions()
            epoch, at = self._last
            return LagFigures(epoch, lag(self._source, at, self._broker))

    def close(self) -> None:
        with self._lock:
            self._broker = None


def lag(source: KafkaSourceConfig, at: Positions, broker: Broker | None = None) -> tuple[PartitionLag, ...]:
    """Every partition of the source, held against these positions; one that is not listed there stands at 0.

    Raises `DataLoss` where a topic of these positions is gone.
    """
    broker = broker or source.broker()
    offsets = OffsetSnapshot.of(at).offsets
    topics = source.subscription.find(broker, {topic for topic, _ in offsets})
    partitions = [(topic, number) for topic, found in sorted(topics.items()) for number in found.partitions]
    # The log's end before the stable one: what is written between the two questions is no open transaction's then.
    first, end, stable = broker.earliest(partitions), broker.log_end(partitions), broker.latest(partitions)
    return tuple(PartitionLag(*p, offsets.get(p, 0), first[p], stable[p], end[p]) for p in partitions)
