"""Slices that are merged beforehand, for windows that overlap: a window is of few blocks, however many its slices.

They are in the nodes of a tree. A node has two neighbours of one size, the lowest ones two slices, and begins at a
multiple of its size; a window is the largest nodes that make it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from onefold.engine.logics.windows.block_log import BlockLog
from onefold.flow.time.windows import Aligned

__all__ = ["MergedSlices"]

ROWS_MIN = 1_000  # of fewer ones a merge costs more than it saves


class MergedSlices:
    """`merge` makes one row of each key of the blocks that it is given, in any order. Nodes are made when they are
    first needed, and in memory alone: after a restore, of the slices from then on."""

    def __init__(
        self, log: BlockLog, windows: Aligned, merge: Callable[[int, Sequence[pa.RecordBatch]], pa.RecordBatch]
    ) -> None:
        self._log, self._windows, self._merge = log, windows, merge
        self.restored(0)

    def restored(self, watermark_us: int) -> None:
        """The log has other blocks now."""
        self._since = watermark_us
        self._nodes: dict[tuple[int, int], list[pa.RecordBatch]] = {}  # by start and size

    def read(self, start: int, end: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        while start < end:
            size = self._windows.slice_us
            while start + 2 * size <= end and self._windows.floor(start, 2 * size) == start:
                size *= 2
            found += self._node(start, size)
            start += size
        return found

    def forget(self, slice_: int) -> None:
        """It has other rows now, or none."""
        size = self._windows.slice_us
        while (size := 2 * size) <= self._windows.size_us:
            self._nodes.pop((self._windows.floor(slice_, size), size), None)

    def _node(self, start: int, size: int) -> list[pa.RecordBatch]:
        if size == self._windows.slice_us or start < self._since or not self._log.between(start, start + size):
            return self._log.read(start, start + size)
        if (start, size) not in self._nodes:
            blocks = [*self._node(start, size // 2), *self._node(start + size // 2, size // 2)]
            rows = sum(map(len, blocks))
            if rows >= ROWS_MIN and 4 * len(merged := self._merge(start, blocks)) <= 3 * rows:
                blocks = [merged]
            self._nodes[start, size] = blocks
        return self._nodes[start, size]
