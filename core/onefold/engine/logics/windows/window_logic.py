"""What windows of any kind have in common: rows are judged by the watermark, which moves at an epoch's end only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import present
from onefold.core.contract import TaskId
from onefold.core.errors import BadRecord
from onefold.engine.logics.logic import BaseLogic, Output
from onefold.engine.state.state_backend import StateKind, StateSpec, StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Joining, Windowing
from onefold.flow.time.clocks import END, Clocks, ClockStatus, Times
from onefold.flow.time.joins import JoinSide
from onefold.flow.time.watermarks import times_of
from onefold.flow.time.windows import SIZE_US_MAX, Sessions

_CLOSED = "$closed"  # a name that no user's state has
_FAR_US = 2**62  # some 146,000 years: sums with sizes of windows stay within 64 bits

Numbers = np.ndarray[Any, Any]
Of = TypeVar("Of", Windowing, Joining)


class WindowLogic(BaseLogic, Generic[Of]):
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
        self._epoch = self._now_ms = 0
        WindowLogic.restored(self)

    def restored(self) -> None:
        """The backend has another key group's state, or an earlier one."""
        earlier = self._backend.earlier(self._closed_at)
        self._closed_us: int = earlier[0][0][0] if earlier else -END
        self._clocks = self._kept_clocks()
        self._watermark_us = self._closed_us if self._is_of_processing else self._reached()
        if not self._operator.fires_again:  # nor does what has fired under an earlier lateness
            self._closed_us = max(self._closed_us, self._watermark_us)
        self._late = 0  # rows of the epoch

    def begin(self, task: TaskId) -> None:
        if task.epoch != self._epoch:  # which may begin again in its midst
            self._late = 0
        self._epoch, self._now_ms = task.epoch, task.timestamp_ms

    def advance(self, times: Times, task: TaskId) -> None:
        self._clocks.advance(times, task.timestamp_ms)

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        now = self._reached()
        yield from self._flushed(self._watermark_us, now)
        self._watermark_us, self._closed_us = now, self._closes_us

    def timer_ms(self) -> int | None:
        if not self._is_of_processing:
            return self._clocks.next_release_ms(self._next_due_us() if self._clocks.goes_on else None)
        due_us = self._next_due_us()
        return None if due_us is None else -(-due_us // 1_000)

    def clock(self) -> ClockStatus | None:
        if self._is_of_processing:
            return None
        is_by_end = isinstance(self._operator, Windowing) and self._operator.on is None
        return replace(self._clocks.status(), late=self._late, is_by_end=is_by_end)

    @property
    def _is_of_processing(self) -> bool:
        """Whether their time is the epoch's."""
        return isinstance(self._operator, Windowing) and self._operator.is_of_processing

    def _next_due_us(self) -> int | None:
        """The watermark, beyond the one that there is, with which the next rows come out."""
        return None

    def _reached(self, less_us: int = 0) -> int:
        """The watermark, less so much; END once all sources have ended."""
        us = self._clocks.watermark_us
        return -END if us is None else END if us == END else us - less_us

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        """What comes out of the epoch's rows, and those before: the watermark was at `before`, and is at `now`."""
        raise NotImplementedError

    @property
    def _closes_us(self) -> int:
        """Up to where windows are closed by the watermark."""
        return max(self._closed_us, self._reached(self._operator.lateness_us))

    def _told_late(self, late: pa.RecordBatch, side: str | None) -> Iterator[Output]:
        """Counts rows that are late, and gives them to the side output, if there is one."""
        self._late += late.num_rows
        if side is not None:
            yield side, late

    def _times_us(self, batch: pa.RecordBatch, of: Windowing | JoinSide) -> Numbers:
        if of.on is None:
            return np.full(len(batch), self._now_ms * 1_000)
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


def gaps_us(of: Sessions, batch: pa.RecordBatch) -> Numbers | int:
    """How far each row reaches, or all of them do. Raises BadRecord for one that reaches nowhere."""
    if of.gap_us is not None:
        return of.gap_us
    gaps = batch.column(str(of.column))
    is_finer = gaps.type.unit == "ns"
    try:
        us = gaps.cast(pa.duration("us"), safe=not is_finer).cast(pa.int64())
    except pa.ArrowInvalid:  # of 300,000 years and more
        us = pa.array([SIZE_US_MAX])
    if gaps.null_count or not pc.all(pc.and_(pc.greater(us, 0), pc.less(us, SIZE_US_MAX)), min_count=0).as_py():
        raise BadRecord(
            "session-gap",
            f"a record's gap in {of.column!r} is null, shorter than a microsecond, or over 36,000 years:"
            " filter such records before the window, or give them a gap",
        )
    found: Numbers = us.to_numpy()
    return found


def us_of(times: pa.Array) -> Numbers:
    """Of timestamps of microseconds."""
    found: Numbers = times.view(pa.int64()).to_numpy()
    return found
