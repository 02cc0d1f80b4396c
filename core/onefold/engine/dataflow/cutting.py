"""Cuts a sequence of rows into batches of a fixed number, however they come: the same batches when they come again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import pyarrow as pa

from onefold.core.source import Part

__all__ = ["CUT_ROWS", "Cutter", "cut"]

CUT_ROWS = 4096


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
        return self._made(self._rows.take(CUT_ROWS)) if self.has_cut else None

    @property
    def has_cut(self) -> bool:
        return self._rows.count >= CUT_ROWS

    def rest(self) -> pa.RecordBatch | Part | None:
        """The next of the last batches, once all has been put; None where there is no more."""
        if self._rows.count:
            return self._made(self._rows.take(CUT_ROWS))
        if self._none is not None and self._bad.count:
            return Part(self._none.rows, self._bad.take(CUT_ROWS))
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
        self.count = 0

    def put(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self.count += batch.num_rows

    def take(self, rows: int) -> pa.RecordBatch:
        """The first so many rows, or all where there are fewer."""
        taken: list[pa.RecordBatch] = []
        left = min(rows, self.count)
        self.count -= left
        while left:
            batch = self._batches.popleft()
            if batch.num_rows > left:
                self._batches.appendleft(batch.slice(left))
                batch = batch.slice(0, left)
            taken.append(batch)
            left -= batch.num_rows
        return taken[0] if len(taken) == 1 else _joined(taken)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).unify_dictionaries()
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
