"""How rows of a batch go to processors and functions, and come back: the same as row by row, by Python's own means."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError
from onefold.core.values.ddl import schema_of
from onefold.flow.processing import groups
from onefold.flow.processing.groups import by_key
from onefold.flow.processing.rows import BATCH_ROWS_MAX, RowCollector, Side, columns_of, row_type

UTC_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))
KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tiny": (pa.int8(), st.integers(-2, 2)),
    "unsigned": (pa.uint64(), st.sampled_from([0, 1, 2**64 - 1])),
    "long": (pa.int64(), st.integers(-3, 3)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["", "a", "ä", "a\0"])),
    "large_text": (pa.large_string(), st.sampled_from(["", "a"])),
    "data": (pa.binary(), st.sampled_from([b"", b"a", b"a\0"])),
    "fixed": (pa.binary(2), st.sampled_from([b"aa", b"ab"])),
    "price": (pa.decimal128(9, 2), st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")])),
    "hundreds": (pa.decimal128(5, -2), st.sampled_from([Decimal("1E+2"), Decimal("2E+2")])),
    "wide": (pa.decimal256(60, 2), st.sampled_from([Decimal("0.00"), Decimal("1.50")])),
    "day": (pa.date32(), st.sampled_from([dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)])),
    "at": (pa.timestamp("us", "UTC"), UTC_TIMES),
    "local": (pa.timestamp("ms"), st.sampled_from([dt.datetime(1969, 12, 31, 23), dt.datetime(1970, 1, 1)])),
    "offset": (pa.timestamp("us", "+02:00"), st.just(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))),
    "time": (pa.time64("us"), st.sampled_from([dt.time(0), dt.time(23, 59, 59, 999999)])),
}
OTHERS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "weight": (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), 1.5])),
    "tags": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=1), max_size=2)),
    "more": (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.none() | st.integers(0, 1)})),
}
BOTH = KEYS | OTHERS
Keyed = tuple[pa.RecordBatch, tuple[str, ...]]


@st.composite
def keyed_batches(draw: st.DrawFn) -> Keyed:
    key = draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=3, unique=True))
    names = draw(st.permutations([*key, *OTHERS]))
    rows = draw(st.integers(0, 12))
    columns = [
        pa.array(draw(st.lists(st.none() | of, min_size=rows, max_size=rows)), kind)
        for kind, of in (BOTH[name] for name in names)
    ]
    batch = pa.RecordBatch.from_arrays(columns, names)
    return batch.slice(draw(st.integers(0, 2)), draw(st.integers(0, 12))), tuple(key)


def row_by_row(batch: pa.RecordBatch, key: Sequence[str]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in batch.to_pylist():
        found.setdefault(tuple(row[name] for name in key), []).append(tuple(row.values()))
    return found


@given(keyed_batches())
def test_each_key_has_its_rows_and_both_are_in_the_order_in_which_they_come(keyed: Keyed) -> None:
    batch, key = keyed
    for rows_min in (0, groups.ROWS_MIN):
        with patch.object(groups, "ROWS_MIN", rows_min):
            keys, rows = by_key(batch, key)
            assert repr([*zip(keys, rows, strict=True)]) == repr([*row_by_row(batch, key).items()])


@pytest.mark.parametrize("keys", [1, 7, 1_000, 70_000])
def test_many_rows_are_grouped_as_few_are(keys: int) -> None:
    numbers = pa.array([number * 7919 % keys if number % 11 else None for number in range(100_000)])
    batch = pa.RecordBatch.from_arrays([pa.array(range(100_000)), numbers], ["id", "k"])
    found, rows = by_key(batch, ("k",))
    assert [*zip(found, rows, strict=True)] == [*row_by_row(batch, ("k",)).items()]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 86_400_000, 2, 86_400_001, None], pa.int64()).view(pa.date64()),
        pa.array([Decimal("1.5"), Decimal("1.5"), None, Decimal(2), None], pa.decimal128(5, 1)).cast(
            pa.decimal32(5, 1)
        ),
    ],
    ids=lambda column: str(column.type),
)
@patch.object(groups, "ROWS_MIN", 0)
def test_values_that_are_equal_to_python_are_one_key(column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(5))], ["k", "id"])
    keys, rows = by_key(batch, ("k",))
    assert [*zip(keys, rows, strict=True)] == [*row_by_row(batch, ("k",)).items()]


@patch.object(groups, "ROWS_MIN", 0)
def test_of_values_that_python_has_none_for_the_first_is_told() -> None:
    times = pa.array([0, 300_000_000_000, 400_000_000_000], pa.timestamp("s"))
    texts = pa.array([b"a", b"\xfe", b"\xff"]).view(pa.string())
    for bad in (times, texts):
        check_first_told(pa.RecordBatch.from_arrays([pa.array([1, 2, 1]), bad], ["k", "at"]))


def check_first_told(batch: pa.RecordBatch) -> None:
    with pytest.raises(BadRecord) as alone:
        columns_of(batch)
    with raises(BadRecord, "function-value", "'at'") as grouped:
        by_key(batch, ("k",))
    assert str(grouped.value) == str(alone.value)


# rows

NAMES = [["id", "count", "a b", "_x", "class", "index"], ["asDict", "__len__", "__class__", " id", "id", "_fields"]]


@pytest.mark.parametrize("names", NAMES, ids=["odd", "members"])
def test_a_row_is_a_tuple_with_names(names: list[str]) -> None:
    kind, values = row_type(names), tuple(range(len(names)))
    row = kind(values)
    assert isinstance(row, tuple) and tuple(row) == values == row and hash(row) == hash(values)
    assert [row[name] for name in names] == [row[at] for at in range(len(names))] == [*values]
    assert (row[-1], row[1:3], row[::-1], len(row), 3 in row) == (values[-1], (1, 2), values[::-1], len(names), True)
    for wrong in ("ID", ""):
        with pytest.raises(KeyError, match=repr(wrong)):
            row[wrong]
    with pytest.raises(IndexError):
        row[len(names)]
    with pytest.raises(TypeError):
        row[1.5]
    with pytest.raises(AttributeError):
        row.further = 1
    again = [pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)]
    assert [(each, each[names[0]], type(each).__name__) for each in again] == [(values, 0, "Row")] * 3


def test_a_row_has_what_named_tuples_have() -> None:
    row = row_type(["id", "count", "a b"])((1, 2, "x"))
    assert (row.id, row.count, row._fields, repr(row)) == (1, 2, ("id", "count", "_2"), "Row(id=1, count=2, _2='x')")
    assert row._replace(id=5) == (5, 2, "x") and type(row._replace(id=5)) is type(row)
    assert row._asdict() == {"id": 1, "count": 2, "_2": "x"} and row.asDict() == {"id": 1, "count": 2, "a b": "x"}
    assert type(row)._make([1, 2, "x"]) == row
    match row:
        case type(id=1, count=n):
            raise AssertionError(n)
        case (number, *_):
            assert number == 1


# what functions give

OUTPUTS = {None: schema_of("id long, note string NOT NULL, tags array<long>"), "late": schema_of("id long")}
FLAT = {None: schema_of("id long, note string NOT NULL"), "late": schema_of("id long, raw binary")}
ONE = {None: schema_of("id long"), "late": schema_of("id long")}
VALUES = (
    st.none() | st.integers(0, 3) | st.sampled_from(["a", 1.5, True, b"b", Decimal(7)]) | st.lists(st.integers(0, 9))
)
ROWS = (
    st.dictionaries(st.sampled_from(["id", "note", "tags", "raw", "ID"]), VALUES, max_size=3)
    | st.fixed_dictionaries({"id": st.integers(0, 9), "note": st.just("a")})
    | st.fixed_dictionaries({"note": st.just("a"), "id": st.integers(0, 9), "tags": st.lists(st.integers(0, 9))})
    | st.tuples(st.integers(0, 9), st.just("a"))
    | st.tuples(st.integers(0, 9), st.just("a"), st.lists(st.integers(0, 9), max_size=2))
    | st.lists(VALUES, max_size=3).map(tuple)
    | st.lists(VALUES, max_size=3)
    | st.builds(lambda number: row_type(["a", "b"])((number, "a")), st.integers(0, 9))
    | st.sampled_from([None, 7, "ab", {1: 2}])
)
GIVEN = st.lists(ROWS | st.builds(Side, st.sampled_from(["late", "lost"]), ROWS), max_size=5)


def one_at_a_time(outputs: dict[str | None, pa.Schema], given: list[Any]) -> dict[str | None, list[Any]]:
    """What a collector for each row has."""
    found: dict[str | None, list[Any]] = {}
    for row in given:
        alone = RowCollector("split", outputs)
        alone.add(row)
        for output, batch in alone.take():
            found.setdefault(output, []).extend(batch.to_pylist())
    return found


def together(outputs: dict[str | None, pa.Schema], given: list[Any]) -> dict[str | None, list[Any]]:
    collector = RowCollector("split", outputs)
    assert not collector.fill(iter(given))
    return {output: batch.to_pylist() for output, batch in collector.take()}


def of_rows(outputs: dict[str | None, pa.Schema], given: list[Any]) -> dict[str | None, list[Any]]:
    """By pyarrow alone, of rows as dicts; raises for those that are none."""
    found: dict[str | None, list[Any]] = {}
    for each in given:
        output, row = (each.name, each.value) if isinstance(each, Side) else (None, each)
        names = outputs[output].names
        if not isinstance(row, dict):
            row = dict(zip(names, row, strict=True))
        assert row.keys() <= {*names}
        found.setdefault(output, []).append({name: row.get(name) for name in names})
    return {name: pa.Table.from_pylist(rows, outputs[name]).to_pylist() for name, rows in found.items()}


def told(of: Callable[..., Any], *args: Any) -> Any:
    """What it gives; what it says, where it raises one of our errors, but for the number of the row."""
    try:
        return of(*args)
    except (ConfigError, BadRecord) as error:
        return error.code, str(error)


@given(st.sampled_from([OUTPUTS, FLAT, ONE]), GIVEN)
@example(FLAT, [{"note": "a", "id": 1}, (2, "b"), Side("late", {"raw": b"x"}), {"id": 1, "ID": 2}])
@example(ONE, [{"id": 1}, (2,), {"ID": 1}])
def test_rows_together_are_those_of_each_by_itself(outputs: Any, given: list[Any]) -> None:
    found, alone = told(together, outputs, given), told(one_at_a_time, outputs, given)
    if isinstance(found, dict):
        assert repr(found) == repr(alone) == repr(of_rows(outputs, given))
    else:  # which of several errors comes first is another matter: of a row's form before that of a value
        assert found in [told(one_at_a_time, outputs, [row]) for row in given]


def test_a_dict_that_is_changed_after_it_was_given_stays_as_it_was() -> None:
    row = {"id": 1, "note": "a"}

    def rows() -> Iterator[Any]:
        for number in range(3):
            row["id"] = number
            yield row
        row.clear()

    collector = RowCollector("split", FLAT)
    collector.fill(rows())
    ((_, batch),) = collector.take()
    assert batch.to_pylist() == [{"id": number, "note": "a"} for number in range(3)]


def test_a_dict_that_makes_up_what_is_missing_is_asked_for_nothing() -> None:
    class Making(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            raise AssertionError(name)

    assert together(FLAT, [Making(note="a", id=1)]) == {None: [{"id": 1, "note": "a"}]}
    assert together(OUTPUTS, [Making(note="a")])[None] == [{"id": None, "note": "a", "tags": None}]


@pytest.mark.parametrize("outputs", [OUTPUTS, FLAT, ONE], ids=["nested", "flat", "one"])
def test_a_batch_has_no_more_rows_than_are_asked_for_those_of_sides_counted(outputs: Any) -> None:
    collector, main = RowCollector("split", outputs), (1, "a", [])[: len(outputs[None])]
    rows = iter([main, Side("late", {"id": 2})] * BATCH_ROWS_MAX)
    counts = []
    while collector.fill(rows):
        counts.append({output: batch.num_rows for output, batch in collector.take()})
    assert counts == [{None: BATCH_ROWS_MAX // 2, "late": BATCH_ROWS_MAX // 2}] * 2 and [*collector.take()] == []
