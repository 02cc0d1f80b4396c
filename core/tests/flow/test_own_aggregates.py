"""Aggregates of a user's own: rows are added once, and the kit tells those that depend on how rows are cut."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from aggregate_model import accumulated, batches_of, expected, of_columns, there
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError
from onefold.core.testing import BrokenPromise, Promise, check_aggregator
from onefold.flow import Aggregator, count_distinct


class Collected(Aggregator):
    """All values, in their order; it changes what it is given."""

    state_type, result_type = "array<long>", "array<long>"

    def create(self) -> Any:
        return []

    def add(self, state: Any, *values: Any) -> Any:
        state.append(values[0])
        return state

    def merge(self, state: Any, other: Any) -> Any:
        state += other
        return state

    def result(self, state: Any) -> Any:
        return state


class Weighted(Aggregator):
    """A mean by weights, of a struct."""

    state_type, result_type = "struct<total: double, weight: double>", "double"

    def create(self) -> Any:
        return {"total": 0.0, "weight": 0.0}

    def add(self, state: Any, *values: Any) -> Any:
        amount, weight = values
        if amount is None or weight is None:
            return state
        return {"total": state["total"] + amount * weight, "weight": state["weight"] + weight}

    def merge(self, state: Any, other: Any) -> Any:
        return {name: state[name] + other[name] for name in state}

    def result(self, state: Any) -> Any:
        return state["total"] / state["weight"] if state["weight"] else None


class Counting(Collected):
    """How often `add` is called."""

    calls: ClassVar[list[Any]] = []

    def add(self, state: Any, *values: Any) -> Any:
        self.calls.append(values)
        return super().add(state, *values)


@settings(deadline=None)
@given(batches_of(st.integers(-(2**63), 2**63 - 1)))
def test_rows_come_in_their_order_and_null_is_none(batches: Any) -> None:
    assert accumulated(pa.int64(), Collected().of("value"), batches) == expected(batches, list)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(-5, 5), st.integers(0, 3)))))
def test_it_may_be_of_several_columns_with_a_struct_as_its_state(batches: Any) -> None:
    schema = pa.schema({"key": pa.string(), "amount": pa.float64(), "weight": pa.float64()})
    found = of_columns(schema, Weighted().of("amount", "weight"), batches)

    def mean(rows: list[Any]) -> Any:
        known = [row for row in rows if row[0] is not None]
        weight = sum(row[1] for row in known)
        return pytest.approx(sum(row[0] * row[1] for row in known) / weight) if weight else None

    assert found == expected(batches, mean)


def test_each_row_is_added_once() -> None:
    Counting.calls.clear()
    accumulated(pa.int64(), Counting().of("value"), [[("a", 10 * at + n) for n in range(10)] for at in range(100)])
    assert [*Counting.calls] == [(number,) for number in range(1_000)]


def test_it_is_told_apart_and_pickles() -> None:
    made = pickle.loads(pickle.dumps(Weighted().of("a", "b")))
    assert str(made) == "Weighted(a, b)" and made.depends_on_order(pa.null())
    with raises(ConfigError, "no-such-column", "other"):
        made.given(pa.schema({"other": pa.int64()}))


class Untyped(Collected):
    state_type = None  # type: ignore[assignment]


class Mistyped(Collected):
    state_type = "array<any>"


@pytest.mark.parametrize(("wrong", "code"), [(Untyped, "option-missing"), (Mistyped, "option-value")])
def test_its_types_are_there_when_the_flow_is_made(wrong: type[Aggregator], code: str) -> None:
    with raises(ConfigError, code):
        wrong().of("value")


class HalfState(Collected):
    def add(self, state: Any, *values: Any) -> Any:
        return [*state, values[0] / 2]


class TextResult(Collected):
    def result(self, state: Any) -> Any:
        return f"{len(state)} and more"


@pytest.mark.parametrize(("wrong", "what"), [(HalfState, "state"), (TextResult, "result")])
def test_what_is_not_of_its_type_is_told(wrong: type[Aggregator], what: str) -> None:
    with raises(BadRecord, "function-value", wrong.__name__, what):
        accumulated(pa.int64(), wrong().of("value"), [[("a", 3)]])
    with pytest.raises(BrokenPromise, match="function-value") as told:
        check_aggregator(wrong(), "value long", [(3,)])
    assert told.value.promise is Promise.AGGREGATOR_CUTS


def test_values_that_python_has_none_for_are_told() -> None:
    far = pa.array([2**60], pa.int64()).cast(pa.timestamp("s"))
    schema = pa.schema({"key": pa.string(), "value": far.type})
    with raises(BadRecord, "function-value", "timestamp"):
        of_columns(schema, Collected().of("value"), [[("a", far[0])]])


class Last(Collected):
    """Forgets the earlier state where states merge."""

    def merge(self, state: Any, other: Any) -> Any:
        del state
        return other


class Shared(Collected):
    """Gives one list away again and again."""

    _one: ClassVar[list[int]] = []

    def create(self) -> Any:
        return self._one


class Averaged(Collected):
    """The mean of means."""

    state_type, result_type = "double", "double"

    def create(self) -> Any:
        return None

    def add(self, state: Any, *values: Any) -> Any:
        return float(values[0]) if state is None else (state + values[0]) / 2

    def merge(self, state: Any, other: Any) -> Any:
        return (state + other) / 2


@pytest.mark.parametrize("wrong", [Last, Shared, Averaged])
def test_the_kit_tells_what_depends_on_how_rows_are_cut(wrong: type[Aggregator]) -> None:
    with pytest.raises(BrokenPromise, match="however rows are cut") as told:
        check_aggregator(wrong(), "value long", [(1,), (2,), (30,)])
    assert told.value.promise is Promise.AGGREGATOR_CUTS


class Local(Collected):
    def __init__(self) -> None:
        self.function = lambda: None


def test_the_kit_tells_what_cannot_be_sent() -> None:
    with pytest.raises(BrokenPromise, match="another process"):
        check_aggregator(Local(), "value long", [(1,)])


def test_the_kit_passes_what_is_right() -> None:
    report = check_aggregator(Weighted(), "amount double, weight double", [(1.5, 2.0), (None, 1.0), (0.1, 3.0)])
    assert report.promises == {Promise.AGGREGATOR_PICKLES: 1, Promise.AGGREGATOR_CUTS: 200}
    assert check_aggregator(Collected(), "value long", [(None,), (5,)]).subject == "Collected"


def test_an_aggregate_that_sees_all_values_agrees_with_one_that_counts_them() -> None:
    rows = [[("a", at % 7) for at in range(100)]]
    (collected,) = accumulated(pa.int64(), Collected().of("value"), rows).values()
    assert accumulated(pa.int64(), count_distinct("value"), rows) == {"a": len({*there(collected)})}
