"""What windows of any kind have in common: rows are judged by the watermark, which moves at an epoch's end only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import TaskId
from onefold.core.errors import BadRecord
from onefold.engine.state.state_backend import StateKind, StateSpec, StateTables
from onefold.flow.graph import Joining, Node, Windowing
from onefold.flow.time.clocks import END, Clocks, ClockStatus, Times
from onefold.flow.time.joins import JoinSide
from onefold.flow.time.watermarks import times_of

__all__ = ["Numbers", "WindowLogic", "us_of"]

_CLOSED = "$closed"  # a name that no user's state has
_FAR_US = 2**62  # some 146,000 years: sums with sizes of windows stay within 64 bits

Numbers = np.ndarray[Any, Any]
Of = TypeVar("Of", Windowing, Joining)


class WindowLogic(Generic[Of]):
    """A window is due once the watermark has come to its end, and closed once that is the lateness further; `closed_us`
    is up to where they are closed, which a longer lateness takes no part of back. `clocks` finds those that are kept.
    """

    def __init__(self, node: Node, operator: Of, clocks: Callable[[], Clocks], backend: StateTables) -> None:
        self._uid, self._schema = present(node.uid, "it keeps state"), present(node.schema, "it gives rows")
        self._operator: Of = operator
        self._kept_clocks, self._backend = clocks, backend
        self._late_side = next((name for name, _ in node.sides), None)
        self._width = len(operator.key)
        self._time = self._schema.field(self._width).type
        self._closed_at = StateSpec(self._uid, _CLOSED, StateKind.CLOCKS)
        backend.operator(self._closed_at, lambda: [(self._closed_us,)])
        WindowLogic.restored(self)

    def restored(self) -> None:
        """The backend has another key group's state, or an earlier one."""
        earlier = self._backend.earlier(self._closed_at)
        self._closed_us: int = earlier[0][0][0] if earlier else -END
        self._clocks = self._kept_clocks()
        self._watermark_us = self._reached()
        if not self._operator.fires_again:  # nor does what has fired under an earlier lateness
            self._closed_us = max(self._closed_us, self._watermark_us)
        self._late = 0  # rows of the epoch

    def begin(self, task: TaskId) -> None:
        del task
        self._late = 0

    def advance(self, times: Times, task: TaskId) -> None:
        self._clocks.advance(times, task.timestamp_ms)

    def timer_ms(self) -> int | None:
        return self._clocks.next_release_ms()

    def clock(self) -> ClockStatus:
        return replace(self._clocks.status(), late=self._late)

    def close(self) -> None:
        return

    def _reached(self) -> int:
        return -END if self._clocks.watermark_us is None else self._clocks.watermark_us

    def _moved(self) -> tuple[int, int, int]:
        """The watermark of the epoch before, that of this one, and up to where windows are closed by it."""
        now = self._reached()
        closed = max(self._closed_us, END if now == END else now - self._operator.lateness_us)
        return self._watermark_us, now, closed

    def _times_us(self, batch: pa.RecordBatch, of: Windowing | JoinSide) -> Numbers:
        times = times_of(batch, of.on)
        is_finer = getattr(times.type, "unit", None) == "ns"
        try:
            whole = times if is_finer else times.cast(pa.timestamp("us", getattr(times.type, "tz", None)))
        except pa.ArrowInvalid:
            whole = pa.array([END])
        found = us_of(whole) // (1_000 if is_finer else 1)
        if len(found) and not -_FAR_US < found.min() <= found.max() < _FAR_US:
            raise BadRecord(
                "event-time-range",
                f"a record's time in {of.on!r} is over 146,000 years from 1970: filter such records before the window",
            )
        return found - 1 if of.is_end else found

    def _timestamps(self, us: Numbers) -> pa.Array:
        return pa.array(us).view(self._time)


def us_of(times: pa.Array) -> Numbers:
    """Of timestamps of microseconds."""
    found: Numbers = times.view(pa.int64()).to_numpy()
    return found
