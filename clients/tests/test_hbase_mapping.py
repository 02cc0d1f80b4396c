"""Row keys and mappings: what was written is read back, keys sort as their columns do, and what is odd is refused."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.clients.hbase.rows.column_encoder import NULL
from onefold.clients.hbase.rows.mapping import RowKey, TableMapping
from onefold.clients.hbase.rows.table_config import HBaseTableConfig
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.text("a\0\x01", max_size=4)
BYTES = st.binary(max_size=5) | st.lists(st.sampled_from([0, 1, 255]), max_size=4).map(bytes)
LONGS = st.integers(-(2**63), 2**63 - 1)
SCHEMA = pa.schema([("who", pa.string()), ("n", pa.int64()), ("raw", pa.binary())])
ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(10, 2)), ("note", pa.string())])
FRONTS = st.sampled_from([{}, {"salt": 16}, {"salt": 256}, {"hash": 1}, {"hash": 4}])


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
    )


@pytest.mark.parametrize("columns", ["who, n, raw", "raw, who, n", "n, raw, who", "who, raw"])
@given(rows=st.lists(st.tuples(TEXT, LONGS, BYTES), min_size=1, max_size=8), front=FRONTS, first=st.integers(0, 7))
def test_keys_of_several_columns_are_read_back(
    columns: str, rows: list[tuple[Any, ...]], front: dict[str, int], first: int
) -> None:
    key = RowKey.of(columns, **front).bound(SCHEMA)
    whole = batch(rows)
    keys = key.encode(whole)
    assert key.encode(whole[first:]).equals(keys[first:])
    found = key.decode(keys[first:])
    assert [a.to_pylist() for a in found] == [whole[first:].column(name).to_pylist() for name in key.names]


@pytest.mark.parametrize("columns", ["who, n, raw", "raw, who, n", "n, raw, who", "raw", "who"])
@given(rows=st.tuples(*2 * [st.tuples(TEXT.filter(bool), LONGS, BYTES.filter(bool))]))
def test_keys_sort_as_their_columns_do(columns: str, rows: tuple[tuple[Any, ...], ...]) -> None:
    key = RowKey.of(columns).bound(SCHEMA)
    values = [tuple(dict(zip(SCHEMA.names, row, strict=True))[name] for name in key.names) for row in rows]
    values = [tuple(v.encode() if isinstance(v, str) else v for v in row) for row in values]
    one, other = key.encode(batch(list(rows))).to_pylist()
    assert (one < other, one == other) == (values[0] < values[1], values[0] == values[1])


def test_a_key_of_one_text_is_that_text_behind_its_salt_or_hash() -> None:
    rows = batch([("anna", 1, b"")])
    assert RowKey.of("who").bound(SCHEMA).encode(rows).to_pylist() == [b"anna"]
    salted = RowKey.of("who", salt=16).bound(SCHEMA).encode(rows).to_pylist()
    assert salted == [bytes([zlib.crc32(b"anna") % 16]) + b"anna"]
    hashed = RowKey.of("who", hash=2).bound(SCHEMA).encode(rows).to_pylist()
    assert hashed == [zlib.crc32(b"anna").to_bytes(4, "big")[:2] + b"anna"]


@pytest.mark.parametrize("row", [(None, 1, b""), ("", 1, b""), ("x" * 32_768, 1, b"")], ids=["null", "empty", "long"])
def test_a_row_without_a_key_is_a_bad_record(row: tuple[Any, ...]) -> None:
    with pytest.raises(BadRecord, match="row key"):
        RowKey.of("who").bound(SCHEMA).encode(batch([("anna", 1, b""), row]))


@pytest.mark.parametrize("key", [b"anna", b"\x03anna", b"", b"an\0\0short", b"an\0\0" + b"\x80" * 9])
def test_a_row_that_another_key_wrote_is_a_bad_record(key: bytes) -> None:
    with pytest.raises(BadRecord):
        RowKey.of("who, n", salt=16).bound(SCHEMA).decode(pa.array([key], pa.binary()))


def test_a_salt_that_was_changed_is_seen_in_the_rows() -> None:
    keys = RowKey.of("who", salt=16).bound(SCHEMA).encode(batch([(f"k{i}", i, b"") for i in range(50)]))
    with raises(BadRecord, "row-key-mismatch", "salt=32"):
        RowKey.of("who", salt=32).bound(SCHEMA).decode(keys)


def test_new_tables_are_cut_between_salts_and_hashes() -> None:
    assert RowKey.of("id", salt=16).split_keys(4) == [b"\x04", b"\x08", b"\x0c"]
    assert RowKey.of("id", hash=2).split_keys(4) == [b"\x40\0", b"\x80\0", b"\xc0\0"]
    assert RowKey.of("id", hash=1).split_keys(1) == []
    for key, regions in ((RowKey.of("id"), 4), (RowKey.of("id", salt=4), 5), (RowKey.of("id", hash=1), 257)):
        with pytest.raises(ConfigError):
            key.split_keys(regions)


@given(
    rows=st.lists(st.tuples(LONGS, st.none() | st.decimals(-(10**6), 10**6, places=2), st.none() | TEXT), max_size=8),
    front=FRONTS,
)
def test_rows_come_back_from_their_keys_and_cells(rows: list[tuple[Any, ...]], front: dict[str, int]) -> None:
    mapping = TableMapping.of("orders", RowKey.of("id", **front), {"amount": "f:amount decimal(12,2)"}, family="g")
    bound = mapping.bound(ORDERS)
    given_rows = batch(rows, ORDERS)
    keys, cells = bound.keys(given_rows), bound.cells(given_rows)
    assert [(c.family, c.qualifier) for c in cells] == bound.cell_columns == [(b"f", b"amount"), (b"g", b"note")]
    assert bound.decode(keys, [c.values for c in cells]).to_pylist() == given_rows.to_pylist()
    assert bound.schema.field("amount").type == pa.decimal128(12, 2)


def test_a_cell_that_is_not_there_is_null() -> None:
    mapping = TableMapping.of("orders", "id", family="f").bound(ORDERS)
    keys = mapping.keys(batch([(1, None, "a"), (2, None, "b")], ORDERS))
    rows = mapping.decode(keys, [pa.nulls(2, pa.binary()), pa.array([None, b"b"], pa.binary())])
    assert rows.to_pylist() == [{"id": 1, "amount": None, "note": None}, {"id": 2, "amount": None, "note": "b"}]


def test_deleted_rows_have_a_mark_and_nothing_but_nulls() -> None:
    mapping = TableMapping.of("orders", "id", family="f", tombstone_column="f:_deleted").bound(ORDERS)
    rows = batch([(1, None, "a"), (2, None, "b"), (3, None, "c")], ORDERS)
    *values, marks = mapping.cells(rows, pa.array([True, False, None]))
    assert [c.values.to_pylist() for c in values] == [[NULL, NULL, NULL], [NULL, b"b", b"c"]]
    assert (marks.qualifier, mapping.living(marks.values).to_pylist()) == (b"_deleted", [False, True, True])
    assert mapping.living(mapping.cells(rows)[-1].values).to_pylist() == [True, True, True]
    assert mapping.living(pa.nulls(1, pa.binary())).to_pylist() == [True]


def test_columns_that_are_not_written_are_left_out() -> None:
    mapping = TableMapping.of("orders", "id", family="f").bound(ORDERS, without=["note"])
    assert mapping.schema.names == ["id", "amount"]


def test_a_reader_may_ask_for_some_columns_as_its_own_types() -> None:
    mapping = TableMapping.of("orders", "id integer", {"amount": "f:a decimal(12,2)", "n": "f:n integer"}, family="f")
    assert mapping.reading().schema.names == ["id", "amount", "n"]
    some = mapping.reading(pa.schema([("note", pa.string()), ("n", pa.int16())]))
    assert some.schema == pa.schema([("id", pa.int64()), ("note", pa.string()), ("n", pa.int16())])
    with raises(ConfigError, "schema-missing", "'x'"):
        TableMapping.of("orders", "id integer", {"x": "f:x"}).reading()
    with raises(SchemaMismatch, "column-missing", "'id'"):
        TableMapping.of("orders", "id", {"x": "f:x"}).reading(pa.schema([("x", pa.string())]))


@pytest.mark.parametrize("columns", [{"odd": "f:a\\x20b\\x00 string", "amount": "g:a decimal(12, 2)", "n": "f:"}, None])
def test_a_mapping_survives_its_options_and_pickling(columns: dict[str, str] | None) -> None:
    key = RowKey.of("who string, amount_of decimal(5,1)", salt=8)
    mapping = TableMapping.of("shop:orders", key, columns, family="f", tombstone_column="f:_gone")
    assert HBaseTableConfig("h:1", **mapping.options()).mapping == mapping
    assert pickle.loads(pickle.dumps(mapping)) == mapping


def test_columns_may_be_listed_in_one_text() -> None:
    listed = TableMapping.of("t", "id", "amount = f:amount decimal(12,2), note=f:note")
    assert listed == TableMapping.of("t", "id", {"amount": "f:amount decimal(12,2)", "note": "f:note"})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("a table", "id"), "option-value"),
        (("my-shop:orders", "id"), "option-value"),
        (("t", ""), "option-value"),
        (("t", "id, id"), "option-value"),
        (("t", "x double"), "option-value"),
        (("t", "id", {"id": "f:id"}), "column-mapped-twice"),
        (("t", "id", {"a": "f:x", "b": "f:x"}), "column-mapped-twice"),
        (("t", "id", {"a": "x"}), "option-value"),
        (("t", "id", {"a": "f:x number"}), "option-value"),
        (("t", "id", {"a": ".f:x"}), "option-value"),
        (("t", "id", "a f:x"), "option-value"),
        (("t", "id", '{"a": 1}'), "option-value"),
        (("t", "id", "{"), "option-value"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], code: str) -> None:
    with raises(ConfigError, code):
        TableMapping.of(*arguments)


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        (TableMapping.of("t", "order", family="f"), "column-missing"),
        (TableMapping.of("t", "id", {"total": "f:t"}, family="f"), "column-missing"),
        (TableMapping.of("t", "id", {"note": "f:n"}), "column-not-mapped"),
        (TableMapping.of("t", "id, amount, note"), "no-value-column"),
    ],
)
def test_rows_that_do_not_fit_are_refused(mapping: TableMapping, code: str) -> None:
    with raises(SchemaMismatch, code):
        mapping.bound(ORDERS)
