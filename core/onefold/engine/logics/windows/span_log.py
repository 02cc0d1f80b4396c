"""Rows by key and span of time as a log: rows whose spans touch become one, which has the place of all of them.

An epoch's block has the rows that changed, as they are now, so that a restore finds each as it was, and in the same
order. All that there are now are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from onefold.core.values.batches import empty_batch
from onefold.engine.logics.windows.spans import is_of_keys, joined
from onefold.engine.logics.windows.window_logic import Numbers
from onefold.engine.state.state_backend import BlockTable

__all__ = ["SpanLog"]

BLOCKS_MAX = 8  # that stay as they are


class SpanLog:
    """The rows have the start and the end of their span behind the `width` columns of the key. `rows` has one of each
    span; no two of a key touch."""

    def __init__(self, table: BlockTable, schema: pa.Schema, width: int) -> None:
        self._table, self._width = table, width
        self.rows = empty_batch(schema)
        self.restored()

    def restored(self) -> None:
        """The table has other blocks now. Rows that were dropped may be among them."""
        self._ids = self._table.ids()
        rows = pa.concat_batches([self.rows.slice(0, 0), *map(self._table.get, self._ids)])
        self._logged, numbers = len(rows), joined(rows, self._width)[1]
        newest = np.zeros(numbers.max(initial=-1) + 1, np.int64)
        np.maximum.at(newest, numbers, np.arange(len(rows)))
        self.rows = rows.take(pa.array(np.sort(newest)))

    def append(self, rows: pa.RecordBatch, merge: Callable[[pa.RecordBatch], pa.RecordBatch]) -> int:
        """Rows of an epoch. `merge` makes the row of each span, of those that touch: they have one start. Gives how
        many of `rows`, the last ones, these are."""
        near = np.flatnonzero(is_of_keys(self.rows, rows, self._width).to_numpy(zero_copy_only=False))
        both, numbers = joined(pa.concat_batches([self.rows.take(pa.array(near)), rows]), self._width)
        is_new = np.isin(numbers, numbers[len(near) :])
        new = merge(both.filter(pa.array(is_new)))
        stays = np.ones(len(self.rows), bool)
        stays[near[is_new[: len(near)]]] = False
        self.rows = pa.concat_batches([self.rows.filter(pa.array(stays)), new])
        self._put(new, self._ids[-1][1] + 1 if self._ids else 0)
        return len(new)

    def drop(self, is_done: Numbers) -> None:
        """These rows. A log that is twice as long as what is left is written anew."""
        if is_done.any():
            self.rows = self.rows.filter(pa.array(~is_done))
        is_long = len(self._ids) > BLOCKS_MAX and self._logged > 2 * len(self.rows)
        if is_long or (self._ids and not len(self.rows)):
            number = self._ids[-1][1] + 1
            for at in self._ids:
                self._table.delete(at)
            self._ids, self._logged = [], 0
            if len(self.rows):
                self._put(self.rows, number)

    def _put(self, rows: pa.RecordBatch, number: int) -> None:
        self._ids.append((0, number))
        self._logged += len(rows)
        self._table.put((0, number), rows)
