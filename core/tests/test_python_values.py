"""Columns as Python's values: what pyarrow's own `to_pylist` gives, of the same classes, or raises."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.values.exact.python_values import python_values

ZONES = (None, "UTC", "+00:00", "+02:30", "Europe/Berlin")
TIMES = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ZONES]
NUMBERED = [*TIMES, pa.date64(), pa.time64("us"), pa.duration("us"), pa.duration("s")]
DECIMALS = [pa.decimal128(38, 0), pa.decimal128(18, 2), pa.decimal128(38, 38), pa.decimal128(5, -2)]
DECIMALS += [pa.decimal256(60, 3)]
NUMBERS = st.sampled_from([-(2**63), 2**63 - 1, 0]) | st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**52), 2**52)


def said(values: Any) -> str:
    try:
        return repr(values())
    except Exception as error:
        return f"{type(error)} {error}"


def check(column: pa.Array) -> None:
    assert said(lambda: python_values(column)) == said(column.to_pylist)
    assert said(lambda: python_values(column[1:])) == said(column[1:].to_pylist)


@given(st.sampled_from(NUMBERED), st.lists(st.none() | NUMBERS, max_size=4))
def test_times_are_those_of_arrow(kind: pa.DataType, numbers: list[int | None]) -> None:
    check(pa.array(numbers, pa.int64()).view(kind))


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-800_000, 3_000_000), max_size=4))
def test_dates_are_those_of_arrow(days: list[int | None]) -> None:
    check(pa.array(days, pa.int32()).view(pa.date32()))


@given(st.sampled_from(DECIMALS), st.lists(st.none() | st.integers(-(10**37), 10**37), max_size=4))
def test_decimals_are_those_of_arrow(kind: pa.DataType, numbers: list[int | None]) -> None:
    cut = [number and abs(number) % 10**kind.precision * (-1 if number < 0 else 1) for number in numbers]
    exact = Context(prec=80)
    check(pa.array([None if each is None else Decimal(each).scaleb(-kind.scale, exact) for each in cut], kind))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 2**40]),
        pa.array([0.0, -0.0, float("nan"), None]),
        pa.array(["a", None, "ä"]),
        pa.array([b"a", None]),
        pa.array([True, None]),
        pa.array([None, None]),
        pa.array([[1], None, []]),
        pa.array([{"a": 1, "b": ["x"]}, None]),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array(["a", None, "a"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_other_values_are_those_of_arrow(column: pa.Array) -> None:
    check(column)
