"""Runs an operator whose states expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onefold.core.contract import TaskId
from onefold.engine.logics.logic import Clocked, EventTimed, Input, Logic, Output
from onefold.engine.state.expiring import Expiry
from onefold.flow.time.clocks import END, Clocks, ClockStatus, Times


class ExpiringLogic:
    """Tells the states of a logic what time it is: that of the epoch, and with `clocks`, which finds those that are
    kept, the watermark at its begin. Removes what has expired, once an epoch."""

    def __init__(self, logic: Logic, expiry: Expiry, clocks: Callable[[], Clocks] | None) -> None:
        self._logic, self._expiry, self._kept_clocks = logic, expiry, clocks
        self._clocks = None if clocks is None else clocks()
        self.now_ms = 0  # the time of the epoch that runs, or of the one before the next
        expiry.restored()

    def restored(self) -> None:
        self._expiry.restored()
        if self._kept_clocks is not None:
            self._clocks = self._kept_clocks()
        if isinstance(self._logic, Clocked):
            self._logic.restored()

    def begin(self, task: TaskId) -> None:
        self.now_ms, us = task.timestamp_ms, None if self._clocks is None else self._clocks.watermark_us
        self._expiry.begin(task.timestamp_ms, None if us is None else us // 1_000)
        if isinstance(self._logic, Clocked):
            self._logic.begin(task)

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        return self._logic.take(batch, port)

    def advance(self, times: Times, task: TaskId) -> None:
        if self._clocks is not None:
            self._clocks.advance(times, task.timestamp_ms)
        if isinstance(self._logic, EventTimed):
            self._logic.advance(times, task)

    def flush(self, task: TaskId) -> Iterator[Output]:
        yield from self._logic.flush(task)
        self._expiry.sweep()

    def timer_ms(self) -> int | None:
        """There is no walk once the input has ended."""
        clock = self.clock()
        due_ms = None if clock is not None and clock.watermark_us == END else self._expiry.due_ms()
        release_ms = None if self._clocks is None else self._clocks.next_release_ms()
        timer_ms = self._logic.timer_ms() if isinstance(self._logic, Clocked) else None
        return min((ms for ms in (due_ms, release_ms, timer_ms) if ms is not None), default=None)

    def clock(self) -> ClockStatus | None:
        if self._clocks is not None:
            return self._clocks.status()
        return self._logic.clock() if isinstance(self._logic, EventTimed) else None

    def close(self) -> None:
        self._logic.close()
