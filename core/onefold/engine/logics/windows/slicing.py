"""Windows of time that have the same bounds for all keys: rows are kept by slices, of which windows are made.

All that happens is decided by the watermark, which moves at an epoch's end only: rows of an epoch are judged by the one
of the epoch before, and windows that it passes fire with all of the epoch's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from onefold.core.aggregates import Accumulation, merged
from onefold.core.aggregates.functions import Merge
from onefold.core.values.batches import empty_batch, repeated
from onefold.engine.logics.logic import Input, Output
from onefold.engine.logics.reducing import PENDING_ROWS_MAX, Lifted
from onefold.engine.logics.windows.block_log import BlockLog, of_start
from onefold.engine.logics.windows.calendars import slices_of
from onefold.engine.logics.windows.emitting import EARLY, LATE, ON_TIME, Emitter
from onefold.engine.logics.windows.running_sums import running_sums
from onefold.engine.logics.windows.spans import is_of_keys, keys_of_both
from onefold.engine.logics.windows.window_logic import WindowLogic, us_of
from onefold.engine.state.state_backend import BlockId, StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Windowing
from onefold.flow.time.clocks import END, Clocks
from onefold.flow.time.triggers import Every
from onefold.flow.time.windows import Aligned

_SLICE = "$slice"  # a name that no user's column has
RUNNING_MIN = 8  # of so many panes of a window one has to end, for all of them to be read once

Blocks: TypeAlias = Mapping[int, pa.RecordBatch]  # the rows of an epoch, by their slices, ascending


class SlicingLogic(WindowLogic[Windowing]):
    """Implements Clocked and EventTimed.

    `slices` has the states of each key and slice. `fired` has, by the starts of windows that have fired and are not
    closed, how often they have for each key.
    """

    def __init__(
        self, node: Node, operator: Windowing, given: pa.Schema, clocks: Callable[[], Clocks], backend: StateTables
    ) -> None:
        assert isinstance(operator.windows, Aligned)
        self._windows, self._calendar = operator.windows, operator.windows.calendar
        super().__init__(node, operator, clocks, backend)
        width = self._width
        self._slice = pa.field(_SLICE, self._time)
        self._accumulation = slices_accumulation(operator, given, self._time)
        self._lifted = Lifted(self._accumulation.states, self._accumulation.merged)
        kept = self._accumulation.state_schema
        self._slices = BlockLog(
            backend.blocks(self._uid, "slices", kept, width), width, self._accumulation.merged, self._windows
        )
        self._keys = [*kept][: width + 1]
        end, results = pa.field("$end", self._time), [*self._accumulation.result_schema][width + 1 :]
        self._out = pa.schema([*self._keys, end, *results])
        kept_out = [end, *results] if operator.results == "retracting" else []
        self._counted = pa.schema([*self._keys, *kept_out, pa.field("emissions", pa.int64())])
        fired = backend.blocks(self._uid, "fired", self._counted, width)
        self._merge_fired = partial(_merged, (*[Merge.LAST] * len(kept_out), Merge.SUM))
        self._fired = BlockLog(fired, width, self._merge_fired, self._windows)
        self._emitter = Emitter(self._schema, operator)
        self._waiting: BlockLog | None = None
        if isinstance(operator.trigger, Every):
            waiting = backend.blocks(self._uid, "waiting", kept, width)
            self._waiting = BlockLog(waiting, width, self._accumulation.merged, self._windows)

    def restored(self) -> None:
        super().restored()
        self._slices.restored()
        self._fired.restored()
        if self._waiting is not None:
            self._waiting.restored()

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        times = self._times_us(batch, self._operator)
        slices = slices_of(self._windows, times)
        ends = self._windows.last_end(slices)
        is_in = ends > slices
        is_kept = is_in & (ends > self._closed_us)
        if not is_kept.all():
            yield from self._told_late(batch.filter(pa.array(is_in & ~is_kept)), self._late_side)
            batch, slices = batch.filter(pa.array(is_kept)), slices[is_kept]
        if batch.num_rows:
            self._lifted.add(batch.append_column(self._slice, self._timestamps(slices)))

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        states = self._lifted.take()
        new = {} if states is None else self._slices.append(states)
        for end, kept in self._due_again(new, before):
            yield from self._again(end, self._of_window(end, new), kept, LATE)
        due = self._slices.between(before - self._windows.size_us, now)
        ends = self._windows.all_ends(due, before, now)
        if self._operator.trigger is None:
            for states in self._at_ends(ends):
                results = self._results(states)
                if self._operator.fires_again:
                    self._count(results, self._closes_us)
                yield None, self._emitter.once(results)
        elif self._waiting is None:
            for end in ends:
                yield from self._at(end, end, self._of_window(end, new))
            for end in self._windows.all_ends(new, now, END):
                yield from self._at(end, end, self._of_window(end, new), EARLY)
        else:
            yield from self._each_pane(self._waiting, ends, new)
        self._slices.drop_while(lambda slice_: self._windows.last_end(slice_) <= self._closes_us)
        self._fired.drop_while(lambda start: start + self._windows.size_us <= self._closes_us)

    def _reached(self, less_us: int = 0) -> int:
        reached = super()._reached(less_us)
        return reached if self._calendar is None or abs(reached) == END else self._calendar.reached(reached)

    def _next_due_us(self) -> int | None:
        now, of = self._watermark_us, self._windows
        at = of.next_end(self._slices.between(now - of.size_us, END), now)
        if at is not None and self._waiting is not None and now != -END:
            passed = of.slice_of(now)
            panes = [passed] if self._waiting.between(-END, passed) else self._slices.between(passed, END)[:1]
            return min([at, *(pane + of.slice_us for pane in panes)])
        return at if at is None or self._calendar is None else self._calendar.begin_us(at)

    def _at_ends(self, ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The states of the windows that end there: of several at once, in their order."""
        size_us = self._windows.size_us
        panes = size_us // self._windows.slice_us
        if not self._accumulation.only_sums or panes == 1 or len(ends) == 1 or RUNNING_MIN * len(ends) < panes:
            yield from self._each_merged(ends)
            return
        for at in range(0, len(ends), panes):
            some = ends[at : at + panes]
            rows = pa.concat_batches(map(self._slices.get, sorted(self._slices.ids(some[0] - size_us, some[-1]))))
            yield from running_sums(rows, self._width, size_us, some) or self._each_merged(some)

    def _each_merged(self, ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
        found: list[tuple[int, list[pa.RecordBatch]]] = []
        rows, is_merged = 0, True
        size_us, read = self._windows.size_us, self._slices.read_merged
        merged = ((end, read(end - size_us, end)) for end in ends)
        for end, blocks in self._blocks_of(ends) if self._accumulation.depends_on_order else merged:
            found.append((end - size_us, blocks))
            rows, is_merged = rows + sum(map(len, blocks)), is_merged and len(blocks) == 1
            if end == ends[-1] or rows > PENDING_ROWS_MAX:
                if len(found) == 1:
                    yield self._merged(*found[0])
                else:
                    states = [each for start, blocks in found for each in self._as_window(start, blocks)]
                    yield pa.concat_batches(states) if is_merged else self._accumulation.merged(states)
                found, rows, is_merged = [], 0, True

    def _due_again(self, new: Blocks, before: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """The ends of the windows that were due before and got rows; and what is kept of the keys with such rows."""
        late = [at for at in new if self._windows.ends(at, self._closed_us, before)]
        ends = self._windows.all_ends(late, self._closed_us, before)
        if not late or self._operator.results == "discarding":
            return ((end, []) for end in ends)
        keys = pa.concat_batches(new[at] for at in late)
        return self._blocks_of(ends, lambda block: block.filter(is_of_keys(block, keys, self._width)))

    def _each_pane(self, waiting: BlockLog, ends: Sequence[int], new: Blocks) -> Iterator[Output]:
        """Firings at the ends of slices that the watermark has passed, in their order. Rows of slices that it passed
        before wait for the next one."""
        before, now = self._watermark_us, self._reached()
        passed, reached = (us if abs(us) == END else self._windows.slice_of(us) for us in (before, now))
        for slice_, block in new.items():
            if slice_ < passed and self._windows.last_end(slice_) > before:
                waiting.append(block)
        if reached <= passed:
            return
        first = passed + self._windows.slice_us
        late = waiting.between(-END, passed)
        fires = {(end, end) for end in ends}
        for slice_, at in [
            *((slice_, first) for slice_ in late),
            *((slice_, slice_ + self._windows.slice_us) for slice_ in self._slices.between(passed, reached)),
        ]:
            fires |= {(at, end) for end in self._windows.ends(slice_, at, END)}
        for at, end in sorted(fires):
            came = self._slices.read(max(at - self._windows.slice_us, end - self._windows.size_us), at)
            if at == first:
                came += waiting.read(end - self._windows.size_us, passed)
            yield from self._at(end, at, came, ON_TIME if at == end else EARLY)
        waiting.drop_while(lambda _: True)

    def _at(self, end: int, at: int, came: Sequence[pa.RecordBatch], when: int = ON_TIME) -> Iterator[Output]:
        """A window fires with its rows before `at`: at its end for all keys, earlier for those that have rows in
        `came`."""
        if self._operator.results == "discarding":
            yield from self._again(end, came, [], when)
            return
        kept = self._slices.read(end - self._windows.size_us, at)
        yield from self._again(end, kept if when == ON_TIME else came, kept, when)

    def _again(
        self, end: int, came: Sequence[pa.RecordBatch], kept: Sequence[pa.RecordBatch], when: int
    ) -> Iterator[Output]:
        """The results of a window for the keys that have rows in `came`: of all rows in `kept`, or where nothing is
        kept of these alone."""
        if not came:
            return
        start = end - self._windows.size_us
        new = self._merged(start, came)
        whole = new
        if kept and kept is not came:
            near = [block.filter(is_of_keys(block, new, self._width)) for block in kept]
            whole = self._merged(start, near)
            numbers = keys_of_both(whole, new, self._width)
            whole = whole.filter(pa.array(np.isin(numbers[: len(whole)], numbers[len(whole) :])))
        fired = [block.filter(is_of_keys(block, new, self._width)) for block in self._fired.read(start, start + 1)]
        known = self._merge_fired(fired) if fired else empty_batch(self._counted)
        results = self._results(whole)
        numbers = keys_of_both(results, known, self._width)
        places = np.full(len(numbers), -1, np.int64)
        places[numbers[: len(results)]] = np.arange(len(results))
        every = np.full(len(results), when)
        out, come, _ = self._emitter.again(results, known, places[numbers[len(results) :]], every)
        yield from ((None, rows) for rows in out)
        self._count(come, self._closed_us if when == EARLY else self._closes_us)  # its end may come in this epoch, too

    def _of_window(self, end: int, new: Blocks) -> list[pa.RecordBatch]:
        return [new[at] for at in new if end - self._windows.size_us <= at < end]

    def _count(self, results: pa.RecordBatch, closed: int) -> None:
        """These have come out once more; it is remembered of windows that may fire again."""
        starts = us_of(results.column(self._width))
        results = results.filter(pa.array(starts + self._windows.size_us > closed))
        columns = [*results.columns[: len(self._counted) - 1], repeated(1, len(results))]
        self._fired.append(pa.RecordBatch.from_arrays(columns, schema=self._counted))

    def _blocks_of(
        self, ends: Iterable[int], kept: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda block: block
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """The blocks of the windows that end there, ascending: each block is read once, and `kept` of it is given."""
        seen: dict[BlockId, pa.RecordBatch] = {}
        for end in ends:
            ids = self._slices.ids(end - self._windows.size_us, end)
            seen = {at: seen[at] if at in seen else kept(self._slices.get(at)) for at in ids}
            yield end, [*seen.values()]

    def _merged(self, start: int, blocks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One row a key of slices of what begins there."""
        if len(blocks) == 1 or not self._width:
            states = self._as_window(start, blocks)
            return states[0] if len(blocks) == 1 else self._accumulation.merged(states)
        found = self._accumulation.merged([pa.concat_batches(blocks).remove_column(self._width)])
        return found.add_column(self._width, self._slice, repeated(start, len(found)).view(self._slice.type))

    def _as_window(self, start: int, blocks: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Blocks of slices of what begins there: with that in the place of their starts."""
        if self._windows.slice_us == self._windows.size_us:
            return [*blocks]
        return of_start(blocks, start, self._width)

    def _results(self, states: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._accumulation.results(states).columns
        columns.insert(self._width + 1, self._timestamps(us_of(columns[self._width]) + self._windows.size_us))
        return pa.RecordBatch.from_arrays(columns, schema=self._out)


def slices_accumulation(of: Windowing, given: pa.Schema, time: pa.DataType) -> Accumulation:
    """By key and slice."""
    return Accumulation(given.append(pa.field(_SLICE, time)), (*of.key, _SLICE), of.aggregates)


def _merged(merges: Sequence[Merge], rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return merged(pa.concat_batches(rows), merges)
