"""Cuts a sequence of rows into batches, however they come: the same batches when they come again.

A batch has a fixed number of rows, or fewer where these alone are large. How large they are depends on their values,
and not on the buffers in which they come; these say at least where no batch can be too large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from onefold.core.source import Part
from onefold.core.values.exact.row_sizes import row_bytes

CUT_ROWS = 4096
CUT_BYTES = 32 << 20  # a batch ends with the row with which it comes to so many


class Cutter:
    """Of one sequence: record batches, or parts of a source, whose bad records come behind all of its rows."""

    def __init__(self) -> None:
        self._rows, self._bad = _Cuts(), _Cuts()
        self._none: Part | None = None  # a part without rows and bad records, where parts come

    def put(self, item: pa.RecordBatch | Part) -> None:
        if isinstance(item, pa.RecordBatch):
            self._rows.put(item)
        else:
            self._none = self._none or Part(item.rows.slice(0, 0), item.bad.slice(0, 0))
            self._rows.put(item.rows)
            self._bad.put(item.bad)

    def take(self) -> pa.RecordBatch | Part | None:
        """The next batch; None until there are rows enough."""
        return self._made(self._rows.take()) if self.has_cut else None

    @property
    def has_cut(self) -> bool:
        return self._rows.is_ready

    def rest(self) -> pa.RecordBatch | Part | None:
        """The next of the last batches, once all has been put; None where there is no more."""
        if self._rows.count:
            return self._made(self._rows.take())
        if self._none is not None and self._bad.count:
            return Part(self._none.rows, self._bad.take())
        return None

    def _made(self, rows: pa.RecordBatch) -> pa.RecordBatch | Part:
        return rows if self._none is None else Part(rows, self._none.bad)


def cut(items: Iterable[pa.RecordBatch | Part]) -> Iterator[pa.RecordBatch | Part]:
    """The items of a whole sequence, cut."""
    cutter = Cutter()
    for item in items:
        cutter.put(item)
        while (made := cutter.take()) is not None:
            yield made
    while (made := cutter.rest()) is not None:
        yield made


class _Cuts:
    def __init__(self) -> None:
        self._batches: deque[pa.RecordBatch] = deque()
        self._ready = 0  # rows of the next batch, once that is known
        self._bytes = 0  # no fewer than the rows have
        self.count = 0

    def put(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self.count += batch.num_rows
            self._bytes += batch.nbytes
            self._ready = self._ready or self._next()

    @property
    def is_ready(self) -> bool:
        return self._ready > 0

    def take(self) -> pa.RecordBatch:
        """The next batch, of all rows where it is not ready yet."""
        taken: list[pa.RecordBatch] = []
        left = self._ready or self.count
        self.count -= left
        while left:
            batch = self._batches.popleft()
            if batch.num_rows > left:
                self._batches.appendleft(batch.slice(left))
                batch = batch.slice(0, left)
            taken.append(batch)
            left -= batch.num_rows
        self._ready = self._next()
        return taken[0] if len(taken) == 1 else _joined(taken)

    def _next(self) -> int:
        """How many rows the next batch has; 0 while more may come into it."""
        if self._bytes >= CUT_BYTES:  # of rows that were taken, too
            self._bytes = sum(batch.nbytes for batch in self._batches)
        if self._bytes >= CUT_BYTES:
            ends = np.cumsum(np.concatenate([*map(row_bytes, self._first())]))
            if ends[-1] >= CUT_BYTES:
                return int(np.searchsorted(ends, CUT_BYTES)) + 1
            if self.count < CUT_ROWS:
                self._bytes = int(ends[-1])
        return CUT_ROWS if self.count >= CUT_ROWS else 0

    def _first(self) -> Iterator[pa.RecordBatch]:
        """No more rows than one batch has."""
        left = CUT_ROWS
        for batch in self._batches:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).unify_dictionaries()
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
