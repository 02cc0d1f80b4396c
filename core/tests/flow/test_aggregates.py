"""Aggregates against Python's exact arithmetic, cut into any batches, epochs and merges."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from aggregate_model import Values, accumulated, all_same, batches_of, expected, there
from harness.errors import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError
from onefold.core.aggregates import Accumulation
from onefold.flow import Aggregate, count, first, last, max_, mean, min_, sum_

NAN = float("nan")
WIDE = Context(prec=76, rounding=ROUND_HALF_UP)


def tried(kind: pa.DataType, batches: Iterable[Sequence[tuple[Any, Any]]]) -> tuple[dict[Any, Any], bool]:
    """The sums, and whether one overflows instead."""
    try:
        return accumulated(kind, sum_("value"), batches), False
    except BadRecord as error:
        if error.code != "aggregate-overflow":
            raise
        return {}, True


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)


@settings(deadline=None)
@given(batches_of(INT64))
@example([[("a", 2**63 - 1)], [("a", 1)]])
@example([[("a", 2**63 - 1), ("a", 1), ("a", -1)]])
@example([[("a", -(2**63)), ("b", 7)]])
def test_a_sum_of_integers_is_exact_or_an_error(batches: list[list[tuple[Any, Any]]]) -> None:
    found, overflows = tried(pa.int64(), batches)
    if overflows:
        of_batches = [expected([rows], lambda values: sum(there(values))) for rows in batches]
        steps = [[part.get(key, 0) for part in of_batches] for key in {key for part in of_batches for key in part}]
        sums = [sum(step[: at + 1]) for step in steps for at in range(len(step))]
        assert any(not -(2**63) <= number < 2**63 for number in (*sums, *(n for step in steps for n in step)))
    else:
        all_same(found, expected(batches, lambda values: sum(there(values)) if there(values) else None))


@settings(deadline=None)
@given(batches_of(st.integers(0, 2**64 - 1)))
def test_a_sum_of_uint64_never_wraps_around(batches: list[list[tuple[Any, Any]]]) -> None:
    wanted = expected(batches, lambda values: sum(there(values)) if there(values) else None)
    if any((total or 0) >= 2**64 for total in wanted.values()):
        with raises(BadRecord, "aggregate-overflow"):
            accumulated(pa.uint64(), sum_("value"), batches)
    else:
        all_same(accumulated(pa.uint64(), sum_("value"), batches), wanted)


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.decimal128(28, 2), pa.decimal128(38, 2), pa.decimal128(38, 38)]
)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_sum_of_decimals_has_ten_digits_more_and_is_exact_or_an_error(kind: pa.DataType, data: st.DataObject) -> None:
    unscaled = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
    batches = data.draw(batches_of(unscaled.map(lambda digits: Decimal(digits).scaleb(-kind.scale, WIDE))))

    def total(values: Values) -> Any:
        found = Decimal(0).scaleb(-kind.scale)
        for value in there(values):
            found = WIDE.add(found, value)
        return found if there(values) else None

    wanted = expected(batches, total)
    most = Decimal(10) ** (min(kind.precision + 10, 38) - kind.scale)
    found, overflows = tried(kind, batches)
    if overflows:
        assert kind.precision == 38
        total_of_sizes = expected(batches, lambda values: sum((abs(v) for v in there(values)), Decimal(0)))
        assert any(size >= most for size in total_of_sizes.values())
    else:
        all_same(found, wanted)


def test_an_overflow_names_the_key_and_the_sum() -> None:
    with raises(BadRecord, "aggregate-overflow", "'b'"):
        accumulated(pa.int64(), sum_("value"), [[("a", 1), ("b", 2**63 - 1), ("b", 1)]])


@settings(deadline=None)
@given(batches_of(st.integers(-(2**20), 2**20).map(float) | st.sampled_from([NAN, math.inf, -math.inf])))
def test_a_sum_of_floats_has_nan_and_infinity_as_python_has(batches: list[list[tuple[Any, Any]]]) -> None:
    all_same(
        accumulated(pa.float64(), sum_("value"), batches),
        expected(batches, lambda values: sum(there(values), 0.0) if there(values) else None),
    )


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): INT64,
    pa.float64(): st.floats(),
    pa.decimal128(9, 2): st.decimals(-(10**6), 10**6, places=2),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_smallest_largest_first_last_and_count_are_those_of_all_rows(kind: pa.DataType, data: st.DataObject) -> None:
    batches = data.draw(batches_of(KINDS[kind]))

    def extreme(pick: Callable[..., Any]) -> Callable[[Values], Any]:
        def of(values: Values) -> Any:
            numbers = [value for value in there(values) if not (isinstance(value, float) and math.isnan(value))]
            if pick is max and len(numbers) < len(there(values)):
                return NAN
            return pick(numbers) if numbers else there(values)[0] if there(values) else None

        return of

    models: dict[Aggregate, Callable[[Values], Any]] = {
        min_("value"): extreme(min),
        max_("value"): extreme(max),
        first("value"): lambda values: values[0],
        last("value"): lambda values: values[-1],
        count(): len,
        count("value"): lambda values: len(there(values)),
    }
    for aggregate, model in models.items():
        all_same(accumulated(kind, aggregate, batches), expected(batches, model))


@settings(deadline=None)
@given(batches_of(st.integers(-(2**55), 2**55)))
def test_a_mean_of_integers_is_the_exact_sum_divided_once(batches: list[list[tuple[Any, Any]]]) -> None:
    wanted = expected(batches, lambda values: float(sum(there(values))) / len(there(values)) if there(values) else None)
    all_same(accumulated(pa.int64(), mean("value"), batches), wanted)


@settings(deadline=None)
@given(batches_of(st.decimals(1 - 10**10, 10**10 - 1, places=2)))
def test_a_mean_of_decimals_has_four_places_more_rounded_half_up(batches: list[list[tuple[Any, Any]]]) -> None:
    def model(values: Values) -> Any:
        if not there(values):
            return None
        return WIDE.divide(sum(there(values)), len(there(values))).quantize(Decimal("0.000001"), ROUND_HALF_UP, WIDE)

    all_same(accumulated(pa.decimal128(12, 2), mean("value"), batches), expected(batches, model))


def test_a_mean_that_its_type_cannot_hold_is_an_error() -> None:
    most = Decimal("9" * 36)
    with raises(BadRecord, "aggregate-overflow"):
        accumulated(pa.decimal128(38, 2), mean("value"), [[("a", most)]])


@pytest.mark.parametrize(
    ("aggregate", "given_kind", "kind"),
    [
        (sum_("value"), pa.int8(), pa.int64()),
        (sum_("value"), pa.uint64(), pa.uint64()),
        (sum_("value"), pa.float32(), pa.float64()),
        (sum_("value"), pa.decimal128(30, 4), pa.decimal128(38, 4)),
        (mean("value"), pa.int32(), pa.float64()),
        (mean("value"), pa.decimal128(37, 2), pa.decimal128(38, 6)),
        (count("value"), pa.list_(pa.int8()), pa.int64()),
        (last("value"), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (max_("value"), pa.float32(), pa.float32()),
    ],
    ids=str,
)
def test_the_type_of_a_result_follows_from_the_columns(
    aggregate: Aggregate, given_kind: pa.DataType, kind: pa.DataType
) -> None:
    assert aggregate.result_kind(aggregate.given(pa.schema({"value": given_kind}))) == kind
    assert accumulated(given_kind, aggregate, []) == {}


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        (sum_("value"), pa.string()),
        (sum_("value"), pa.bool_()),
        (sum_("value"), pa.decimal256(40, 2)),
        (mean("value"), pa.timestamp("us")),
        (min_("value"), pa.list_(pa.int8())),
        (max_("value"), pa.dictionary(pa.int8(), pa.string())),
        (min_("value"), pa.duration("us")),
        (max_("value"), pa.decimal64(10, 2)),
        (min_("value"), pa.decimal32(5, 2)),
        (max_("value"), pa.binary_view()),
        (first("value"), pa.string_view()),
    ],
    ids=str,
)
def test_an_aggregate_refuses_a_type_that_it_cannot_take(aggregate: Aggregate, kind: pa.DataType) -> None:
    with raises(ConfigError, "aggregate-type"):
        aggregate.given(pa.schema({"value": kind}))


def test_aggregates_are_values_that_pickle_and_show_what_they_are() -> None:
    assert pickle.loads(pickle.dumps(sum_("a"))) == sum_("a") != max_("a")
    assert [str(each) for each in (sum_("a"), count(), mean("b"))] == ["sum(a)", "count()", "mean(b)"]


def test_several_aggregates_by_several_columns_share_a_state_row() -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "v": pa.int64()})
    made = Accumulation(schema, ("a", "b"), [("total", sum_("v")), ("average", mean("v")), ("n", count())])
    assert made.state_schema.names == ["a", "b", "total.sum", "average.sum", "average.count", "n.count"]
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": "x", "v": 2}, {"a": 1, "b": None, "v": 3}], schema)
    states = made.merged([made.states(batch), made.states(batch)])
    assert made.results(states).to_pylist() == [
        {"a": 1, "b": "x", "total": 4, "average": 2.0, "n": 2},
        {"a": 1, "b": None, "total": 6, "average": 3.0, "n": 2},
    ]
