"""Sessions: rows of a key that are no further apart than a gap, found by sorting spans of time.

A row is a span, from its time to the gap after it; those of an epoch and the open sessions of their keys become the
sessions that are open now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from onefold.core.aggregates import Accumulation, max_
from onefold.engine.logics.logic import Input, Output
from onefold.engine.logics.reducing import Lifted
from onefold.engine.logics.windows.emitting import EARLY, LATE, ON_TIME, Emitter
from onefold.engine.logics.windows.span_log import SpanLog
from onefold.engine.logics.windows.spans import holders, joined
from onefold.engine.logics.windows.window_logic import Numbers, WindowLogic, gaps_us, us_of
from onefold.engine.state.state_backend import StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Windowing
from onefold.flow.time.clocks import END, Clocks
from onefold.flow.time.windows import Sessions

_START, _END, _EMISSIONS = "$start", "$end", "$emissions"  # names that no user's column has


class SessionLogic(WindowLogic[Windowing]):
    """Implements Clocked and EventTimed. A session is due once the watermark is beyond its end, at which a row would
    still be of it. A late row is of a session that is open at its time; it never makes one begin earlier, so that none
    reaches one that is closed.

    `open` has the states of each session. `fired` has, of those that may fire again, the rows that came out.
    """

    def __init__(
        self, node: Node, operator: Windowing, given: pa.Schema, clocks: Callable[[], Clocks], backend: StateTables
    ) -> None:
        super().__init__(node, operator, clocks, backend)
        self._of, width = cast(Sessions, operator.windows), self._width
        self._accumulation = sessions_accumulation(operator, given, self._time)
        self._lifted = Lifted(self._accumulation.lifted, self._merged)
        self._emitter = Emitter(self._schema, operator)
        kept = self._accumulation.state_schema
        out = self._accumulation.result_schema.append(pa.field(_EMISSIONS, pa.int64()))
        self._open = SpanLog(backend.blocks(self._uid, "sessions", kept, width), kept, width)
        self._fired = SpanLog(backend.blocks(self._uid, "fired", out, width), out, width)
        self._drop_earlier()

    def restored(self) -> None:
        super().restored()
        self._open.restored()
        self._fired.restored()
        self._drop_earlier()

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        starts = self._times_us(batch, self._operator)
        ends = starts + gaps_us(self._of, batch)
        if (starts < self._closed_us).any():
            is_kept = (starts >= self._closed_us) | self._is_in_open(batch, starts)
            yield from self._told_late(batch.filter(pa.array(~is_kept)), self._late_side)
            batch, starts, ends = batch.filter(pa.array(is_kept)), starts[is_kept], ends[is_kept]
        if batch.num_rows:
            for name, us in ((_START, starts), (_END, ends)):
                batch = batch.append_column(pa.field(name, self._time), self._timestamps(us))
            self._lifted.add(batch)

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        fires = []
        if states := self._lifted.drain():
            new = self._open.append(pa.concat_batches(states), lambda spans: self._accumulation.merged([spans]))
            ends = self._ends(new)
            is_fired = (ends < before) | ((ends >= now) & (self._operator.trigger is not None))
            if is_fired.any():
                fires.append(new.filter(pa.array(is_fired)))
        fires.append(self._open.ending(before, now)[0])
        if any(map(len, fires)):
            yield from self._results(pa.concat_batches(fires), before, now)
        self._drop()

    def _results(self, sessions: pa.RecordBatch, before: int, now: int) -> Iterator[Output]:
        sessions = sessions.take(pa.array(np.lexsort((us_of(sessions.column(self._width)), self._ends(sessions)))))
        results = self._accumulation.results(sessions)
        if not self._operator.fires_again:
            yield None, self._emitter.once(results)
            return
        fired, _ = self._fired.near(results)
        ends = self._ends(sessions)
        when = np.where(ends >= now, EARLY, np.where(ends < before, LATE, ON_TIME))
        out, come, emissions = self._emitter.again(results, fired, holders(results, fired, self._width), when)
        yield from ((None, rows) for rows in out)
        if len(come):
            kept = come.append_column(_EMISSIONS, pa.array(emissions))
            self._fired.append(kept, lambda _: kept)

    def _next_due_us(self) -> int | None:
        end_us = self._open.first_end(self._watermark_us)  # those before have come, and are open for late rows
        return None if end_us == END else end_us + 1

    def _drop_earlier(self) -> None:
        """What is closed, and may be in the logs still; of `fired`, what is of no session that is open."""
        self._open.drop(self._open.ending(-END, self._closed_us)[1])
        fired, numbers = self._fired.ending(-END, END)
        self._fired.drop(numbers[holders(self._open.rows, fired, self._width) < 0])

    def _drop(self) -> None:
        """What is closed by now. Of `fired` only rows of the keys that this is about are looked at."""
        sessions, closing = self._open.ending(self._closed_us, self._closes_us)
        fired, numbers = self._fired.near(sessions)
        if len(numbers):
            numbers = numbers[holders(sessions, fired, self._width) >= 0]
        self._fired.drop(numbers)
        self._open.drop(closing)

    def _is_in_open(self, batch: pa.RecordBatch, times: Numbers) -> Numbers:
        """Whether each is in a session of its key."""
        at = self._timestamps(times)
        columns = [*batch.select(self._operator.key).columns, at, at]
        spans = pa.RecordBatch.from_arrays(columns, [*self._accumulation.state_schema.names[: len(columns)]])
        found: Numbers = holders(self._open.near(spans)[0], spans, self._width) >= 0
        return found

    def _ends(self, rows: pa.RecordBatch) -> Numbers:
        return us_of(rows.column(self._width + 1))

    def _merged(self, states: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Small sessions, of states of rows."""
        return self._accumulation.merged([joined(pa.concat_batches(states), self._width)[0]])


def sessions_accumulation(of: Windowing, given: pa.Schema, time: pa.DataType) -> Accumulation:
    """By key and start; of the ends the highest."""
    rows = pa.schema([*given, *(pa.field(name, time) for name in (_START, _END))])
    return Accumulation(rows, (*of.key, _START), ((_END, max_(_END)), *of.aggregates))
