"""Every type and values that are almost right: the value itself, or an error that names it; the same by each way."""

from __future__ import annotations

import datetime as dt
import enum
import math
import subprocess
import sys
from collections import namedtuple
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from onefold.core.values.exact import Mismatch, canonical, exact_array, exact_cast

UTC = dt.UTC
EASTERN = dt.timezone(dt.timedelta(hours=-5))
BERLIN = ZoneInfo("Europe/Berlin")
PAIR = namedtuple("PAIR", "a b")


class Words(str):
    pass


class Color(enum.IntEnum):
    RED = 3


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


STRUCT = pa.struct([("a", pa.int64()), pa.field("b", pa.string(), nullable=False)])
KINDS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "long": pa.int64(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(38,18)": pa.decimal128(38, 18),
    "decimal(76,0)": pa.decimal256(76, 0),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "binary(3)": pa.binary(3),
    "date": pa.date32(),
    "time_us": pa.time64("us"),
    "time_s": pa.time32("s"),
    "duration": pa.duration("us"),
    "duration_ns": pa.duration("ns"),
    "zoned": pa.timestamp("us", "UTC"),
    "zoned_s": pa.timestamp("s", "Europe/Berlin"),
    "zoned_ns": pa.timestamp("ns", "UTC"),
    "naive": pa.timestamp("us"),
    "naive_ms": pa.timestamp("ms"),
    "longs": pa.list_(pa.int64()),
    "two longs": pa.list_(pa.int64(), 2),
    "large_longs": pa.large_list(pa.float64()),
    "struct": STRUCT,
    "structs": pa.list_(STRUCT),
    "map": pa.map_(pa.string(), pa.int64()),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "null": pa.null(),
    "arrays NOT NULL": pa.list_(pa.field("item", pa.list_(pa.int64()), nullable=False)),
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 127, 128, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(10**40, 10**100, Color.RED, 1.0, 1.7, 0.1, -0.0, 1e300, math.inf, math.nan),
    *map(Decimal, ("1", "1.00", "0.10", "0.105", "1.5", "1E+2", "-0", "0E-100", "1E-40", "1E+22", "1E-100", "1E+400")),
    *map(Decimal, ("NaN", "sNaN", "Infinity", "9999999999.99", "99999999999", "1E-999999999", "1E+999999999")),
    *("", "a", "ü", "\ud800", Words("b"), "1", "abc", b"", b"abc", b"\xff", b"a\x00"),
    *(bytearray(b"xyz"), memoryview(b"m")),
    *(dt.date(2026, 1, 2), dt.date(9999, 12, 31), dt.date(1, 1, 1)),
    *(dt.datetime(2026, 1, 2), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2026, 1, 2, 3, 4, 5, 678901)),
    *(dt.datetime(2026, 1, 2, tzinfo=zone) for zone in (UTC, EASTERN, BERLIN, ZoneInfo("UTC"))),
    *(dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)),
    *(dt.datetime(1, 1, 1, tzinfo=BERLIN), dt.datetime(9999, 12, 31, 23, tzinfo=EASTERN), dt.datetime(1500, 1, 1)),
    dt.datetime(2026, 1, 2, fold=1),
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(microseconds=5))),
    *(dt.time(1, 2, 3), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, tzinfo=UTC)),
    *(dt.timedelta(days=1), dt.timedelta(microseconds=1), dt.timedelta(days=200_000), dt.timedelta.max),
    *([], [1, 2], (1, None), [1.7], [1, 2.0], [1, True], {1, 2}, [2**53 + 1, 0.5], [[1]], range(2)),
    [np.array([1, 2]), [3]],
    *({"a": 1, "b": "x"}, {"b": "x"}, {"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": "x", "c": None}),
    {"a": 1.7, "b": "x"},
    *((1, "x"), (1, "x", 2), PAIR(1, "x"), [{"a": 1, "b": "x"}, None], [{"b": "x"}, {"a": 1.7, "b": "x"}], {}),
    *([("a", 1)], [("a", 1), ("a", 2)], [(None, 1)], {"a": 1.7}, {1: 1}, {None: 1}, {"k": None}),
    *(np.int64(3), np.float64(1.5), np.float32(0.1), np.bool_(True), np.str_("n"), np.array([1, 2]), np.array([1.5])),
    *(np.datetime64("2026-01-02T00:00:00.000000001"), np.datetime64("2026-01-02", "s")),
    np.timedelta64(1, "s"),
    *(pa.scalar(3), pa.scalar("s"), pa.scalar(None), object(), Odd()),
]  # fmt: skip


def outcome(call: Any) -> Any:
    """What it gives, or Mismatch."""
    try:
        return call()
    except Mismatch:
        return Mismatch


def plainly(value: Any) -> Any:
    """A value that is equal only to one of the same class and the same form, whose lists of pairs are maps."""
    if isinstance(value, dict):
        return "dict", [(plainly(name), plainly(each)) for name, each in value.items()]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return "dict", [(plainly(name), plainly(each)) for name, each in value]
    if isinstance(value, list):
        return "list", list(map(plainly, value))
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return "at", value.astimezone(UTC)
    if isinstance(value, dt.datetime | dt.timedelta):  # nanoseconds come back as pandas' classes
        return value
    return type(value), repr(value)


def same(one: Any, other: Any) -> bool:
    return one is other or (Mismatch not in (one, other) and plainly(one) == plainly(other)) or one == other == {}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_value_alone_among_others_and_in_a_list_has_one_outcome(kind: pa.DataType) -> None:
    convert = canonical(kind)
    right = [
        found for found in (outcome(lambda value=value: convert(value)) for value in VALUES) if found is not Mismatch
    ]
    for value in VALUES:
        found = outcome(lambda value=value: convert(value))
        alone = outcome(lambda value=value: exact_array([value], kind).to_pylist()[0])
        beside = outcome(lambda value=value: exact_array([*right, value], kind).to_pylist()[-1])
        nested = outcome(lambda value=value: exact_array([[value]], pa.list_(kind)).to_pylist()[0][0])
        if found == [] or found == {}:
            found = alone = [] if pa.types.is_map(kind) else alone
        assert same(found, alone), (value, found, alone)
        assert same(alone, beside), (value, alone, beside)
        assert same(alone, nested), (value, alone, nested)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_form_is_its_own_form(kind: pa.DataType) -> None:
    convert = canonical(kind)
    for value in VALUES:
        found = outcome(lambda value=value: convert(value))
        if found is not Mismatch:
            assert plainly(convert(found)) == plainly(found)


TAKEN = [
    ("long", Color.RED, 3),
    ("long", Decimal("1.00"), 1),
    ("long", np.int64(3), 3),
    ("uint64", 2**63, 2**63),
    ("double", 2**53, 2.0**53),
    ("float", 0.1, np.float32(0.1).item()),
    ("decimal(12,2)", 1, Decimal("1.00")),
    ("decimal(12,2)", Decimal("0.1"), Decimal("0.10")),
    ("decimal(12,2)", Decimal("-0"), Decimal("0.00")),
    ("string", b"abc", "abc"),
    ("string", Words("b"), "b"),
    ("binary", "ü", b"\xc3\xbc"),
    ("date", dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    ("naive", dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("naive", dt.datetime(2026, 1, 2, fold=1), dt.datetime(2026, 1, 2)),
    ("zoned", dt.datetime(2026, 1, 2, tzinfo=EASTERN), dt.datetime(2026, 1, 2, 5, tzinfo=UTC)),
    ("zoned", dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), dt.datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    (
        "zoned",
        dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(microseconds=5))),
        dt.datetime(2026, 1, 1, 23, 59, 59, 999995, UTC),
    ),
    ("longs", (1, None), [1, None]),
    ("struct", {"b": "x"}, {"a": None, "b": "x"}),
    ("struct", PAIR(1, "x"), {"a": 1, "b": "x"}),
    ("map", [("a", 1)], [("a", 1)]),
    ("map", {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("name", "value", "form"), TAKEN)
def test_a_value_that_a_type_takes_has_this_form(name: str, value: Any, form: Any) -> None:
    found = canonical(KINDS[name])(value)
    assert plainly(found) == plainly(form)
    assert getattr(found, "fold", 0) == 0


REFUSED = [
    ("boolean", 1),
    ("long", 1.7),
    ("long", 1.0),
    ("long", True),
    ("long", 2**63),
    ("long", Decimal("1.7")),
    ("long", math.nan),
    ("double", 2**53 + 1),
    ("double", Decimal("1.5")),
    ("float", 1e300),
    ("decimal(12,2)", Decimal("0.105")),
    ("decimal(12,2)", 1.5),
    ("decimal(12,2)", Decimal("1E-999999999")),
    ("decimal(12,2)", Decimal("NaN")),
    ("decimal(38,18)", Decimal("1E+22")),
    ("string", b"\xff"),
    ("string", "\ud800"),
    ("string", 1),
    ("binary(3)", b"ab"),
    ("date", dt.datetime(2026, 1, 2)),
    ("naive", dt.date(2026, 1, 2)),
    ("naive", dt.datetime(2026, 1, 2, tzinfo=UTC)),
    ("zoned", dt.datetime(2026, 1, 2)),
    ("zoned", 1_767_225_600),
    ("zoned", np.datetime64("2026-01-02T00:00:00.000000001")),
    ("zoned_ns", dt.datetime(9999, 1, 1, tzinfo=UTC)),
    ("naive_ms", dt.datetime(2026, 1, 2, 3, 4, 5, 678901)),
    ("time_us", dt.time(1, tzinfo=UTC)),
    ("longs", [1.7]),
    ("longs", {1, 2}),
    ("two longs", [1]),
    ("struct", {"a": 1}),
    ("struct", {"a": 1, "b": "x", "lost": 2}),
    ("map", [("a", 1), ("a", 2)]),
    ("long", Odd()),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_is_almost_right_is_refused_with_its_row(name: str, value: Any) -> None:
    kind = KINDS[name]
    with pytest.raises(Mismatch) as refused:
        exact_array([None, value], kind)
    assert refused.value.row == 1
    assert len(refused.value.value) < 200


def test_a_part_of_a_value_is_named_by_its_path() -> None:
    kind = pa.struct([("s", pa.list_(STRUCT))])
    with pytest.raises(Mismatch) as refused:
        canonical(kind)({"s": [{"a": 1.7, "b": "x"}]})
    assert (refused.value.path, refused.value.value) == (".s[].a", "1.7")
    with pytest.raises(Mismatch) as cast:
        exact_cast(pa.array([None, {"s": []}, {"s": [{"a": 1, "b": "x"}, {"a": 2, "b": None}]}]), kind)
    assert (cast.value.path, cast.value.row) == (".s[].b", 2)


def test_a_form_shares_nothing_with_what_was_given() -> None:
    given = [{"a": 1, "b": "x"}]
    form = canonical(KINDS["structs"])(given)
    given[0]["a"] = 2
    given.append({"a": 3, "b": "y"})
    assert form == [{"a": 1, "b": "x"}]


CAST = [
    (pa.array([1, None, 127]), pa.int8(), [1, None, 127]),
    (pa.array([Decimal("1.00")]), pa.int64(), [1]),
    (pa.array([2**53]), pa.float64(), [2.0**53]),
    (pa.array([0.5, math.inf]), pa.float32(), [0.5, math.inf]),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(38, 18), [Decimal(2**64 - 1)]),
    (pa.array([Decimal("0.10")]), pa.decimal128(12, 1), [Decimal("0.1")]),
    (pa.array(["a"]).dictionary_encode(), pa.large_string(), ["a"]),
    (pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7])), pa.int8(), [7, 7]),
    (pa.array([7, 7]), pa.run_end_encoded(pa.int32(), pa.int8()), [7, 7]),
    (pa.array(["a", "a"]), pa.dictionary(pa.int8(), pa.string()), ["a", "a"]),
    (pa.array([Decimal("0.10")], pa.decimal128(38, 18)), pa.decimal32(5, 1), [Decimal("0.1")]),
    (pa.array([b"abc"], pa.binary_view()), pa.string(), ["abc"]),
    (pa.array([dt.datetime(2026, 1, 2)], pa.timestamp("ns")), pa.timestamp("s"), [dt.datetime(2026, 1, 2)]),
    (pa.nulls(2), pa.list_(pa.int64()), [None, None]),
    (pa.array([[9], None, [1, 2]], pa.large_list(pa.int32()))[1:], pa.list_(pa.int64()), [None, [1, 2]]),
    (pa.array([[1, 2]], pa.list_view(pa.int32())), pa.list_(pa.int8(), 2), [[1, 2]]),
    (pa.array([{"b": 1}, None])[1:], pa.struct([("a", pa.string()), ("b", pa.int8())]), [None]),
    (pa.array([{"b": 1}]), pa.struct([("a", pa.string()), ("b", pa.int8())]), [{"a": None, "b": 1}]),
    (
        pa.array([[("x", 0)], None, [("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()))[1:],
        pa.map_(pa.large_string(), pa.int8()),
        [None, [("a", 1), ("b", None)]],
    ),
    (pa.array([], pa.list_(pa.int32())), pa.list_(pa.int64()), []),
]


@pytest.mark.parametrize(("array", "kind", "values"), CAST)
def test_an_array_is_cast_with_all_its_values(array: pa.Array, kind: pa.DataType, values: list[Any]) -> None:
    found = exact_cast(array, kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == values


UNCAST = [
    (pa.array([1.0, 1.7]), pa.int64(), 0),
    (pa.array([None, None], pa.float64()), pa.int64(), None),
    (pa.array([1, 128]), pa.int8(), 1),
    (pa.array([0, 2**63], pa.uint64()), pa.int64(), 1),
    (pa.array([0, 2**53 + 1]), pa.float64(), 1),
    (pa.array([2049]), pa.float16(), 0),
    (pa.array([0.5, 0.1]), pa.float32(), 1),
    (pa.array([1e300]), pa.float32(), 0),
    (pa.array([1.5]), pa.decimal128(12, 2), 0),
    (pa.array([Decimal("1.5")]), pa.float64(), 0),
    (pa.array([Decimal("0.100"), Decimal("0.105")]), pa.decimal128(12, 2), 1),
    (pa.array([Decimal(1), Decimal(10**22)]), pa.decimal128(38, 18), 1),
    (pa.array([Decimal("1.5")]), pa.int64(), 0),
    (pa.array([True]), pa.int64(), 0),
    (pa.array([1]), pa.bool_(), 0),
    (pa.array(["1"]), pa.int64(), 0),
    (pa.array([1]), pa.string(), 0),
    (pa.array([b"a", b"\xff"]), pa.string(), 1),
    (pa.array([0, 1], pa.timestamp("ns")), pa.timestamp("us"), 1),
    (pa.array([dt.datetime(2026, 1, 1), dt.datetime(9999, 1, 1)]), pa.timestamp("ns"), 1),
    (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us"), 0),
    (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), 0),
    (pa.array([0], pa.timestamp("us")), pa.date32(), 0),
    (pa.array([dt.date(2026, 1, 1)]), pa.timestamp("us"), 0),
    (pa.array([0, 1], pa.date64()), pa.date32(), 1),
    (pa.array([[1], [2, 300]]), pa.list_(pa.int8()), 1),
    (pa.array([[1, 2], [1]]), pa.list_(pa.int64(), 2), 1),
    (pa.array([{"a": 1, "c": 2}]), pa.struct([("a", pa.int64())]), None),
    (pa.array([{"a": 1}]), pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]), 0),
    (pa.array([[("a", 1)], [("a", 300)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int8()), 1),
    (pa.array([b"0123456789abcdef"], pa.uuid()), pa.string(), 0),
]


@pytest.mark.parametrize(("array", "kind", "row"), UNCAST)
def test_an_array_that_would_lose_something_is_refused(array: pa.Array, kind: pa.DataType, row: int | None) -> None:
    with pytest.raises(Mismatch) as refused:
        exact_cast(array, kind)
    assert refused.value.row == row


def test_an_exponent_beyond_pyarrows_table_ends_no_process() -> None:
    code = (
        "from decimal import Decimal; import pyarrow as pa\n"
        "from onefold.core.values.exact import exact_array, Mismatch\n"
        "for text in ('1E-999999999', '1E-41', '1E-78', '1E+999999999'):\n"
        "  for kind in (pa.decimal128(12, 2), pa.string(), pa.int64(), pa.float64()):\n"
        "    try: print(exact_array([Decimal(text)], kind))\n"
        "    except Mismatch: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
