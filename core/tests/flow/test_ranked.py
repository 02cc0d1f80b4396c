"""The first and last rows by a column, against sorted lists of Python's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import all_same, expected, in_any_way, of_columns
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sub_keys import KINDS, SPECIAL, UNORDERED

from onefold.core import ConfigError
from onefold.flow import Aggregate, first, last, top

Rows = list[list[tuple[Any, ...]]]


def rows_of(by: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Rows]:
    row = st.tuples(st.sampled_from(["a", "b", None]), st.none() | by, st.none() | other, st.integers(0, 1))
    return st.lists(st.lists(row, max_size=8), max_size=4)


def place(value: Any) -> Any:
    """By which a value is sorted: nulls come last, before them NaN, and -0.0 is below 0.0."""
    if value is None:
        return (2,)
    if isinstance(value, float | np.floating):
        return (1,) if math.isnan(value) else (0, float(value), math.copysign(1, value))
    return (0, value)


def ranked(rows: Sequence[Any], *, is_descending: bool) -> list[Any]:
    there = sorted((row for row in rows if row[0] is not None), key=lambda row: [place(each) for each in row[1:]])
    return sorted(there, key=lambda row: place(row[0]), reverse=is_descending)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_rows_are_ranked_by_a_column_of_any_type(kind: pa.DataType, data: st.DataObject) -> None:
    few = data.draw(st.lists(KINDS[kind], min_size=1, max_size=4))
    batches = data.draw(rows_of(KINDS[kind] | st.sampled_from(few), KINDS[kind]))
    schema = pa.schema({"key": pa.string(), "by": kind, "a": kind, "b": pa.int64()})
    count, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 99))
    tried: list[tuple[Aggregate, Any]] = [
        (
            top(count, by="by", columns=("a", "b")),
            lambda rows: [{"a": a, "b": b} for _, a, b in ranked(rows, is_descending=True)[:count]],
        ),
        (first("a", by="by"), lambda rows: next((a for _, a, _ in ranked(two(rows), is_descending=False)), None)),
        (last("a", by="by"), lambda rows: next((a for _, a, _ in ranked(two(rows), is_descending=True)), None)),
    ]
    for aggregate, model in tried:
        found, wanted = of_columns(schema, aggregate, batches), expected(batches, model)
        assert {key: repr(plain(each)) for key, each in found.items()} == {k: repr(plain(v)) for k, v in wanted.items()}
        again = in_any_way(schema, aggregate, batches, seed)
        assert {key: repr(each) for key, each in again.items()} == {key: repr(each) for key, each in found.items()}


def two(rows: Sequence[Any]) -> list[Any]:
    """`first` and `last` do not look at the third column."""
    return [(by, a, 0) for by, a, _ in rows]


def plain(value: Any) -> Any:
    """Numbers of other widths, and other spellings of an instant, are equal here."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(key, plain(each)) for key, each in items]
    if isinstance(value, np.floating):
        return float(value)
    if getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    return value.value if hasattr(value, "nanosecond") else value


def test_nan_is_the_largest_and_rows_without_a_value_are_left_out() -> None:
    schema = pa.schema({"key": pa.string(), "by": pa.float64(), "a": pa.int64()})
    rows = [("a", math.nan, 1), ("a", math.inf, 2), ("a", None, 3), ("a", -math.inf, 4), ("b", None, 5)]
    all_same(of_columns(schema, last("a", by="by"), [rows]), {"a": 1, "b": None})
    all_same(of_columns(schema, first("a", by="by"), [rows]), {"a": 4, "b": None})
    found = of_columns(schema, top(9, by="by", columns="a"), [rows])
    assert found == {"a": [{"a": 1}, {"a": 2}, {"a": 4}], "b": []}


@given(st.lists(st.sampled_from(SPECIAL), min_size=1), st.integers(0, 99))
@settings(deadline=None)
def test_zeros_of_either_sign_are_the_same_ones_in_any_order(values: list[float], seed: int) -> None:
    schema = pa.schema({"key": pa.string(), "by": pa.int64(), "a": pa.float64()})
    rows = [[("a", 1, value)] for value in values]
    aggregate = top(3, by="by", columns="a")
    assert repr(in_any_way(schema, aggregate, rows, seed)) == repr(of_columns(schema, aggregate, rows))


@pytest.mark.parametrize("kind", UNORDERED, ids=str)
def test_a_column_without_an_order_is_refused_by_name(kind: pa.DataType) -> None:
    schema = pa.schema({"good": pa.int64(), "bad": kind})
    for aggregate in (top(1, by="bad", columns="good"), top(1, by="good", columns="bad"), first("bad", by="good")):
        with raises(ConfigError, "aggregate-type", "'bad'", str(kind)):
            aggregate.given(schema)
    with raises(ConfigError, "no-such-column", "other"):
        last("good", by="other").given(schema)


@pytest.mark.parametrize(("rows", "columns"), [(0, "a"), (True, "a"), (1.5, "a"), (1, ()), (1, ("a", "a"))])
def test_top_has_a_number_of_rows_and_columns(rows: Any, columns: Any) -> None:
    with raises(ConfigError, "option-value"):
        top(rows, by="by", columns=columns)


def test_they_say_what_they_are_and_by_arrival_is_as_it_was() -> None:
    told = (top(3, by="at", columns=("a", "b")), first("a", by="at"), last("a", by="at"), first("a"), last("a"))
    assert [*map(str, told)] == ["top(3, a, b, by=at)", "first(a, by=at)", "last(a, by=at)", "first(a)", "last(a)"]
    assert [each.depends_on_order(pa.null()) for each in told] == [False, False, False, True, True]
