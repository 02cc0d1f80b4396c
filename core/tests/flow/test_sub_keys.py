"""Counts of different values, against sets of Python's."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import Values, accumulated, all_same, batches_of, expected, in_any_way, there
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError
from onefold.core.aggregates.functions import Merge
from onefold.core.aggregates.sub_keys import SubKeys, in_order
from onefold.flow import Aggregate, count_distinct

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308]
WIDE = st.decimals(-(10**5), 10**5, places=2)
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-3, 3),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    pa.uint64(): st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    pa.bool_(): st.booleans(),
    pa.float16(): st.sampled_from([np.float16(each) for each in (0.0, -0.0, math.nan, 1.5, -1.5)]),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    pa.float64(): st.floats() | st.sampled_from(SPECIAL),
    pa.decimal32(9, 2): WIDE,
    pa.decimal64(9, 2): WIDE,
    pa.decimal128(38, 2): WIDE,
    pa.decimal256(60, 2): WIDE,
    pa.string(): st.text(max_size=2),
    pa.large_string(): st.text(max_size=2),
    pa.binary(): st.binary(max_size=2),
    pa.binary(1): st.binary(min_size=1, max_size=1),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("s"): st.times().map(lambda at: at.replace(microsecond=0, fold=0)),
    pa.time64("us"): st.times().map(lambda at: at.replace(fold=0)),
    pa.timestamp("us", "Europe/Berlin"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.timestamp("ns"): st.integers(-(2**63), 2**63 - 1),
    pa.duration("s"): st.timedeltas().map(lambda of: dt.timedelta(seconds=of // dt.timedelta(seconds=1))),
}
UNORDERED = [
    pa.list_(pa.int8()),
    pa.struct({"a": pa.int8()}),
    pa.map_(pa.int8(), pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.month_day_nano_interval(),
    pa.null(),
    pa.string_view(),
    pa.binary_view(),
]


def different(values: Values) -> int:
    """-0.0 is 0.0, and NaN is one value."""
    numbers = {"nan" if isinstance(v, float | np.floating) and math.isnan(v) else v for v in there(values)}
    return len(numbers)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_different_values_are_counted_exactly(kind: pa.DataType, data: st.DataObject) -> None:
    few = data.draw(st.lists(KINDS[kind], min_size=1, max_size=5))
    batches = data.draw(batches_of(KINDS[kind] | st.sampled_from(few)))
    aggregate, wanted = count_distinct("value"), expected(batches, different)
    all_same(accumulated(kind, aggregate, batches), wanted)
    schema = pa.schema({"key": pa.string(), "value": kind})
    all_same(in_any_way(schema, aggregate, batches, data.draw(st.integers(0, 99))), wanted)


@pytest.mark.parametrize("kind", UNORDERED, ids=str)
@pytest.mark.parametrize("aggregate", [count_distinct("value")], ids=str)
def test_a_column_whose_values_cannot_be_told_apart_is_refused(aggregate: Aggregate, kind: pa.DataType) -> None:
    with raises(ConfigError, "aggregate-type", str(kind)):
        aggregate.given(pa.schema({"value": kind}))


@settings(deadline=None)
@given(st.lists(st.floats() | st.sampled_from(SPECIAL)))
def test_floats_are_in_order_as_numbers_are_with_nan_above_all(values: list[float]) -> None:
    def place(value: float) -> tuple[bool, float, float]:
        return math.isnan(value), 0.0 if math.isnan(value) else value, 0.0 if value else math.copysign(1, value)

    numbers = in_order(pa.array(values, pa.float64())).to_pylist()
    by_number = [value for _, value in sorted(zip(numbers, map(place, values), strict=True))]
    assert by_number == sorted(map(place, values))


def test_numbers_beside_sub_keys_are_never_wrapped_around() -> None:
    kind = pa.struct({"key": pa.int32(), "number": pa.int64()})
    lists = pa.array([[(1, 2**63 - 1), (2, 5)], [(2, 6)], [(1, 1)]], pa.large_list(kind))
    found = SubKeys(Merge.SUM)(lists, np.array([0, 0, 1]), 3).to_pylist()
    as_pairs = [sorted((each["key"], each["number"]) for each in elements) for elements in found]
    assert as_pairs == [[(1, 2**63 - 1), (2, 11)], [(1, 1)], []]
    with raises(BadRecord, "aggregate-overflow", str(2**63)):
        SubKeys(Merge.SUM)(lists, np.array([0, 0, 0]), 1)
