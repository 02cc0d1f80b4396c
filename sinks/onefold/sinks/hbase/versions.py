"""Which of several rows of one key a task writes: the one that is highest by the order columns, whatever came first.

Two rows of a key that are equal there must be equal in their cells too. Else the one that came last would stay, and a
replay may bring them in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord

__all__ = ["Versions", "rows_of"]

Stored = Callable[[pa.BinaryArray], Sequence[pa.BinaryArray]]

_KEY, _DELETED, _ROW = "key", "deleted", "row"


def rows_of(
    keys: pa.BinaryArray,
    deleted: pa.BooleanArray,
    orders: Sequence[pa.Array],
    cells: Sequence[pa.BinaryArray],
) -> pa.Table:
    """What `Versions` compares: columns `key`, `deleted`, `order 0`, ..., `cell 0`, ...; none of them with nulls."""
    names = [f"order {i}" for i in range(len(orders))] + [f"cell {i}" for i in range(len(cells))]
    return pa.table([keys, deleted, *orders, *cells], names=[_KEY, _DELETED, *names])


class Versions:
    """Of one attempt of one task: it remembers the keys that were written, and how high. About 40 bytes a key.

    `stored` reads the cells of keys back: they are compared where a key comes again, much later, just as high.
    """

    def __init__(self, order: Sequence[str], stored: Stored) -> None:
        self._order, self._stored = tuple(order), stored
        self._orders = [f"order {i}" for i in range(len(order))]
        self._written: pa.Table | None = None

    def newer(self, rows: pa.Table) -> pa.Table:
        """Those that are now to be written, one for each key. Raises BadRecord."""
        rows = self._newest(rows)
        known = self._written
        if known is not None:
            again = pc.is_in(known[_KEY], value_set=rows[_KEY])
            if pc.any(again).as_py():
                rows = self._above(rows, known.filter(again).combine_chunks())
                known = known.filter(pc.invert(pc.is_in(known[_KEY], value_set=rows[_KEY])))
        mine = rows.select([_KEY, _DELETED, *self._orders])
        self._written = mine if known is None else pa.concat_tables([known, mine])
        return rows

    def deleted(self) -> pa.BinaryArray:
        """The keys whose highest row is a deletion."""
        if self._written is None:
            return pa.array([], pa.binary())
        return self._written.filter(self._written[_DELETED])[_KEY].combine_chunks()

    def _newest(self, rows: pa.Table) -> pa.Table:
        """The highest of each key."""
        if pc.count_distinct(rows[_KEY]).as_py() == len(rows):
            return rows
        placed = rows.select([_KEY, *self._orders]).append_column(_ROW, pa.array(np.arange(len(rows))))
        placed = placed.sort_by([(name, "ascending") for name in placed.column_names]).combine_chunks()
        keys, place = placed[_KEY].chunk(0), placed[_ROW].chunk(0).to_numpy()
        is_last = np.append(_bools(pc.not_equal(keys[1:], keys[:-1])), True)
        run = np.cumsum(is_last) - is_last  # which key a row is of
        highest = np.flatnonzero(is_last)[run]
        is_tied = ~is_last
        for name in self._orders:
            values = placed[name].chunk(0)
            is_tied &= _bools(pc.equal(values, values.take(pa.array(highest))))
        ties = np.flatnonzero(is_tied)
        one, other = (rows.take(pa.array(place[at])) for at in (highest[ties], ties))
        cells = [name for name in rows.column_names if name not in placed.column_names]
        self._check_same(one[_KEY], [(one[name], other[name]) for name in cells])
        return rows.take(pa.array(np.sort(place[is_last]))).combine_chunks()

    def _above(self, rows: pa.Table, known: pa.Table) -> pa.Table:
        """Those rows that `known` lacks, or has lower."""
        at = pc.index_in(rows[_KEY], value_set=known[_KEY]).combine_chunks()
        is_known = at.is_valid()
        mine, theirs = rows.filter(is_known).combine_chunks(), known.take(at.drop_null()).combine_chunks()
        higher, equal = pa.array(np.zeros(len(mine), bool)), pa.array(np.ones(len(mine), bool))
        for name in self._orders:
            a, b = mine[name].chunk(0), theirs[name].chunk(0)
            higher = pc.or_(higher, pc.and_(equal, pc.greater(a, b)))
            equal = pc.and_(equal, pc.equal(a, b))
        if pc.any(equal).as_py():
            self._check_stored(mine.filter(equal), theirs.filter(equal))
        return rows.filter(pc.replace_with_mask(pc.invert(is_known), is_known, higher)).combine_chunks()

    def _check_stored(self, mine: pa.Table, theirs: pa.Table) -> None:
        """Of rows just as high as those that were written before."""
        self._check_same(mine[_KEY], [(mine[_DELETED], theirs[_DELETED])])
        living = mine.filter(pc.invert(mine[_DELETED])).combine_chunks()
        if len(living):
            cells = [name for name in living.column_names if name.startswith("cell ")]
            stored = self._stored(living[_KEY].chunk(0))
            self._check_same(living[_KEY], [(living[name], there) for name, there in zip(cells, stored, strict=True)])

    def _check_same(self, keys: pa.ChunkedArray, pairs: Sequence[tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> None:
        for mine, theirs in pairs:
            differs = pc.fill_null(pc.not_equal(mine, theirs), True)
            if not pc.any(differs).as_py():
                continue
            key = keys.filter(differs)[0].as_py()
            if self._order:
                raise BadRecord(
                    f"the row key {key!r} comes twice in one task, with equal {', '.join(self._order)} and different"
                    " cells: which of them stays would be chance. Name more columns as order=, or filter such rows"
                )
            raise BadRecord(
                f"the row key {key!r} comes twice in one task, with different cells: which of them stays would be"
                " chance. Name the columns that tell which row is newer as order=, or filter such rows"
            )


def _bools(values: pa.BooleanArray) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=bool)
