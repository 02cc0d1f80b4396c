"""Typed parts of an expression: conversions between their types that lose nothing, and the conditions and numbers made
of them by SQL's rules for null (comparison, membership, arithmetic).

Each conversion is written out, so that Arrow makes none of its own: it would compare decimals by way of doubles, and
uint64 as int64.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.ddl import type_name
from onefold.core.values.exact import TAKES, Family, Mismatch, exact_array, family

Compare = Callable[[pc.Expression, pc.Expression], pc.Expression]

NUMBERS = {Family.INTEGER, Family.DECIMAL, Family.FLOAT}
_NARROW_MAX, _WIDE_MAX = 38, 76  # digits of 128 and 256 bits
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_UNITS = ("s", "ms", "us", "ns")
_NO_LITERAL = object()
_CASTS = {
    *((same, same) for same in Family if same not in (Family.LIST, Family.STRUCT, Family.MAP, Family.OTHER)),
    (Family.INTEGER, Family.DECIMAL),
    (Family.INTEGER, Family.FLOAT),
    (Family.DECIMAL, Family.INTEGER),
    (Family.TEXT, Family.BINARY),
    (Family.BINARY, Family.TEXT),
}
_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked}


class Unfit(ValueError):
    """Types, or a literal and a type, that do not go together."""


@dataclass(frozen=True)
class Term:
    """An expression and its type. A literal has its `value`, which takes any type that has it exactly."""

    expression: pc.Expression
    kind: pa.DataType
    value: Any = _NO_LITERAL

    @property
    def is_literal(self) -> bool:
        return self.value is not _NO_LITERAL

    @property
    def family(self) -> Family:
        return family(self.kind)


def literal(value: Any) -> Term:
    """A value as a literal of its own type: integers are `long`, or decimals where they do not fit."""
    return _constant(value, _kind_of(value))


def _kind_of(value: Any) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int() if -(1 << 63) <= value < 1 << 63:
            return pa.int64()
        case int() | Decimal():
            _, figures, exponent = Decimal(value).as_tuple()
            assert isinstance(exponent, int)
            scale = -min(exponent, 0)
            precision = max(len(figures), scale, 1)
            if precision > _NARROW_MAX:
                raise Unfit(f"the number has {precision} digits, and decimals have {_NARROW_MAX}: shorten it")
            return pa.decimal128(precision, scale)
        case float():
            return pa.float64()
        case dt.datetime():
            return pa.timestamp("us", None if value.tzinfo is None else "UTC")
        case dt.date():
            return pa.date32()
        case _:
            return pa.string()


def converted(term: Term, kind: pa.DataType) -> Term:
    """The same value as another type. Raises Unfit where the type does not take that: a literal by its value, others by
    their types. Arrow checks the values of these, row by row."""
    if term.kind == kind:
        return term
    if term.is_literal:
        return _constant(_as_float(term.value, kind), kind)
    return Term(_cast(term.expression, term.kind, kind), kind)


def decoded(term: Term) -> Term:
    """The term without the encoding of its values by a dictionary, which may have nulls of its own."""
    return converted(term, term.kind.value_type) if pa.types.is_dictionary(term.kind) else term


def common(*terms: Term) -> pa.DataType:
    """The type that has all values of these terms exactly. Raises Unfit."""
    typed = [term for term in terms if term.family is not Family.NULL]
    families = {term.family for term in typed}
    names = " and ".join(dict.fromkeys(type_name(term.kind) for term in typed))
    if not typed:
        return pa.null()
    if Family.FLOAT in families and families <= NUMBERS:
        if odd := next((term for term in typed if not _is_double(term)), None):
            raise Unfit(
                f"{names} do not go together: a double does not have each {type_name(odd.kind)}. Cast integers,"
                " CAST(x AS double), and write a literal as a double: 1e-1 for 0.1"
            )
        return pa.float64()
    if families <= NUMBERS:
        return _common_number(typed)
    if len(families) > 1:
        raise Unfit(f"{names} do not go together: write the literal as one of the column's type, or cast one of them")
    kinds = [_decoded(term.kind) for term in typed]
    match families.pop():
        case Family.BOOLEAN:
            return pa.bool_()
        case Family.TEXT:
            return pa.string() if set(kinds) == {pa.string()} else pa.large_string()
        case Family.BINARY:
            return pa.binary() if set(kinds) == {pa.binary()} else pa.large_binary()
        case Family.DATE if pa.date64() not in kinds:
            return pa.date32()
        case Family.NAIVE | Family.ZONED:
            unit = max((kind.unit for kind in kinds), key=_UNITS.index)
            return pa.timestamp(unit, None if kinds[0].tz is None else "UTC")
        case _:
            raise Unfit(f"{names} is a type that can be taken as it is, and tested by IS NULL, and nothing else")


def digits(term: Term) -> tuple[int, int]:
    """Precision and scale of the decimals that have all values of an integer or a decimal."""
    kind = _decoded(term.kind)
    if term.is_literal and isinstance(term.value, int):
        return len(str(abs(term.value))), 0
    if pa.types.is_decimal(kind):
        return kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    return _INTEGER_DIGITS[kind.bit_width] + (kind == pa.uint64()), 0


def decimal(precision: int, scale: int) -> pa.DataType:
    """The decimal type, of up to 76 digits. Raises Unfit for more."""
    if precision > _WIDE_MAX:
        raise Unfit(f"the result has {precision} digits, more than {_WIDE_MAX}: cast its parts to shorter decimals")
    return (pa.decimal128 if precision <= _NARROW_MAX else pa.decimal256)(precision, scale)


def _common_number(terms: Sequence[Term]) -> pa.DataType:
    if all(term.family is Family.INTEGER and _decoded(term.kind) != pa.uint64() for term in terms):
        return pa.int64()
    scale = max(digits(term)[1] for term in terms)
    return decimal(max(precision - own for precision, own in map(digits, terms)) + scale, scale)


def _is_double(term: Term) -> bool:
    """Whether a double has each value of the term."""
    if term.is_literal:
        try:
            _as_float(term.value, pa.float64())
        except Unfit:
            return False
        return True
    return term.family is Family.FLOAT or (term.family is Family.INTEGER and _decoded(term.kind).bit_width <= 32)


def _as_float(value: Any, kind: pa.DataType) -> Any:
    """A number as a float, where that is to be its type."""
    if value is None or not pa.types.is_floating(kind):
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float):
        raise Unfit(f"{value!r:.50} is no {type_name(kind)}")
    try:
        found = pa.scalar(float(value), kind).as_py()
    except OverflowError:
        found = None
    if found is None or found != value:
        raise Unfit(f"{value} is no {type_name(kind)} exactly: write the nearest one as a double, 1e-1 for 0.1")
    return found


def _constant(value: Any, kind: pa.DataType) -> Term:
    try:
        (scalar,) = exact_array([value], kind)
    except Mismatch as error:
        raise Unfit(f"{error.value}: {error.reason}") from None
    return Term(pc.scalar(scalar), kind, value)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return _decoded(kind.value_type) if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) else kind


def _cast(expression: pc.Expression, given: pa.DataType, kind: pa.DataType) -> pc.Expression:
    if pa.types.is_dictionary(given):
        expression, given = expression.cast(given.value_type), given.value_type
    source, wanted = family(given), family(kind)
    is_narrowed = source is wanted is Family.FLOAT and given.bit_width > kind.bit_width  # which Arrow would round
    is_odd = pa.types.is_run_end_encoded(given) or pa.date64() in (given, kind)
    if is_narrowed:
        raise Unfit("a double has no exact float: leave it one")
    if is_odd or ((source, wanted) not in _CASTS and source is not Family.NULL):
        raise Unfit(f"{type_name(given)} is not cast to {type_name(kind)}, which {TAKES[wanted]}")
    if (source, wanted) == (Family.INTEGER, Family.DECIMAL):
        given = pa.decimal128(20, 0)  # digits of 2^64
        expression = expression.cast(given)
    if pa.types.is_decimal(given) and pa.types.is_decimal(kind):
        return _rescaled(expression, given, kind)
    return expression.cast(kind)


def _rescaled(expression: pc.Expression, given: pa.DataType, kind: pa.DataType) -> pc.Expression:
    """pyarrow multiplies in the bits that the type has, without a sound look whether the product fits."""
    more = kind.scale - given.scale
    if given.precision + more > _WIDE_MAX:
        raise Unfit(f"{given} is not cast to {kind} in {_WIDE_MAX} digits: cast it to a shorter decimal first")
    return expression.cast(pa.decimal256(_WIDE_MAX, given.scale)).cast(kind) if more > 0 else expression.cast(kind)


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
