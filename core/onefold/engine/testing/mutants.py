"""Ways to break the engine, each of which the simulator must notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from onefold.core.contract import SinkKind
from onefold.core.source import Part
from onefold.engine.dataflow.inbound import Inbound
from onefold.engine.dataflow.items import Acknowledge, Barrier, Effect, Item
from onefold.engine.dataflow.subtask import Phase, Subtask
from onefold.engine.logics.logic import Output
from onefold.engine.logics.processing import ProcessingLogic
from onefold.engine.logics.windows.block_log import BlockLog
from onefold.engine.logics.windows.contents import Agenda
from onefold.engine.logics.windows.elements import ElementsLogic
from onefold.engine.logics.windows.emitting import ON_TIME
from onefold.engine.logics.windows.sessions import SessionLogic
from onefold.engine.logics.windows.slicing import SlicingLogic
from onefold.engine.logics.windows.span_log import SpanLog
from onefold.engine.logics.windows.spans import joined
from onefold.engine.logics.windows.window_logic import WindowLogic
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, JOBS
from onefold.engine.testing.model_fleet import FleetSubject
from onefold.engine.testing.model_state import ModelBackend, ModelBlocks
from onefold.flow.time.clocks import END as TIME_END
from onefold.flow.time.clocks import Clocks, Times


class _FrozenLate(Subtask):
    """Sends the barrier on, and takes a batch of the next epoch before it freezes the state."""

    def step(self) -> Iterator[Effect]:
        match self.phase:
            case Phase.FREEZING:
                self.phase = Phase.FORWARDING
            case Phase.PREPARING if self._state is not None:
                for channel, queue in enumerate(self.inbound._queues):
                    if queue and isinstance(queue[0], pa.RecordBatch):
                        yield from self._sent(self._operators.take(queue.popleft(), self.channels[channel].port))
                self._frozen = self._state.backend.freeze(self._task.epoch)
                yield from super().step()
            case _:
                yield from super().step()


class _NotStored(Subtask):
    """Acknowledges what its sinks have prepared, while its state is still being stored."""

    def acknowledged(self) -> Acknowledge | None:
        done, self._prepared = self._prepared, None
        if self.storing is not None and self.storing.done():
            self.storing = None
        return done


class _NotHeldBack(Inbound):
    """Takes what comes behind a channel's barrier before the other channels have delivered theirs."""

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        for channel, queue in enumerate(self._queues):
            while queue and not (isinstance(queue[0], Barrier) and channel in self._at_barrier):
                item = queue.popleft()
                if not isinstance(item, Barrier):
                    return channel, item
                self._at_barrier.add(channel)
        return None

    @property
    def has_ready(self) -> bool:
        fronts = [(queue[0], channel) for channel, queue in enumerate(self._queues) if queue]
        return any(not (isinstance(item, Barrier) and channel in self._at_barrier) for item, channel in fronts)


class _ByArrival(Inbound):
    """Takes channels as what comes on them comes, also where an epoch must be the same when it runs again."""

    def __init__(self, turns: Sequence[int]) -> None:
        super().__init__(len(turns))


class _FirstChannel(Inbound):
    """Hears what the first of its channels says of event time, and none of the others."""

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        before, found = self.times, super()._pop(channel)
        if channel > 0:
            self.times = before
        return found


class _OwnPartitions(Subtask):
    """Goes by the partitions that its own worker reads."""

    def put(self, exchange: int | None, sender: int, item: Item) -> None:
        if not isinstance(item, Times) or exchange is None or sender == self._outbound._index:
            super().put(exchange, sender, item)


class _TimesAtOnce(Inbound):
    """Joins what a channel says of event time as it comes, also of an epoch that is read ahead."""

    def put(self, channel: int, item: Item) -> None:
        if isinstance(item, Times):
            self.times = self.times.joined(item)
        else:
            super().put(channel, item)


class _TakenBack(Clocks):
    """A partition that wakes takes the watermark back."""

    def advance(self, times: Times, now_ms: int) -> None:
        super().advance(times, now_ms)
        self.watermark_us = self._at(now_ms, self._silence)


class _ByWallClock(Clocks):
    """Silence goes by the machine's clock."""

    def advance(self, times: Times, now_ms: int) -> None:
        del now_ms
        super().advance(times, time.time_ns() // 1_000_000)


def _with(clocks: type[Clocks]) -> Callable[[Subtask], None]:
    def spoil(subtask: Subtask) -> None:
        for logic in subtask._operators._logics.values():
            if isinstance(logic, ProcessingLogic) and logic._event_clocks is not None:
                logic._event_clocks.__class__ = clocks

    return spoil


def _forget_clocks(subtask: Subtask) -> None:
    for logic in subtask._operators._logics.values():
        if isinstance(logic, ProcessingLogic) and logic._event_clocks is not None:
            logic._event_clocks._clocks, logic._event_clocks.watermark_us = {}, None


def _forget_timers(subtask: Subtask) -> None:
    for logic in subtask._operators._logics.values():
        if isinstance(logic, ProcessingLogic) and logic._handle.timers is not None:
            logic._handle.timers._keys.clear()


def _of_windows(spoil: Callable[[Any], None]) -> Callable[[Subtask], None]:
    def spoil_all(subtask: Subtask) -> None:
        for logic in subtask._operators._logics.values():
            if isinstance(logic, WindowLogic):
                spoil(logic)

    return spoil_all


def _forget(log: BlockLog | SpanLog) -> None:
    if isinstance(log, SpanLog):
        log._clear(log._logged)
    else:
        log.drop_while(lambda _: True)


def _forget_window_timers(logic: ElementsLogic) -> None:
    logic._contents.event = Agenda([])


def _forget_elements(logic: ElementsLogic) -> None:
    for key, bounds, _ in [*logic._contents._windows.scan()]:
        logic._contents._windows.delete(key, bounds)


def _reopen(logic: WindowLogic[Any]) -> None:
    logic._closed_us = -TIME_END


def _forget_watermark(logic: WindowLogic[Any]) -> None:
    logic._clocks._clocks, logic._clocks.watermark_us, logic._watermark_us = {}, None, -TIME_END


def _unmerge(logic: SessionLogic) -> None:
    """Of each session the row that it began with."""
    log = logic._open
    rows = pa.concat_batches([log.rows.slice(0, 0), *map(log._table.get, log._ids)])
    first = np.sort(np.unique(joined(rows, log._width)[1], return_index=True)[1])
    log._clear(len(rows))
    log._hold(rows.take(pa.array(first)), first)


class _KeptFired:
    """Remembers what came out of windows in this process, decided or not."""

    def __init__(self) -> None:
        self._tables: dict[int, Any] = {}  # by the subtask's index, of the one that died

    def __call__(self, subtask: Subtask) -> None:
        for logic in subtask._operators._logics.values():
            if isinstance(logic, SlicingLogic | SessionLogic):
                index, table = subtask._outbound._index, cast(ModelBlocks, logic._fired._table).table
                if cast(ModelBackend, logic._backend).restored and index in self._tables:  # else a run begins
                    table.entries = dict(self._tables[index].entries)
                    logic._fired.restored()
                self._tables[index] = table


class _BeyondItsPane(SlicingLogic):
    """Fires early with all rows that it has."""

    def _at(self, end: int, at: int, came: Any, when: int = ON_TIME) -> Iterator[Output]:  # noqa: ARG002 - the original's
        kept = self._slices.read(end - self._windows.size_us, end)
        yield from self._again(end, kept if when == ON_TIME else came, kept, when)


def _fire_beyond(logic: SlicingLogic) -> None:
    logic.__class__ = _BeyondItsPane


def _all_groups(index: int, parallelism: int, max_parallelism: int) -> Sequence[int]:
    del index, parallelism
    return range(max_parallelism)


MUTANTS = {
    "the barrier goes on before the state is frozen": FleetSubject(subtask=_FrozenLate),
    "an epoch is acknowledged before its state is stored": FleetSubject(subtask=_NotStored),
    "a channel is not held back": FleetSubject(inbound=_NotHeldBack),
    "timers are not restored": FleetSubject(spoil=_forget_timers),
    "the driver is not told which timers were restored": FleetSubject(tells_timers=False),
    "a key group is restored twice": FleetSubject(groups=_all_groups),
}
END, SILENCE, WINDOWS, EARLY, SESSIONS, ELEMENTS = [job for job in JOBS if job != DEFAULT_JOB]
# By the job that shows them.
OF_TIME = {
    "the watermark is of the first channel alone": (FleetSubject(inbound=_FirstChannel), SILENCE),
    "the watermark is of the worker's own partitions": (FleetSubject(subtask=_OwnPartitions), SILENCE),
    "a partition that wakes takes the watermark back": (FleetSubject(spoil=_with(_TakenBack)), SILENCE),
    "silence goes by the machine's clock": (FleetSubject(spoil=_with(_ByWallClock)), SILENCE),
    "clocks are not restored": (FleetSubject(spoil=_forget_clocks), SILENCE),
    "timers of event time are not restored": (FleetSubject(spoil=_forget_timers), SILENCE),
    "the timer of silence is not told after a restart": (FleetSubject(tells_timers=False), SILENCE),
    "the end is where the driver has planned to, and not the epoch's": (
        FleetSubject(ends_at=lambda _cut, planned: planned),
        END,
    ),
    "windows are not restored": (FleetSubject(spoil=_of_windows(lambda of: _forget(of._slices))), WINDOWS),
    "how often windows have fired is not restored": (
        FleetSubject(spoil=_of_windows(lambda of: _forget(of._fired))),
        WINDOWS,
    ),
    "which windows are closed is not restored": (FleetSubject(spoil=_of_windows(_reopen)), WINDOWS),
    "clocks of windows are not restored": (FleetSubject(spoil=_of_windows(_forget_watermark)), WINDOWS),
    "windows of a key group are restored twice": (FleetSubject(groups=_all_groups), WINDOWS),
    "what came out early is not restored": (FleetSubject(spoil=_of_windows(lambda of: _forget(of._fired))), EARLY),
    "rows that wait for the next early result are not restored": (
        FleetSubject(spoil=_of_windows(lambda of: _forget(of._waiting))),
        EARLY,
    ),
    "early results have rows beyond their time": (FleetSubject(spoil=_of_windows(_fire_beyond)), EARLY),
    "an early result that was never decided is taken back": (FleetSubject(spoil=_KeptFired()), EARLY),
    "sessions are not restored": (FleetSubject(spoil=_of_windows(lambda of: _forget(of._open))), SESSIONS),
    "what came out of sessions is not restored": (
        FleetSubject(spoil=_of_windows(lambda of: _forget(of._fired))),
        SESSIONS,
    ),
    "sessions that became one are restored as they were": (FleetSubject(spoil=_of_windows(_unmerge)), SESSIONS),
    "which sessions are closed is not restored": (FleetSubject(spoil=_of_windows(_reopen)), SESSIONS),
    "a session's result that was never decided is taken back": (FleetSubject(spoil=_KeptFired()), SESSIONS),
    "timers of windows are not restored": (FleetSubject(spoil=_of_windows(_forget_window_timers)), ELEMENTS),
    "windows by elements are not restored": (FleetSubject(spoil=_of_windows(_forget_elements)), ELEMENTS),
    "rows of windows are restored in every key group": (FleetSubject(groups=_all_groups), ELEMENTS),
}
# Wrong at several points together, in schedules by chance: by the sink and the job that show them.
OF_ORDER = {
    "channels are taken by arrival": (SinkKind.WRITE_THROUGH, FleetSubject(in_order=_ByArrival), DEFAULT_JOB),
    "times of the next epoch count in this one": (SinkKind.TWO_PHASE, FleetSubject(inbound=_TimesAtOnce), SILENCE),
}
