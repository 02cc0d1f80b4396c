"""Runs a stateful processor on the rows of each key of a batch, and on its timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa

from onefold.core.contract import TaskId
from onefold.engine.logics.logic import Input, Output
from onefold.engine.state.handles import KeyedHandle
from onefold.engine.state.state_backend import Key
from onefold.flow.graph.nodes import Node
from onefold.flow.processing.groups import by_key
from onefold.flow.processing.processor import BroadcastProcessor, StatefulProcessor
from onefold.flow.processing.rows import RowCollector, note, row_type, values_of
from onefold.flow.time.clocks import END, Clocks, ClockStatus, Times

NO_WATERMARK_MS = -1
BROADCAST = 1  # the second input, of an operator that has two


@dataclass(frozen=True, slots=True)
class _Clocks:
    """`TimerValues`: processing time is the epoch's time, the same when the epoch runs again."""

    now_ms: int
    watermark_ms: int = NO_WATERMARK_MS

    def getCurrentProcessingTimeInMs(self) -> int:
        return self.now_ms

    def getCurrentWatermarkInMs(self) -> int:
        return self.watermark_ms


@dataclass(frozen=True, slots=True)
class _Expired:
    """`ExpiredTimer`."""

    at_ms: int

    def getExpiryTimeInMs(self) -> int:
        return self.at_ms


class ProcessingLogic:
    """`processor` keeps its state by `handle`. Timers of processing time fire at the end of the first epoch whose time
    has come to theirs; with `clocks`, which finds those that are kept, they are of event time, and go by the watermark
    at the epoch's end. Rows see the one that was at its begin: no row is late because of one of its own epoch."""

    def __init__(
        self,
        node: Node,
        processor: StatefulProcessor,
        key: tuple[str, ...],
        handle: KeyedHandle,
        clocks: Callable[[], Clocks] | None = None,
    ) -> None:
        self._key = key
        self._processor = processor
        self._handle = handle
        self._kept_clocks = clocks
        self._event_clocks = None if clocks is None else clocks()
        self._rows = RowCollector(node.name, node.outputs())
        self._kinds: dict[int, type[Any]] = {}
        self._clocks = _Clocks(-1)
        processor.init(handle)
        handle.is_open = False

    def restored(self) -> None:
        self._handle.restored()
        if self._kept_clocks is not None:
            self._event_clocks = self._kept_clocks()

    def begin(self, task: TaskId) -> None:
        self._clocks = _Clocks(task.timestamp_ms, self._watermark_ms)

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        assert isinstance(batch, pa.RecordBatch)
        if port not in self._kinds:
            self._kinds[port] = row_type(batch.schema.names)
        if port == BROADCAST:
            assert isinstance(self._processor, BroadcastProcessor)
            self._handle.leave_key()
            self._processor.handleBroadcastRows(map(self._kinds[port], values_of(batch)), self._clocks)
            return
        keys, rows = by_key(batch, self._key, self._kinds[port])
        yield from self._emit(self._processor.handleInputRows, zip(keys, map(iter, rows), repeat(self._clocks)))
        yield from self._rows.take()

    def advance(self, times: Times, task: TaskId) -> None:
        if self._event_clocks is not None:
            self._event_clocks.advance(times, task.timestamp_ms)
            self._clocks = _Clocks(task.timestamp_ms, self._watermark_ms)

    def flush(self, task: TaskId) -> Iterator[Output]:
        up_to_ms = task.timestamp_ms if self._event_clocks is None else self._watermark_ms
        expired = self._handle.timers.pop_expired(up_to_ms)
        calls = ((key, self._clocks, _Expired(at_ms)) for at_ms, key in expired)
        yield from self._emit(self._processor.handleExpiredTimer, calls)
        yield from self._rows.take()
        self._handle.leave_key()
        self._processor.onSnapshot()

    def timer_ms(self) -> int | None:
        next_ms = self._handle.timers.next_ms()
        if self._event_clocks is None:
            return next_ms
        is_due = next_ms is not None and next_ms <= self._watermark_ms  # a timer has registered it
        return 0 if is_due else self._event_clocks.next_release_ms(None if next_ms is None else next_ms * 1_000)

    def clock(self) -> ClockStatus | None:
        return None if self._event_clocks is None else self._event_clocks.status()

    def close(self) -> None:
        self._processor.close()

    @property
    def _watermark_ms(self) -> int:
        """Up to where timers of event time are due: all of them once the input has ended."""
        if self._event_clocks is None:
            return NO_WATERMARK_MS
        us = self._event_clocks.watermark_us
        return -END if us is None else END if us == END else us // 1_000

    def _emit(self, handle: Callable[..., Iterable[Any]], calls: Iterable[tuple[Key, Any, Any]]) -> Iterator[Output]:
        """What the processor's method `handle` gives, called with each of these: a key, and what goes with it."""
        key: Key = ()
        state, fill = self._handle, self._rows.fill
        try:
            for key, first, second in calls:
                state.key = key
                found = iter(handle(key, first, second) or ())
                while fill(found):
                    yield from self._rows.take()
        except Exception as error:
            note(error, "key", key)
            raise
