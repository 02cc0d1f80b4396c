"""Ways to break unaligned barriers, each of which the simulator must notice."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from onefold.core.source import Part
from onefold.engine.dataflow.chains import Exchange
from onefold.engine.dataflow.inbound import Inbound
from onefold.engine.dataflow.items import Acknowledge, Barrier, Flight, Item
from onefold.engine.dataflow.overtaking import Unaligned, UnalignedInTime
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.testing.flow_jobs import IN_TIME, OVERTAKING, RULES
from onefold.engine.testing.model_fleet import FleetSubject
from onefold.engine.testing.model_state import ModelBackend, ModelSnapshots
from onefold.engine.workers.flights import share
from onefold.flow.graph.nodes import Shipping
from onefold.flow.time.clocks import NO_TIMES


class _NotedTwice(Unaligned):
    """Has the batch in its flight that was taken last, before the state was frozen."""

    _taken: tuple[int, pa.RecordBatch | Part] | None = None

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        taken = super().take()
        self._taken = taken or self._taken
        return taken

    def _overtaken(self, late: Collection[int]) -> Flight:
        flight = super()._overtaken(late)
        if self._taken is not None and isinstance(self._taken[1], pa.RecordBatch):
            flight.add(*self._taken, self._run)
        return flight


class _ReplayedLast(Unaligned):
    """Takes what is new in an epoch before what was restored."""

    @property
    def barrier(self) -> Barrier | None:
        return None if self.restored else super().barrier

    @property
    def has_ready(self) -> bool:
        restored, self.restored = self.restored, deque()
        is_ready = super().has_ready or (bool(restored) and super().barrier is not None)
        self.restored = restored
        return is_ready

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        restored, self.restored = self.restored, deque()
        taken = super().take()
        self.restored = restored
        return taken or (restored.popleft() if restored and super().barrier is not None else None)


class _OneShort(Unaligned):
    """Takes a flight for whole one batch too early."""

    def put(self, channel: int, item: Item) -> None:
        flight = self._flight
        is_open = flight is not None and channel in flight.open
        super().put(channel, item)
        mine = [at for at, each in enumerate(flight.batches) if each[0] == channel] if flight is not None else []
        if flight is not None and is_open and isinstance(item, Barrier) and mine:
            del flight.batches[mine[-1]]


class _NotWhole(Subtask):
    """Acknowledges an epoch, and stores its flight, while channels have still to deliver what belongs to it."""

    def acknowledged(self) -> Acknowledge | None:
        if self._flight is not None:
            self._flight[1].open.clear()
        return super().acknowledged()


class _BroadcastOvertaken(Unaligned):
    """Does not align broadcast rows, whose flight each subtask has."""

    @property
    def overtakes(self) -> bool:
        self._aligned = ()
        return super().overtakes


class _DroppedCounts(Unaligned):
    """Takes a barrier that was overtaken for the next run's."""

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        item = Inbound._pop(self, channel)
        return Barrier(self._run) if isinstance(item, Barrier) else item


class _NotInTime(UnalignedInTime):
    """Has the operators advance with the snapshot, by what has come of event time, before what was overtaken."""

    @property
    def ended(self) -> int | None:
        return self._at if self._at < self._run else None

    def go_on(self) -> None:
        if self.ended is not None:
            for queue in (queue for queue in self._queues if Barrier(self._at) in queue):
                queue.remove(Barrier(self._at))
            self._at_barrier = {*range(len(self._queues))}
        super().go_on()


class _AnyClocks(ModelBackend):
    """Restores the clocks of any subtask."""

    def is_own(self, groups: Collection[int]) -> bool:
        del groups
        return True


def _to_all(exchange: Exchange, batches: Iterable[pa.RecordBatch], *_: int) -> Iterable[pa.RecordBatch]:
    del exchange
    return batches


def _broadcast_to_all(exchange: Exchange, batches: Iterable[pa.RecordBatch], *of: int) -> Iterable[pa.RecordBatch]:
    index, parallelism, max_parallelism = of
    is_broadcast = exchange.edge.shipping is Shipping.BROADCAST
    return batches if is_broadcast else share(exchange, batches, index, parallelism, max_parallelism)


def _also_given_up(snapshots: ModelSnapshots, decided: Sequence[str]) -> Sequence[str]:
    return [*decided, *(handle for handle in snapshots.flights if handle not in snapshots.sink.committed)]


# By the job that shows them.
OF_OVERTAKING = {
    "what barriers have overtaken is left out": (FleetSubject(share=lambda *_: ()), OVERTAKING),
    "a batch is taken before the state is frozen, and in flight, too": (
        FleetSubject(unaligned=_NotedTwice),
        OVERTAKING,
    ),
    "what was in flight comes behind what is new": (FleetSubject(unaligned=_ReplayedLast), OVERTAKING),
    "each subtask takes all that was in flight": (FleetSubject(share=_to_all), OVERTAKING),
    "a flight ends one batch too early": (FleetSubject(unaligned=_OneShort), OVERTAKING),
    "an epoch is acknowledged before its flight is whole": (FleetSubject(subtask=_NotWhole), OVERTAKING),
    "barriers overtake broadcast rows": (
        FleetSubject(unaligned=_BroadcastOvertaken, share=_broadcast_to_all),
        RULES,
    ),
    "a barrier that was overtaken counts as the next one": (FleetSubject(unaligned=_DroppedCounts), OVERTAKING),
    "what was said of event time is not in flight": (
        FleetSubject(replayed=lambda epoch: replace(epoch, times=NO_TIMES)),
        IN_TIME,
    ),
    "event time goes on before what was overtaken": (FleetSubject(in_time=_NotInTime), IN_TIME),
    "the clocks of another subtask are restored": (FleetSubject(backend=_AnyClocks), IN_TIME),
    "what was in flight in an epoch that was given up is restored": (
        FleetSubject(flights=_also_given_up),
        OVERTAKING,
    ),
}
