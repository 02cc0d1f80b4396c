"""Conditions and numbers made of terms: comparison, membership, arithmetic. By SQL's rules for null."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.exact import Family, exact_array
from onefold.flow.expressions.terms import NUMBERS, Term, Unfit, common, converted, decimal, digits, literal

__all__ = ["among", "calculated", "compared", "negated"]

Compare = Callable[[pc.Expression, pc.Expression], pc.Expression]

_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked}


def compared(compare: Compare, left: Term, right: Term) -> Term:
    """Two terms compared as the type that has both exactly; null beside null."""
    kind = common(left, right)
    if pa.types.is_boolean(kind) and compare not in (operator.eq, operator.ne):
        raise Unfit("booleans have no order: compare them by = and <>")
    if pa.types.is_null(kind):
        return Term(_UNKNOWN, pa.bool_())
    return Term(compare(converted(left, kind).expression, converted(right, kind).expression), pa.bool_())


def among(term: Term, literals: Sequence[Term]) -> Term:
    """Whether a term is one of the literals: null if it is null, and null if it is none and one of them is null."""
    kind = common(term, *literals)
    if pa.types.is_null(kind):
        return Term(_UNKNOWN, pa.bool_())
    values = [converted(each, kind).value for each in literals if each.value is not None]
    given = converted(term, kind).expression
    if pa.types.is_floating(kind):  # a set tells 0.0 and -0.0 apart
        given, values = pc.add(given, 0.0), [value + 0.0 for value in values]
    found = given.isin(exact_array(values, kind)) if values else pc.scalar(False)
    if len(values) < len(literals):
        return Term(pc.if_else(found, pc.scalar(True), _UNKNOWN), pa.bool_())
    return Term(pc.if_else(given.is_valid(), found, _UNKNOWN), pa.bool_())


def calculated(sign: str, left: Term, right: Term) -> Term:
    """Two numbers calculated. Integers give `long`, decimals one of all the digits that there can be."""
    kind = common(left, right)
    families = {left.family, right.family} - {Family.NULL}
    if not families or not families <= NUMBERS:
        raise Unfit(f"{sign} takes numbers")
    if Family.FLOAT not in families and sign == "/":
        raise Unfit(
            "/ takes doubles alone, since SQL's dialects differ in what they make of integers and decimals. Cast"
            " integers, CAST(x AS double), or multiply by a decimal: amount * 0.01"
        )
    if families != {Family.INTEGER} and sign == "%":
        raise Unfit("% takes integers alone: cast decimals, CAST(x AS long)")
    if pa.types.is_decimal(kind):
        if families == {Family.INTEGER}:
            raise Unfit(
                "integers are calculated as long, which has not each of these: CAST(x AS decimal(20,0)), or AS long"
            )
        return _of_decimals(sign, left, right, kind)
    a, b = converted(left, kind).expression, converted(right, kind).expression
    if sign == "%":
        quotient = pc.divide_checked(a, b)  # towards zero, so that the rest has the sign of a
        return Term(pc.subtract_checked(a, pc.multiply_checked(quotient, b)), kind)
    return _in_order(sign, a, b, kind)


def negated(term: Term) -> Term:
    """The negative number; of a literal a literal."""
    if term.family not in NUMBERS:
        raise Unfit("- takes a number")
    if term.is_literal:
        return literal(-term.value)
    kind = common(term, term)
    if term.family is Family.INTEGER and pa.types.is_decimal(kind):
        raise Unfit(
            "integers are calculated as long, which has not each of these: CAST(x AS decimal(20,0)), or AS long"
        )
    return Term(pc.negate_checked(converted(term, kind).expression), kind)


def _of_decimals(sign: str, left: Term, right: Term, kind: pa.DataType) -> Term:
    """Arrow's own rules of precision, and 256 bits where it would refuse 128."""
    if sign == "*":
        (first, scale), (second, more) = (
            (1, 0) if term.family is Family.NULL else digits(term) for term in (left, right)
        )
        result = decimal(first + second + 1, scale + more)
        wide = result.bit_width > 128
        kinds = [_of_width(wide, first, scale), _of_width(wide, second, more)]
    else:
        result = decimal(kind.precision + 1, kind.scale)
        kinds = [_of_width(result.bit_width > 128, kind.precision, kind.scale)] * 2
    a, b = (converted(term, each).expression for term, each in zip((left, right), kinds, strict=True))
    return _in_order(sign, a, b, result)


def _in_order(sign: str, a: pc.Expression, b: pc.Expression, kind: pa.DataType) -> Term:
    """Acero reorders a chain of sums, or of products, also of doubles, and whether one overflows: a cast that changes
    nothing ends the chain."""
    return Term(_CHECKED[sign](a, b).cast(kind), kind)


def _of_width(is_wide: bool, precision: int, scale: int) -> pa.DataType:
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, scale)
