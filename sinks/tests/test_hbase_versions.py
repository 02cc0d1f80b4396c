"""Which of several rows of a key an HBase task writes."""

from __future__ import annotations

import pyarrow as pa
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import BadRecord
from onefold.sinks.hbase.deduplicate import WrittenKeys, newest, rows_of

Row = tuple[str, int, int, bool, str]  # key, two orders, deleted, cell

rows = st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 1), st.booleans(), st.sampled_from("xy"))
batches = st.lists(st.lists(rows, min_size=1, max_size=6), max_size=5)


def table(batch: list[Row], orders: int) -> pa.Table:
    columns = list(zip(*batch, strict=True)) or [()] * 5
    return rows_of(
        pa.array([key.encode() for key in columns[0]], pa.binary()),
        pa.array(columns[3], pa.bool_()),
        [pa.array(column, pa.int64()) for column in columns[1 : 1 + orders]],
        [pa.array([b"\xff" if r[3] else r[4].encode() for r in batch], pa.binary())],
    )


class Store:
    """What a task has put, by key."""

    def __init__(self) -> None:
        self.cells: dict[bytes, tuple[bool, bytes]] = {}

    def stored(self, keys: pa.BinaryArray) -> list[pa.BinaryArray]:
        return [pa.array([self.cells[key][1] for key in keys.to_pylist()], pa.binary())]

    def put(self, rows: pa.Table) -> None:
        for key, gone, cell in zip(*(rows[name].to_pylist() for name in ("key", "deleted", "cell 0")), strict=True):
            assert key not in self.cells, "each key is put once"
            self.cells[key] = (gone, cell)


def said(row: Row) -> tuple[bool, str]:
    return row[3], "" if row[3] else row[4]


def clashes(everything: list[Row], orders: int) -> bool:
    return any(
        (a[0], *a[1 : 1 + orders]) == (b[0], *b[1 : 1 + orders]) and said(a) != said(b)
        for a in everything
        for b in everything
    )


@given(batches, st.integers(1, 2))
def test_the_highest_row_of_a_key_stays_however_the_rows_were_cut_and_ties_that_differ_are_refused(
    given_batches: list[list[Row]], orders: int
) -> None:
    everything = [row for batch in given_batches for row in batch]
    held, store = table([], orders), Store()
    try:
        for batch in given_batches:
            held = newest(pa.concat_tables([held, table(batch, orders)]), ["n", "m"][:orders])
    except BadRecord:
        assert clashes(everything, orders)
        return
    store.put(held)
    highest = {}
    for key in {row[0] for row in everything}:
        tops = [row for row in everything if row[0] == key]
        top = max(row[1 : 1 + orders] for row in tops)
        (only,) = {said(row) for row in tops if row[1 : 1 + orders] == top}
        highest[key.encode()] = only
    assert {key: (gone, "" if gone else cell.decode()) for key, (gone, cell) in store.cells.items()} == highest


@given(batches)
def test_without_an_order_each_key_is_put_once_and_what_comes_again_is_the_same_or_refused(
    given_batches: list[list[Row]],
) -> None:
    everything, store = [row for batch in given_batches for row in batch], Store()
    repeats = WrittenKeys(store.stored)
    try:
        for batch in given_batches:
            store.put(repeats.new(table(batch, 0)))
    except BadRecord:
        assert clashes(everything, 0)
        return
    assert not clashes(everything, 0)
    assert store.cells.keys() == {row[0].encode() for row in everything}


def test_texts_are_ordered_by_their_bytes_and_the_error_names_the_key() -> None:
    keys, cells = pa.array([b"k", b"k", b"k"]), pa.array([b"1", b"2", b"3"])
    alive = pa.array([False] * 3)
    kept = newest(rows_of(keys, alive, [pa.array(["a", "ä", "Z"])], [cells]), ["n"])
    assert kept["cell 0"].to_pylist() == [b"2"]
    with raises(BadRecord, "key-twice-in-task", "'k'"):
        newest(rows_of(keys, alive, [pa.array(["a", "ä", "ä"])], [cells]), ["n"])
