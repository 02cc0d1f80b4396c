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
import pyarrow.compute as pc

from onefold.core.aggregates import Accumulation, merged
from onefold.core.aggregates.functions import Merge
from onefold.core.contract import TaskId
from onefold.core.values.batches import repeated
from onefold.engine.logics.logic import Input, Output
from onefold.engine.logics.reducing import PENDING_ROWS_MAX, Lifted
from onefold.engine.logics.windows.block_log import BlockLog
from onefold.engine.logics.windows.spans import is_of_keys
from onefold.engine.logics.windows.window_logic import WindowLogic
from onefold.engine.state.state_backend import BlockId, StateTables
from onefold.flow.graph import Node, Windowing
from onefold.flow.time.clocks import Clocks
from onefold.flow.time.windows import Aligned

__all__ = ["SlicingLogic"]

_SLICE = "$slice"  # a name that no user's column has

Blocks: TypeAlias = Mapping[int, pa.RecordBatch]  # the rows of an epoch, by their slices, ascending


class SlicingLogic(WindowLogic):
    """Implements Clocked and EventTimed.

    `slices` has the states of each key and slice. `fired` has, by the starts of windows that have fired and are not
    closed, how often they have for each key.
    """

    def __init__(self, node: Node, operator: Windowing, given: pa.Schema, clocks: Clocks, backend: StateTables) -> None:
        super().__init__(node, operator, clocks, backend)
        assert isinstance(operator.windows, Aligned)
        self._windows, width = operator.windows, self._width
        self._slice = pa.field(_SLICE, self._time)
        self._accumulation = Accumulation(given.append(self._slice), (*operator.key, _SLICE), operator.aggregates)
        self._lifted = Lifted(self._accumulation)
        kept = self._accumulation.state_schema
        self._slices = BlockLog(backend.blocks(self._uid, "slices", kept, width), width, self._accumulation.merged)
        self._keys = [*kept][: width + 1]
        self._counted = pa.schema([*self._keys, pa.field("emissions", pa.int64())])
        fired = backend.blocks(self._uid, "fired", self._counted, width)
        self._fired = BlockLog(fired, width, partial(_merged, (Merge.SUM,)))

    def restored(self) -> None:
        self._slices.restored()
        self._fired.restored()

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        slices = self._windows.slice_of(self._times_us(batch))
        ends = self._windows.last_end(slices)
        is_in = ends > slices
        is_kept = is_in & (ends > self._closed_us)
        if not is_kept.all():
            late = batch.filter(pa.array(is_in & ~is_kept))
            self._late += late.num_rows
            if self._late_side is not None:
                yield self._late_side, late
            batch, slices = batch.filter(pa.array(is_kept)), slices[is_kept]
        if batch.num_rows:
            self._lifted.add(batch.append_column(self._slice, self._timestamps(slices)))

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        states = self._lifted.take()
        new = {} if states is None else self._slices.append(states)
        before, now, closed = self._moved()
        for end, kept in self._due_again(new, before):
            yield None, self._again(end, kept, new, closed)
        due = self._slices.between(before - self._windows.size_us, now)
        for states in self._at_ends(self._ends(due, before, now)):
            self._count(states, closed)
            yield None, self._results(states, repeated(1, len(states)))
        self._slices.drop_while(lambda slice_: self._windows.last_end(slice_) <= closed)
        self._fired.drop_while(lambda start: start + self._windows.size_us <= closed)
        self._watermark_us, self._closed_us = now, closed

    def _ends(self, slices: Iterable[int], after: int, up_to: int) -> list[int]:
        """Of the windows that have one of the slices, ascending."""
        found: list[int] = []
        for slice_ in sorted(slices):
            found += self._windows.ends(slice_, found[-1] if found else after, up_to)
        return found

    def _at_ends(self, ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The states of the windows that end there: of several at once, in their order."""
        states: list[pa.RecordBatch] = []
        rows, is_merged = 0, True
        for end, blocks in self._blocks_of(ends):
            states += self._as_window(end, blocks)
            rows, is_merged = rows + sum(map(len, blocks)), is_merged and len(blocks) == 1
            if end == ends[-1] or rows > PENDING_ROWS_MAX:
                yield pa.concat_batches(states) if is_merged else self._accumulation.merged(states)
                states, rows, is_merged = [], 0, True

    def _due_again(self, new: Blocks, before: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """The ends of the windows that were due before and got rows; and what is kept of the keys with such rows."""
        late = [at for at in new if self._windows.ends(at, self._closed_us, before)]
        if not late or self._operator.results == "discarding":
            return ((end, []) for end in self._ends(late, self._closed_us, before))
        keys = pa.concat_batches(new[at] for at in late)
        return self._blocks_of(
            self._ends(late, self._closed_us, before), lambda block: block.filter(is_of_keys(block, keys, self._width))
        )

    def _again(self, end: int, kept: Sequence[pa.RecordBatch], new: Blocks, closed: int) -> pa.RecordBatch:
        """The results of a window that was due before, for the keys that got rows: it fires once more for them. They
        are of these rows alone where nothing is given as kept."""
        start = end - self._windows.size_us
        came = self._accumulation.merged(self._as_window(end, [new[at] for at in new if start <= at < end]))
        whole = self._accumulation.merged(self._as_window(end, kept)) if kept else came
        fired = [block.filter(is_of_keys(block, came, self._width)) for block in self._fired.read(start, start + 1)]
        rows = [
            self._by_key(whole, pa.array(np.arange(len(whole))), repeated(0, len(whole)), 0),
            self._by_key(came, pa.nulls(len(came), pa.int64()), repeated(1, len(came)), 1),
            *(self._by_key(of, pa.nulls(len(of), pa.int64()), of.column(self._width + 1), 0) for of in fired),
        ]
        found = _merged((Merge.MAX, Merge.SUM, Merge.MAX), rows)
        places, emissions, _ = found.filter(pc.equal(found.column(self._width + 3), 1)).columns[self._width + 1 :]
        self._count(came, closed)
        return self._results(whole.take(places), emissions)

    def _by_key(self, rows: pa.RecordBatch, places: pa.Array, emissions: pa.Array, is_new: int) -> pa.RecordBatch:
        columns = [*rows.columns[: self._width + 1], places, emissions, repeated(is_new, len(rows))]
        added = [pa.field(name, pa.int64()) for name in ("place", "emissions", "is_new")]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*self._keys, *added]))

    def _count(self, states: pa.RecordBatch, closed: int) -> None:
        """These have fired once more; it is remembered of windows that may fire again."""
        starts = states.column(self._width).cast(pa.int64()).to_numpy()
        states = states.filter(pa.array(starts + self._windows.size_us > closed))
        columns = [*states.columns[: self._width + 1], repeated(1, len(states))]
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

    def _as_window(self, end: int, blocks: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Blocks of slices of a window that ends there: with its start in the place of theirs."""
        if self._windows.slice_us == self._windows.size_us:
            return [*blocks]
        whole = pa.concat_batches(blocks)
        starts = repeated(end - self._windows.size_us, len(whole)).cast(self._slice.type)
        return [whole.set_column(self._width, self._slice, starts)]

    def _results(self, states: pa.RecordBatch, emissions: pa.Array) -> pa.RecordBatch:
        columns = self._accumulation.results(states).columns
        starts = columns[self._width]
        ends = pa.array(starts.cast(pa.int64()).to_numpy() + self._windows.size_us).cast(starts.type)
        columns.insert(self._width + 1, ends)
        numbers = [emissions] if self._operator.fires_again else []
        return pa.RecordBatch.from_arrays([*columns, *numbers], schema=self._schema)


def _merged(merges: Sequence[Merge], rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return merged(pa.concat_batches(rows), merges)
