"""Encodings: each value comes back, whatever it is, and byte order is the values' order."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.clients.hbase.rows.buffers import crc32, sliced
from onefold.clients.hbase.rows.column_encoder import NULL, CellColumn, KeyColumn
from onefold.clients.hbase.rows.encodings import encode, parsed
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LONGS = st.integers(-(2**63), 2**63 - 1)
US = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
DAYS = st.integers(-719_162, 2_932_896)
DECIMALS = st.decimals(-(10**18), 10**18, places=3, allow_nan=False)

DATES = st.datetimes(timezones=st.just(dt.UTC))
NESTED = pa.struct(
    [("a", pa.string()), ("b", pa.list_(pa.struct([("d", pa.float64())]))), ("c", pa.list_(pa.date32()))]
)

# (encoding, type) and the values: as Python's where it has the type, as integers for times.
KINDS: dict[tuple[str, pa.DataType], st.SearchStrategy[Any]] = {
    ("bytes", pa.binary()): st.binary(max_size=6).filter(lambda value: value != NULL),
    ("string", pa.string()): TEXT,
    ("string", pa.int64()): LONGS,
    ("string", pa.float64()): st.floats(),
    ("string", pa.decimal128(22, 3)): DECIMALS,
    ("string", pa.bool_()): st.booleans(),
    ("string", pa.date32()): DAYS,
    ("string", pa.timestamp("us", "Europe/Berlin")): US,
    ("string", pa.timestamp("us")): US,
    ("integer", pa.int64()): LONGS,
    ("integer", pa.int8()): st.integers(-128, 127),
    ("integer", pa.uint64()): st.integers(0, 2**63 - 1),
    ("long", pa.int64()): LONGS,
    ("decimal", pa.decimal128(22, 3)): DECIMALS,
    ("double", pa.float64()): st.floats(),
    ("double", pa.float32()): st.floats(width=32),
    ("boolean", pa.bool_()): st.booleans(),
    ("timestamp", pa.timestamp("us", "UTC")): LONGS,
    ("timestamp", pa.timestamp("s")): st.integers(-(2**40), 2**40),
    ("date", pa.date32()): st.integers(-(2**31), 2**31 - 1),
    ("json", pa.list_(pa.decimal128(22, 3))): st.lists(st.none() | DECIMALS, max_size=3),
    ("json", pa.list_(pa.timestamp("us", "UTC"))): st.lists(DATES, max_size=3),
    ("json", pa.list_(pa.uint64())): st.lists(st.integers(0, 2**64 - 1), max_size=3),
    ("json", NESTED): st.fixed_dictionaries(
        {
            "a": st.none() | TEXT,
            "b": st.none() | st.lists(st.fixed_dictionaries({"d": st.floats(allow_nan=False, allow_infinity=False)})),
            "c": st.none() | st.lists(st.none() | st.dates(), max_size=2),
        }
    ),
}
FEWER = settings(max_examples=settings().max_examples // 4)  # of each pair
ORDERED = [(e, k) for e, k in KINDS if e not in ("long", "string", "json") or k == pa.string()]


def named(pair: tuple[str, pa.DataType]) -> str:
    return f"{pair[0]}-{pair[1]}"


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def shown(rows: pa.Array) -> str:
    """Python has no dates outside of the years 1 to 9999."""
    number = {pa.date32(): pa.int32()}.get(rows.type, pa.int64() if pa.types.is_timestamp(rows.type) else rows.type)
    return str(rows.cast(number).to_pylist())


@pytest.mark.parametrize("pair", KINDS, ids=named)
@FEWER
@given(data=st.data())
def test_every_value_and_null_comes_back_also_from_a_slice(pair: tuple[str, pa.DataType], data: st.DataObject) -> None:
    encoding, kind = pair
    values = data.draw(st.lists(st.none() | KINDS[pair], max_size=8))
    first = data.draw(st.integers(0, len(values)))
    column = CellColumn("c", encoding, kind if encoding == "decimal" else None, b"f", b"c").bound(kind)
    rows = array(values, kind)
    cells = column.encode(rows)
    assert cells.null_count == 0
    again = column.decode(cells.slice(first))
    assert again.type == kind
    # Not by value: NaN is not equal to itself, and 0.0 is equal to -0.0.
    assert column.encode(again).equals(cells.slice(first)) and column.encode(rows.slice(first)).equals(cells[first:])
    assert shown(again) == shown(rows.slice(first))


@pytest.mark.parametrize("pair", ORDERED, ids=named)
@FEWER
@given(data=st.data())
def test_byte_order_is_the_order_of_the_values(pair: tuple[str, pa.DataType], data: st.DataObject) -> None:
    encoding, kind = pair
    one, other = data.draw(st.tuples(KINDS[pair], KINDS[pair]))
    if one != one or other != other:
        return
    low, high = encode(array([one, other], kind), encoding, kind).to_pylist()
    if one < other:
        assert low < high
    elif one > other:
        assert low > high


def test_the_bytes_are_what_other_programs_expect() -> None:
    def of(values: list[Any], encoding: str, kind: pa.DataType) -> list[bytes]:
        found: list[bytes] = encode(array(values, kind), encoding, kind).to_pylist()
        return found

    assert of([1, -1], "long", pa.int64()) == [struct.pack(">q", 1), struct.pack(">q", -1)]
    assert of([1, -1], "integer", pa.int64()) == [b"\x80" + b"\0" * 6 + b"\x01", b"\x7f" + b"\xff" * 7]
    assert of([True, False], "boolean", pa.bool_()) == [b"\xff", b"\x00"]
    assert of([decimal.Decimal("-0.01")], "decimal", pa.decimal128(5, 2)) == [b"\x7f" + b"\xff" * 15]
    assert of([1], "timestamp", pa.timestamp("s")) == [(2**63 + 1_000_000).to_bytes(8, "big")]
    assert of([0], "date", pa.date32()) == [b"\x80\0\0\0"]
    assert of([float("nan"), 0.0], "double", pa.float64()) == [b"\xff\xf8" + b"\0" * 6, b"\x80" + b"\0" * 7]


def test_nested_values_are_written_as_json() -> None:
    kind = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])
    column = CellColumn("doc", family=b"f", qualifier=b"doc").bound(kind)
    cells = column.encode(pa.array([{"a": [1, None], "b": "x"}, None], kind))
    assert cells.to_pylist() == [b'{"a":[1,null],"b":"x"}', NULL]
    assert column.decode(cells).to_pylist() == [{"a": [1, None], "b": "x"}, None]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.binary())], ids=str)
def test_what_json_has_no_word_for_comes_back_as_its_text(kind: pa.DataType) -> None:
    column = CellColumn("doc", family=b"f", qualifier=b"doc").bound(kind)
    assert column.kind == pa.string()
    (text,) = column.decode(column.encode(pa.array([[("k", 1)] if pa.types.is_map(kind) else [b"k"]], kind)))
    assert text.as_py() in ('{"k":1}', '["aw=="]')


def test_a_value_that_reads_as_null_is_refused() -> None:
    column = CellColumn("raw", family=b"f", qualifier=b"raw").bound(pa.binary())
    with raises(BadRecord, "value-reserved"):
        column.encode(pa.array([b"fine", NULL]))


@pytest.mark.parametrize(
    ("encoding", "cell", "kind"),
    [
        ("integer", b"12", pa.int64()),
        ("integer", (2**63 + 300).to_bytes(8, "big"), pa.int8()),
        ("string", b"\xff\xfe", pa.string()),
        ("string", b"twelve", pa.int64()),
        ("boolean", b"\x01", pa.bool_()),
        ("double", b"\xbf\xf0\0\0\0\0\0\x01", pa.float32()),
        ("decimal", b"\xff" * 16, pa.decimal128(5, 2)),
        ("string", b"532905379348671959597860.777210", pa.decimal128(38, 18)),
        ("string", b"1e-999999999", pa.decimal128(38, 18)),
        ("string", b"0xFFFFFFFF", pa.int32()),
        ("json", b"[10000000000000000000000]", pa.list_(pa.decimal128(38, 18))),
        ("json", b'["1e-999999999"]', pa.list_(pa.decimal128(38, 18))),
        ("json", b"[NaN]", pa.list_(pa.float64())),
    ],
)
def test_a_cell_that_is_no_such_value_is_a_bad_record(encoding: str, cell: bytes, kind: pa.DataType) -> None:
    column = CellColumn("c", encoding, kind, b"f", b"c")
    with raises(BadRecord, "cell-not-decodable", "'c'"):
        column.decode(pa.array([NULL, cell]))


@pytest.mark.parametrize(
    ("encoding", "value", "kind", "there"),
    [
        ("integer", 2**63, pa.uint64(), pa.uint64()),
        ("decimal", decimal.Decimal("123456.78"), pa.decimal128(5, 2), pa.decimal128(8, 2)),
        ("timestamp", 1, pa.timestamp("ns"), pa.timestamp("ns")),
        ("string", 2**60, pa.timestamp("us"), pa.timestamp("us")),
        ("json", [float("nan")], pa.string(), pa.list_(pa.float64())),
    ],
)
def test_a_value_without_exact_bytes_is_a_bad_record(
    encoding: str, value: Any, kind: pa.DataType, there: pa.DataType
) -> None:
    with raises(BadRecord, "value-not-encodable", "'c'"):
        KeyColumn("c", encoding, kind).encode(pa.array([value], there))


def test_a_type_that_does_not_fit_its_encoding_is_refused_when_the_rows_are_known() -> None:
    with raises(SchemaMismatch, "column-type"):
        KeyColumn("c", "integer").bound(pa.string())
    with raises(SchemaMismatch, "column-type"):
        KeyColumn("c").bound(pa.month_day_nano_interval())


@pytest.mark.parametrize("text", ["number", "integer(8)", "decimal(3,4)", "decimal(39,0)", "decimal(0,0)", "decimal(5"])
def test_an_encoding_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parsed(text)


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(0, 10))
def test_the_checksum_is_zlibs_of_each_value(values: list[bytes], first: int) -> None:
    rows = pa.array(values, pa.binary())[first:]
    assert crc32(rows).tolist() == [zlib.crc32(value) for value in rows.to_pylist()]


@given(st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 9), st.integers(0, 9)), max_size=8), st.integers(0, 8))
def test_each_value_is_cut_at_its_own_places(rows: list[tuple[bytes, int, int]], first: int) -> None:
    cut = [(v, min(a, b, len(v)), min(max(a, b), len(v))) for v, a, b in rows][first:]
    values = pa.array([v for v, *_ in rows], pa.binary())[first:]
    starts, ends = (np.array([c[i] for c in cut], dtype=np.int64) for i in (1, 2))
    assert sliced(values, starts, ends).to_pylist() == [v[a:b] for v, a, b in cut]


# Types that stand for one another in what the ledger of a sink says, by encoding, narrowest first.
ALIKE: list[tuple[str, list[pa.DataType]]] = [
    ("integer", [pa.int8(), pa.int32(), pa.int64()]),
    ("long", [pa.uint16(), pa.int32(), pa.int64()]),
    ("double", [pa.float32(), pa.float64()]),
    ("decimal", [pa.decimal128(9, 3), pa.decimal128(38, 3)]),
    ("timestamp", [pa.timestamp("s"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")]),
    ("string", [pa.int8(), pa.int64()]),
    ("string", [pa.decimal128(9, 3), pa.decimal128(38, 3)]),
    ("string", [pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("ms", "UTC")]),
    ("string", [pa.string(), pa.large_string()]),
    ("json", [pa.list_(pa.int8()), pa.list_(pa.field("element", pa.int64()))]),
]


@pytest.mark.parametrize(("encoding", "kinds"), ALIKE, ids=str)
def test_what_is_kept_of_types_is_the_same_where_a_narrow_ones_bytes_are_the_wide_ones(
    encoding: str, kinds: list[pa.DataType]
) -> None:
    number = decimal.Decimal("1.5") if pa.types.is_decimal(kinds[0]) else 100
    values = (
        [[1, 2], None] if encoding == "json" else [str(number), None] if kinds[0] == pa.string() else [number, None]
    )
    narrowest = pa.array(values, kinds[0])
    columns = [KeyColumn("c", encoding).bound(kind) for kind in kinds]
    assert len({column.kept for column in columns}) == 1
    wide = narrowest.cast(kinds[-1])
    for column, kind in zip(columns, kinds, strict=True):
        narrow = narrowest.cast(kind)
        assert column.encode(narrow) == columns[-1].encode(wide)
        assert columns[-1].decode(column.encode(narrow)).cast(kinds[-1]) == wide
        assert column.decode(columns[-1].encode(wide)).cast(kind) == narrow


def test_what_is_kept_of_types_differs_where_their_bytes_do() -> None:
    kinds = [
        ("string", pa.string()),
        ("string", pa.int64()),
        ("string", pa.float32()),
        ("string", pa.float64()),
        ("string", pa.date32()),
        ("string", pa.timestamp("s")),
        ("string", pa.timestamp("ms")),
        ("string", pa.timestamp("ms", "UTC")),
        ("string", pa.decimal128(9, 1)),
        ("string", pa.decimal128(9, 2)),
        ("decimal", pa.decimal128(9, 1)),
        ("decimal", pa.decimal128(9, 2)),
        ("json", pa.string()),
        ("json", pa.list_(pa.int64())),
        ("json", pa.list_(pa.string())),
        ("json", pa.struct([("a", pa.int64())])),
        ("json", pa.struct([("b", pa.int64())])),
        *((encoding, pa.int64()) for encoding in ("integer", "long")),
        *((KeyColumn("c").bound(kind).encoding or "", kind) for kind in (pa.float64(), pa.date32(), pa.bool_())),
    ]
    assert len({KeyColumn("c", encoding).bound(kind).kept for encoding, kind in kinds}) == len(kinds)
