"""Picks one of several rows of a key that a task writes: the one that is highest by the order columns.

Two rows of a key with an equal order must have equal cells too. Otherwise the one that comes last would stay, and a
replay may bring them in another order. For the same reason only the picked row's cells are put: all cells have the
epoch's T, and a late request of another attempt may land after those of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord

KEY, DELETED = "key", "deleted"
_ROW = "row"

Stored = Callable[[pa.BinaryArray], Sequence[pa.BinaryArray]]


def rows_of(
    keys: pa.BinaryArray,
    deleted: pa.BooleanArray,
    orders: Sequence[pa.Array],
    cells: Sequence[pa.BinaryArray],
) -> pa.Table:
    """A table of what is compared: `key`, `deleted`, `order 0`, ..., `cell 0`, ...; no column has nulls."""
    names = [f"order {i}" for i in range(len(orders))] + [f"cell {i}" for i in range(len(cells))]
    return pa.table([keys, deleted, *orders, *cells], names=[KEY, DELETED, *names])


def newest(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The highest row of each key, in one chunk. `order` are the names of the order columns, for people.

    Raises BadRecord where rows that are equally high differ.
    """
    rows = rows.combine_chunks()
    if pc.count_distinct(rows[KEY]).as_py() == len(rows):
        return rows
    orders = [f"order {i}" for i in range(len(order))]
    placed = rows.select([KEY, *orders]).append_column(_ROW, pa.array(np.arange(len(rows))))
    placed = placed.sort_by([(name, "ascending") for name in placed.column_names]).combine_chunks()
    keys, place = placed[KEY].chunk(0), placed[_ROW].chunk(0).to_numpy()
    is_last = np.append(_bools(pc.not_equal(keys[1:], keys[:-1])), True)
    run = np.cumsum(is_last) - is_last  # which key a row is of
    highest = np.flatnonzero(is_last)[run]
    is_tied = ~is_last
    for name in orders:
        values = placed[name].chunk(0)
        is_tied &= _bools(pc.equal(values, values.take(pa.array(highest))))
    ties = np.flatnonzero(is_tied)
    one, other = (rows.take(pa.array(place[at])) for at in (highest[ties], ties))
    cells = [name for name in rows.column_names if name not in placed.column_names]
    _check_same(one[KEY], [(one[name], other[name]) for name in cells], order)
    return rows.take(pa.array(np.sort(place[is_last]))).combine_chunks()


class WrittenKeys:
    """The keys that one attempt of a task has written, where rows have no order. A key takes about 40 bytes.

    `stored` reads the cells of keys back, to compare them when a key comes again.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._written: pa.Table | None = None

    def new(self, rows: pa.Table) -> pa.Table:
        """The rows that were not written before, one for each key. Raises BadRecord where a repeat differs."""
        rows = newest(rows, ())
        known = self._written
        if known is not None:
            again = pc.is_in(known[KEY], value_set=rows[KEY])
            if pc.any(again).as_py():
                rows = self._unknown(rows, known.filter(again).combine_chunks())
        mine = rows.select([KEY, DELETED])
        self._written = mine if known is None else pa.concat_tables([known, mine])
        return rows

    def _unknown(self, rows: pa.Table, known: pa.Table) -> pa.Table:
        at = pc.index_in(rows[KEY], value_set=known[KEY])
        mine, theirs = rows.filter(at.is_valid()), known.take(at.drop_null())
        _check_same(mine[KEY], [(mine[DELETED], theirs[DELETED])], ())
        living = mine.filter(pc.invert(mine[DELETED])).combine_chunks()
        if len(living):
            stored = self._stored(living[KEY].chunk(0))
            cells = [name for name in living.column_names if name.startswith("cell ")]
            _check_same(living[KEY], [(living[name], there) for name, there in zip(cells, stored, strict=True)], ())
        return rows.filter(at.is_null()).combine_chunks()


def _check_same(
    keys: pa.ChunkedArray, pairs: Sequence[tuple[pa.ChunkedArray, pa.ChunkedArray]], order: Sequence[str]
) -> None:
    for mine, theirs in pairs:
        differs = pc.fill_null(pc.not_equal(mine, theirs), True)
        if not pc.any(differs).as_py():
            continue
        key = keys.filter(differs)[0].as_py()
        if order:
            raise BadRecord(
                "key-twice-in-task",
                f"the row key {key!r} comes twice in one task, with equal {', '.join(order)} and different cells: which"
                " of them stays would be chance. Name more columns as order=, or filter such rows",
            )
        raise BadRecord(
            "key-twice-in-task",
            f"the row key {key!r} comes twice in one task, with different cells: which of them stays would be chance."
            " Name the columns that tell which row is newer as order=, or filter such rows",
        )


def _bools(values: pa.BooleanArray) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=bool)
