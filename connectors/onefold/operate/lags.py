"""How far a pipeline is behind each of its sources, asked beside the driver that reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from onefold.core import OnefoldError
from onefold.core.positions import Positions
from onefold.core.source import BoundedSource, Journal, Source, SourcePlanner, own_positions
from onefold.core.values.plain import counted
from onefold.pipeline import Pipeline
from onefold.store.history import History

if TYPE_CHECKING:  # with Kafka's client, which need not be there
    from onefold.sources import KafkaSource
    from onefold.sources.kafka.planning.broker import Broker


@dataclass(frozen=True, slots=True)
class Lag:
    """Of one partition, as positions name it. `headroom`: as many more offsets may retention delete before one is lost
    that was not read; None where that is no question."""

    source: str
    unit: str  # what `behind` counts: "record", "file", ...
    partition: str
    behind: int
    headroom: int | None = None


def in_all(lags: Iterable[Lag]) -> dict[str, int]:
    """How much it is together, by what is counted."""
    found = Counter[str]()
    for each in lags:
        found[each.unit] += each.behind
    return found


def lag_after(pipeline: Pipeline, positions: Positions, within_s: float = 10) -> str:
    """For people: how much its sources have beyond these positions, or why that is not known."""
    history = History(pipeline.store_url, within_s)
    lags = Lags(pipeline, partial(history.journal, pipeline.name), within_s)
    with closing(history), closing(lags):
        try:
            return ", ".join(counted(count, unit) for unit, count in in_all(lags(positions)).items())
        except OnefoldError as error:
            return f"not known: {error}"


class Lags:
    """Keeps what it has open at the sources' servers from one question to the next, but not after one that failed. The
    brokers of a topic get `within_s` seconds to answer, other servers as long as their source says."""

    def __init__(self, pipeline: Pipeline, journal: Callable[[str], Journal], within_s: float) -> None:
        self._pipeline, self._journal, self._within_s = pipeline, journal, within_s
        self._brokers: dict[str, Broker] = {}
        self._planners: dict[str, SourcePlanner] = {}

    def __call__(self, positions: Positions) -> tuple[Lag, ...]:
        """From these positions on. Raises what a source's planner raises."""
        return tuple(lag for source in self._pipeline.flow.sources() for lag in self.of(source, positions))

    def of(self, source: Source, positions: Positions) -> Iterator[Lag]:
        self._pipeline.check_positions()
        own = own_positions(source, positions)
        topic = next((each for each in self._pipeline.topics if each.name == source.name), None)
        yield from self._planned(source, own) if topic is None else self._of_topic(topic, own)

    def close(self) -> None:
        while self._planners:
            self._planners.popitem()[1].close()

    def _of_topic(self, source: KafkaSource, at: Positions) -> Iterator[Lag]:
        from onefold.sources.kafka.planning.lag import lag

        broker = self._brokers.pop(source.name, None) or source.broker()
        broker.timeout_s = min(broker.timeout_s, self._within_s)
        for each in lag(source, at, broker):
            yield Lag(source.name, "record", f"{each.topic}/{each.partition}", each.behind, each.headroom)
        self._brokers[source.name] = broker

    def _planned(self, source: Source, at: Positions) -> Iterator[Lag]:
        unsettled: list[str] = []

        def keep(name: str, find: Callable[[], str]) -> str:
            def finds() -> str:
                unsettled.append(name)
                return find()

            return self._pipeline.found_first(name, finds)

        planner = self._planners.pop(source.name, None)
        if planner is None:
            if isinstance(source, BoundedSource):
                source = source.resolved(keep)  # with its end
            planner = source.planner(at, None, self._journal(source.name))
        try:
            behind = planner.behind(at)
        except BaseException:
            planner.close()
            raise
        if unsettled:  # its first start may find another end
            planner.close()
        else:
            self._planners[source.name] = planner
        for partition, count in behind.items():
            yield Lag(source.name, planner.unit, partition, count)
