"""Rows by key and span of time as a log: rows whose spans touch become one, which has the place of all of them.

An epoch's block has the rows that changed, as they are now, so that a restore finds each as it was, and in the same
order. All that there are now are held in memory, in runs of which each has more rows than the next: so an epoch costs
what it changes, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import pyarrow as pa

from onefold.core.values.batches import empty_batch
from onefold.core.values.exact.hashes import hashes_of
from onefold.engine.logics.windows.spans import joined, newest_of
from onefold.engine.logics.windows.window_logic import Numbers, us_of
from onefold.engine.state.state_backend import BlockTable
from onefold.flow.time.clocks import END

BLOCKS_MAX = 8  # that stay as they are
SCANNED_MAX = 4_096  # rows of a run that need no index


class SpanLog:
    """The rows have the start and the end of their span behind the `width` columns of the key; no two of a key touch.
    Each has a number, its place in the log."""

    def __init__(self, table: BlockTable, schema: pa.Schema, width: int) -> None:
        self._table, self._width, self._none = table, width, empty_batch(schema)
        self.restored()

    def restored(self) -> None:
        """The table has other blocks now. Rows that were dropped may be among them."""
        self._ids = self._table.ids()
        rows = pa.concat_batches([self._none, *map(self._table.get, self._ids)])
        newest = newest_of(rows, self._width)
        self._clear(len(rows))
        self._hold(rows.take(pa.array(newest)), newest)

    @property
    def rows(self) -> pa.RecordBatch:
        """All, in the order of the log."""
        return self.ending(-END, END)[0]

    def first_end(self, start: int) -> int:
        """The earliest end of a span from `start` on; END where there is none."""
        ends = (run.ends.values[self._is_live[run.numbers]] for run in self._runs)
        return min((int(each.min(initial=END, where=each >= start)) for each in ends), default=END)

    def near(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Numbers]:
        """The rows with one of these keys, and by chance others; and their numbers, ascending."""
        hashes = np.unique(hashes_of(keys.columns[: self._width], len(keys)))
        return self._found((run, run.hashes.equal(hashes)) for run in (self._runs if len(keys) else ()))

    def ending(self, start: int, end: int) -> tuple[pa.RecordBatch, Numbers]:
        """The rows whose span ends from `start` up to, not including, `end`; and their numbers, ascending."""
        return self._found((run, run.ends.between(start, end)) for run in self._runs)

    def append(self, rows: pa.RecordBatch, merge: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.RecordBatch:
        """Rows of an epoch. `merge` makes the row of each span, of those that touch: they have one start. Gives these,
        as they are now."""
        known, numbers = self.near(rows)
        both, spans = joined(pa.concat_batches([known, rows]), self._width)
        is_changed = np.zeros(spans.max(initial=-1) + 1, bool)
        is_changed[spans[len(known) :]] = True
        is_new = is_changed[spans]
        new = merge(both if is_new.all() else both.filter(pa.array(is_new)))
        self.drop(numbers[is_new[: len(known)]])
        self._put(new, self._ids[-1][1] + 1 if self._ids else 0)
        return new

    def drop(self, numbers: Numbers) -> None:
        """These rows. A log that is twice as long as what is left is written anew."""
        self._is_live[numbers] = False
        self._count -= len(numbers)
        is_long = len(self._ids) > BLOCKS_MAX and self._logged > 2 * self._count
        if is_long or (self._ids and not self._count):
            number, rows = self._ids[-1][1] + 1, self.rows
            for at in self._ids:
                self._table.delete(at)
            self._ids = []
            self._clear(0)
            if len(rows):
                self._put(rows, number)

    def _clear(self, logged: int) -> None:
        self._logged, self._count = logged, 0
        self._is_live = np.zeros(logged, bool)  # by their numbers
        self._runs: list[_Run] = []

    def _put(self, rows: pa.RecordBatch, number: int) -> None:
        self._ids.append((0, number))
        self._table.put((0, number), rows)
        numbers = np.arange(self._logged, self._logged + len(rows))
        self._logged += len(rows)
        if self._logged > len(self._is_live):
            self._is_live = np.concatenate([self._is_live, np.zeros(self._logged, bool)])
        self._hold(rows, numbers)

    def _hold(self, rows: pa.RecordBatch, numbers: Numbers) -> None:
        self._is_live[numbers] = True
        self._count += len(rows)
        for name, values in (("$number", numbers), ("$hash", hashes_of(rows.columns[: self._width], len(rows)))):
            rows = rows.append_column(name, pa.array(values))
        while self._runs and len(self._runs[-1].rows) <= max(len(rows), SCANNED_MAX):
            run = self._runs.pop()
            is_live = self._is_live[run.numbers]
            before = run.rows if is_live.mean() > 0.75 else run.rows.filter(pa.array(is_live))
            rows = pa.concat_batches([before, rows])
        if len(rows):
            self._runs.append(_Run(rows, self._width))

    def _found(self, places: Iterable[tuple[_Run, Numbers]]) -> tuple[pa.RecordBatch, Numbers]:
        """What is there now of the rows at these places."""
        rows, numbers = [self._none], [np.zeros(0, np.int64)]
        for run, at in places:
            if len(at) and len(at := np.sort(at[self._is_live[run.numbers[at]]])):
                rows.append(run.rows.select(self._none.schema.names).take(pa.array(at)))
                numbers.append(run.numbers[at])
        return pa.concat_batches(rows), np.concatenate(numbers)


class _Run:
    """Rows in the order of their numbers, found by the hash of their key, and by the end of their span."""

    def __init__(self, rows: pa.RecordBatch, width: int) -> None:
        self.rows, self.numbers = rows, rows.column("$number").to_numpy()
        self.hashes, self.ends = _Index(rows.column("$hash").to_numpy()), _Index(us_of(rows.column(width + 1)))


class _Index:
    """The places of values: many are sorted once they are asked for."""

    def __init__(self, values: Numbers) -> None:
        self.values = values

    def between(self, start: int, end: int) -> Numbers:
        if len(self.values) <= SCANNED_MAX:
            return np.flatnonzero((self.values >= start) & (self.values < end))
        known, places = self._sorted
        return places[slice(*np.searchsorted(known, (start, end)))]

    def equal(self, values: Numbers) -> Numbers:
        """Of all that are among these, which ascend and are not none."""
        if len(self.values) <= SCANNED_MAX:
            near = np.minimum(np.searchsorted(values, self.values), len(values) - 1)
            return np.flatnonzero(values[near] == self.values)
        known, places = self._sorted
        last = np.searchsorted(known, values, "right")
        counts = last - np.searchsorted(known, values)
        return places[np.repeat(last - np.cumsum(counts), counts) + np.arange(counts.sum())]

    @cached_property
    def _sorted(self) -> tuple[Numbers, Numbers]:
        places = np.argsort(self.values)
        return self.values[places], places
