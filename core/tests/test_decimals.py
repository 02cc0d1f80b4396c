"""Decimals scaled and parsed: exactly, or refused, where pyarrow itself wraps around."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onefold.core.values.decimals import decimals_of
from onefold.core.values.exact import Mismatch, exact_cast

EXACT = Context(prec=200)
TYPES = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


def fits(number: Decimal, precision: int, scale: int) -> bool:
    units = number.scaleb(scale, EXACT)
    return units == units.to_integral_value(context=EXACT) and units.copy_abs() < 10**precision


@given(TYPES, TYPES, st.data())
@example((38, 0), (38, 18), None)
@example((30, 0), (38, 38), None)
def test_a_decimal_of_another_scale_is_the_same_number_or_refused(
    one: tuple[int, int], other: tuple[int, int], data: st.DataObject | None
) -> None:
    digits = 10**22 if data is None else data.draw(st.integers(-(10 ** one[0]) + 1, 10 ** one[0] - 1))
    number = Decimal(digits).scaleb(-one[1], EXACT)
    array, kind = pa.array([number, None], pa.decimal128(*one)), pa.decimal128(*other)
    nested = pa.StructArray.from_arrays([pa.array([[number]], pa.list_(pa.decimal128(*one)))], ["a"])
    nested_kind = pa.struct({"a": pa.list_(kind)})
    if fits(number, *other):
        assert exact_cast(array, kind).to_pylist() == [number, None]
        assert exact_cast(nested, nested_kind).to_pylist() == [{"a": [number]}]
        return
    for values, wanted in ((array, kind), (nested, nested_kind)):
        with pytest.raises(Mismatch):
            exact_cast(values, wanted)


@given(TYPES, st.from_regex(r"[+-]?0{0,3}[0-9]{0,40}\.?[0-9]{0,40}([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@example((38, 18), "1" + "0" * 30)
@example((12, 2), "1e-999999999")
@example((12, 2), "e0")
def test_a_text_is_the_decimal_that_it_says_or_refused(kind: tuple[int, int], text: str) -> None:
    try:
        found = decimals_of(pa.array([text, None]), pa.decimal128(*kind))
    except pa.ArrowInvalid:
        return
    assert found.to_pylist() == [Decimal(text), None]


def test_what_256_bits_do_not_surely_hold_is_refused() -> None:
    with pytest.raises(Mismatch, match="fit its precision and scale"):
        exact_cast(pa.array([Decimal(1)], pa.decimal256(70, 0)), pa.decimal256(76, 18))
