"""Rows by key and slice as a log: an epoch's rows of a slice are one block, and eight blocks become one.

So an epoch writes what it changed, nothing is looked up, and a slice is read whole. For windows that overlap slices are
merged beforehand, in the nodes of a tree: two neighbours of one size are one that begins at a multiple of its size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from onefold.core.values.batches import repeated
from onefold.engine.logics.windows.window_logic import us_of
from onefold.engine.state.state_backend import BlockId, BlockTable
from onefold.flow.time.clocks import END
from onefold.flow.time.windows import Aligned

MERGED = 8
ROWS_MIN = 1_000  # of a node: a merge of fewer costs more than it saves


class BlockLog:
    """The rows have their slice, whole microseconds in a timestamp, in the column numbered `width`. `merge` makes one
    row of each key and slice of those that it is given, in the order in which they came."""

    def __init__(
        self,
        table: BlockTable,
        width: int,
        merge: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch],
        windows: Aligned,
    ) -> None:
        self._table, self._width, self._merge, self._windows = table, width, merge, windows
        self.restored()

    def restored(self) -> None:
        """The table has other blocks now."""
        self._numbers: dict[int, list[int]] = {}  # of the blocks of each slice, ascending
        self._levels: dict[BlockId, int] = {}  # how often a block was merged, as far as that is known
        for slice_, number in self._table.ids():
            self._numbers.setdefault(slice_, []).append(number)
        self._slices = sorted(self._numbers)
        self._nodes: dict[tuple[int, int], list[pa.RecordBatch]] = {}  # by start and size: in memory alone
        self._since = self._slices[-1] + 1 if self._slices else -END  # what is older is not merged beforehand
        self._next = max((number for numbers in self._numbers.values() for number in numbers), default=-1) + 1

    def append(self, rows: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        """Rows of an epoch, one of each key and slice; gives those of each slice."""
        found = dict(_by_slice(rows, self._width))
        self._slices = sorted([*self._slices, *(slice_ for slice_ in found if slice_ not in self._numbers)])
        for slice_, block in found.items():
            self._put(slice_, block)
        self._next += 1
        return found

    def between(self, start: int, end: int) -> list[int]:
        """The slices from `start` up to, not including, `end`."""
        return self._slices[bisect_left(self._slices, start) : bisect_left(self._slices, end)]

    def ids(self, start: int, end: int) -> list[BlockId]:
        """Of the blocks of these: the older ones first."""
        found = ((number, slice_) for slice_ in self.between(start, end) for number in self._numbers[slice_])
        return [(slice_, number) for number, slice_ in sorted(found)]

    def get(self, at: BlockId) -> pa.RecordBatch:
        return self._table.get(at)

    def read(self, start: int, end: int) -> list[pa.RecordBatch]:
        return [self._table.get(at) for at in self.ids(start, end)]

    def read_merged(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The same rows in any order, and of each key few: rows that are merged have the start of any slice."""
        found: list[pa.RecordBatch] = []
        while start < end:
            size = self._windows.slice_us
            while start + 2 * size <= end and self._windows.floor(start, 2 * size) == start:
                size *= 2
            found += self._node(start, size)
            start += size
        return found

    def drop_while(self, is_done: Callable[[int], bool]) -> None:
        """The first slices, as long as they are done."""
        count = next((at for at, slice_ in enumerate(self._slices) if not is_done(slice_)), len(self._slices))
        done, self._slices = self._slices[:count], self._slices[count:]
        for slice_ in done:
            self._forget(slice_)
            for number in self._numbers.pop(slice_):
                self._delete((slice_, number))

    def _node(self, start: int, size: int) -> list[pa.RecordBatch]:
        if size == self._windows.slice_us or start < self._since or not self.between(start, start + size):
            return self.read(start, start + size)
        if (start, size) not in self._nodes:
            blocks = [*self._node(start, size // 2), *self._node(start + size // 2, size // 2)]
            rows = sum(map(len, blocks))
            if rows >= ROWS_MIN and 4 * len(merged := self._merge(of_start(blocks, start, self._width))) <= 3 * rows:
                blocks = [merged]
            self._nodes[start, size] = blocks
        return self._nodes[start, size]

    def _forget(self, slice_: int) -> None:
        """The nodes of a slice that has other rows now, or none."""
        size = self._windows.slice_us
        while (size := 2 * size) <= self._windows.size_us:
            self._nodes.pop((self._windows.floor(slice_, size), size), None)

    def _put(self, slice_: int, block: pa.RecordBatch) -> None:
        self._forget(slice_)
        numbers, level = self._numbers.setdefault(slice_, []), 0
        while len(last := numbers[1 - MERGED :]) == MERGED - 1 and all(
            self._levels.get((slice_, number), 0) <= level for number in last
        ):
            block = self._merge([*(self._table.get((slice_, number)) for number in last), block])
            for number in last:
                self._delete((slice_, number))
            del numbers[1 - MERGED :]
            level += 1
        numbers.append(self._next)
        self._levels[slice_, self._next] = level
        self._table.put((slice_, self._next), block)

    def _delete(self, at: BlockId) -> None:
        self._levels.pop(at, None)
        self._table.delete(at)


def of_start(blocks: Sequence[pa.RecordBatch], start: int, at: int) -> list[pa.RecordBatch]:
    """Blocks with that start in the place of their slices, in the column of that number."""
    whole = pa.concat_batches(blocks)
    field = whole.schema.field(at)
    return [whole.set_column(at, field, repeated(start, len(whole)).view(field.type))]


def _by_slice(rows: pa.RecordBatch, at: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each slice, in their order, by the column with that number; the earliest slice first. Few of many are
    copied, so that they do not keep the others in memory."""
    slices = us_of(rows.column(at))
    if not len(slices):
        return
    if (np.diff(slices) < 0).any():
        order = np.argsort(slices, kind="stable")
        rows, slices = rows.take(pa.array(order)), slices[order]
    starts = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), len(slices)]
    for start, end in pairwise(starts):
        is_most = 2 * (end - start) >= len(slices)
        yield (
            int(slices[start]),
            rows.slice(start, end - start) if is_most else rows.take(pa.array(np.arange(start, end))),
        )
