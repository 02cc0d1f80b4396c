"""Sketches: within their bounds, and the same to the last digit for any order of rows and any merging."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import Values, accumulated, batches_of, in_any_way, there
from harness.errors import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_sub_keys import KINDS, SPECIAL, UNORDERED

from onefold.core import BadRecord, ConfigError
from onefold.core.aggregates import Accumulation
from onefold.flow import Aggregate, approx_distinct, quantile, quantiles

SMALLEST = 1e-307  # below it a bucket is as wide as its values
NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): st.floats() | st.sampled_from(SPECIAL),
    pa.float32(): st.floats(width=32),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.decimal128(38, 10): st.decimals(-(10**27), 10**27, places=10),
    pa.decimal256(60, 2): st.decimals(-(10**50), 10**50, places=2),
    pa.decimal32(7, 2): st.decimals(-(10**5) + 1, 10**5 - 1, places=2),
}
AT = st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 0.99, 1])


def exact(values: Values, at: float) -> float | None:
    numbers = [float(value) for value in there(values)]
    ordered = sorted(number for number in numbers if not math.isnan(number))
    ordered += [math.nan] * (len(numbers) - len(ordered))
    return ordered[math.floor(at * (len(ordered) - 1))] if ordered else None


def is_near(found: float | None, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if math.isnan(wanted) or math.isinf(wanted) or wanted == 0:
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    return abs(found - wanted) <= max(0.01 * abs(wanted), 1e-2 * SMALLEST)


def by_key(batches: Any) -> dict[Any, Values]:
    found: dict[Any, Values] = {}
    for key, value in (row for rows in batches for row in rows):
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_quantile_is_within_one_percent_of_the_value_at_its_place(kind: pa.DataType, data: st.DataObject) -> None:
    batches, at = data.draw(batches_of(NUMBERS[kind])), data.draw(AT)
    found = accumulated(kind, quantile("value", at), batches)
    for key, values in by_key(batches).items():
        assert is_near(found[key], exact(values, at)), (found[key], exact(values, at))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_quantiles_are_the_same_for_any_order_and_any_merging(kind: pa.DataType, data: st.DataObject) -> None:
    batches = data.draw(batches_of(NUMBERS[kind]))
    schema, aggregate = pa.schema({"key": pa.string(), "value": kind}), quantiles("value", [0, 0.5, 0.99])
    found = accumulated(kind, aggregate, batches)
    assert repr(sorted(found.items(), key=repr)) == repr(
        sorted(in_any_way(schema, aggregate, batches, data.draw(st.integers(0, 99))).items(), key=repr)
    )
    for key, values in by_key(batches).items():
        places = found[key] or [None] * 3
        assert all(is_near(one, exact(values, at)) for one, at in zip(places, [0, 0.5, 0.99], strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_of_many_values_are_within_one_percent(seed: int) -> None:
    chance = np.random.default_rng(seed)
    values = np.concatenate([chance.lognormal(0, 5, 20_000), -chance.pareto(1, 10_000), np.zeros(100)])
    ats = [0, 0.001, 0.1, 0.335, 0.5, 0.9, 0.999, 1]
    ordered = np.sort(values)
    (found,) = accumulated(
        pa.float64(), quantiles("value", ats), [[("a", value) for value in values.tolist()]]
    ).values()
    wanted = [float(ordered[math.floor(at * (len(values) - 1))]) for at in ats]
    assert all(is_near(*pair) for pair in zip(found, wanted, strict=True)), (found, wanted)
    assert max(abs(one / other - 1) for one, other in zip(found, wanted, strict=True) if other) <= 1 / 128


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(deadline=None)
@example(SMALLEST)
@example(1.7976931348623157e308)
def test_the_bound_holds_for_each_number(value: float) -> None:
    found = accumulated(pa.float64(), quantile("value", 0.5), [[("a", value)]])
    assert is_near(found["a"], value) and math.copysign(1, found["a"]) in (1, math.copysign(1, value))


def test_a_quantile_of_more_rows_than_can_be_counted_is_an_error() -> None:
    made = Accumulation(pa.schema({"key": pa.string(), "value": pa.float64()}), ("key",), [("q", quantile("value", 0))])
    buckets = [[{"key": 1, "number": 2**62}, {"key": 2, "number": 2**62}]]
    state = pa.record_batch([["a"], buckets], schema=made.state_schema)
    with raises(BadRecord, "aggregate-overflow"):
        made.results(state)
    with raises(BadRecord, "aggregate-overflow"):
        made.merged([state, state])


@pytest.mark.parametrize("at", [-0.1, 1.01, math.nan, "0.5", None])
def test_a_quantile_is_at_0_to_1(at: Any) -> None:
    with raises(ConfigError, "option-value"):
        quantile("value", at)
    with raises(ConfigError, "option-value"):
        quantiles("value", [0.5, at])
    with raises(ConfigError, "option-value"):
        quantiles("value", [])


REFUSED = [(quantile("value", 0.5), kind) for kind in (pa.string(), pa.bool_(), pa.timestamp("us"), pa.duration("s"))]
REFUSED += [(approx_distinct("value"), kind) for kind in UNORDERED]


@pytest.mark.parametrize(("aggregate", "kind"), REFUSED, ids=str)
def test_a_sketch_refuses_a_type_that_it_cannot_take(aggregate: Aggregate, kind: pa.DataType) -> None:
    with raises(ConfigError, "aggregate-type", str(kind)):
        aggregate.given(pa.schema({"value": kind}))


def estimates(values: pa.Array, keys: pa.Array) -> list[int]:
    schema = pa.schema({"key": keys.type, "value": values.type})
    made = Accumulation(schema, ("key",), [("n", approx_distinct("value"))])
    batch = pa.RecordBatch.from_arrays([keys, values], schema=schema)
    states = [made.states(batch.slice(at, 50_000)) for at in range(0, len(batch), 50_000)]
    found: list[int] = made.results(made.merged(states)).column("n").to_pylist()
    return found


@pytest.mark.parametrize("size", [10, 100, 1_000, 5_000, 10_000, 15_000, 30_000])
def test_different_values_are_told_by_two_percent(size: int) -> None:
    """The standard error of 30 keys: 1.6 % is expected, of few values less."""
    chance, keys = np.random.default_rng(size), 30
    values = chance.integers(0, 2**62, keys * size)
    found = np.array(estimates(pa.array(values), pa.array(np.repeat(np.arange(keys), size))))
    errors = found / size - 1
    assert np.sqrt((errors**2).mean()) <= 0.022
    assert abs(errors.mean()) <= 3 * 0.0163 / math.sqrt(keys)
    assert size > 100 or np.abs(found - size).max() <= 4


@pytest.mark.parametrize("what", ["ascending", "texts", "floats", "decimals", "a million"])
def test_values_of_any_type_are_spread_over_the_registers(what: str) -> None:
    size = 1_000_000 if what == "a million" else 40_000
    numbers = np.arange(size)
    kinds: dict[str, Any] = {
        "texts": lambda: pa.array([f"user-{number}@example.org" for number in numbers.tolist()]),
        "floats": lambda: pa.array(numbers / 7),
        "decimals": lambda: pa.array([Decimal(number) / 100 for number in numbers.tolist()], pa.decimal128(12, 2)),
    }
    values = kinds.get(what, lambda: pa.array(numbers))()
    (found,) = estimates(pa.concat_arrays([values, values]), pa.array(np.zeros(2 * size, np.int64)))
    assert abs(found / size - 1) < 0.04


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_estimates_are_the_same_for_any_order_and_few_values_are_counted(
    kind: pa.DataType, data: st.DataObject
) -> None:
    batches = data.draw(batches_of(KINDS[kind]))
    schema, aggregate = pa.schema({"key": pa.string(), "value": kind}), approx_distinct("value")
    found = accumulated(kind, aggregate, batches)
    assert found == in_any_way(schema, aggregate, batches, data.draw(st.integers(0, 99)))
    for key, values in by_key(batches).items():
        different = {"nan" if isinstance(v, float | np.floating) and math.isnan(v) else v for v in there(values)}
        assert abs(found[key] - len(different)) <= 1


def test_estimates_never_change() -> None:
    """Registers are in snapshots: another hash needs another format."""
    texts = pa.array([str(number) for number in range(20_000)])
    one = pa.array(np.zeros(20_000, np.int64))
    assert [estimates(each, one) for each in (texts, pa.array(np.arange(20_000)))] == [[20_034], [20_031]]
