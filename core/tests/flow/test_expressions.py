"""Expressions as texts: what each says of a row, beside a model in Python, and what the language refuses."""

from __future__ import annotations

import datetime as dt
import math
import operator
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, node_of, orders
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, ConfigError
from onefold.core.values.ddl import _TYPES, schema_of
from onefold.flow.evaluation import evaluation
from onefold.flow.expressions import expression_of

Row = dict[str, Any]

COLUMNS = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("small", pa.int16()),
        ("big", pa.uint64()),
        ("price", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(38, 18)),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("note", pa.string()),
        ("is_paid", pa.bool_()),
        ("is_new", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("data", pa.binary()),
        ("code", pa.binary(2)),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("tags", pa.list_(pa.string())),
        ("größe", pa.int64()),
        ("order by", pa.int64()),
        ("date", pa.date32()),
        ("of", pa.struct([("n", pa.int64()), ("in", pa.struct([("text", pa.string())]))])),
    ]
)


def of_rows(text: str, rows: list[Row], columns: pa.Schema = COLUMNS) -> list[Any]:
    """What a select makes of the text on each row."""
    flow, stream = orders(columns)
    node = node_of(flow, stream.select(made=text))
    found = evaluation(node)(pa.RecordBatch.from_pylist(rows, columns))
    return [value for _, batch in found for value in batch["made"].to_pylist()]


def value(text: str, **row: Any) -> Any:
    (found,) = of_rows(text, [row])
    return found


def refused(text: str, columns: pa.Schema = COLUMNS) -> tuple[str, str]:
    with pytest.raises(ConfigError) as refusal:
        orders(columns)[1].select(made=text)
    return refusal.value.code, refusal.value.message


# The model: an expression's text, how tightly it binds, its type, and its value of a row.


class Fails(Exception):
    """The expression has no value of the row."""


@dataclass(frozen=True)
class Model:
    text: str
    binds: int
    kind: str
    of: Callable[[Row], Any]

    def within(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


_COLUMN = re.compile(r"\b(a|b|small|price|wide)\b")
OR, AND, NOT, COMPARED, ADDED, MULTIPLIED, SIGNED, ATOM = range(8)
SIGNS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SUMS = {"+": (ADDED, operator.add), "-": (ADDED, operator.sub), "*": (MULTIPLIED, operator.mul)}


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Null where any value is null."""
    return lambda *values: None if None in values else function(*values)


def is_long(found: Any) -> bool:
    return -(2**63) <= found < 2**63


def fitting(found: Any) -> Any:
    if not is_long(found):
        raise Fails
    return found


def rest(dividend: int, divisor: int) -> int:
    if divisor == 0 or (dividend, divisor) == (-(2**63), -1):
        raise Fails
    return int(math.copysign(1, dividend)) * (abs(dividend) % abs(divisor))


def number(found: int | Decimal) -> Model:
    is_whole = isinstance(found, int) and is_long(found)
    return Model(str(found), ATOM, "integer" if is_whole else "decimal", lambda _: Fraction(found))


class Expressions:
    """Makes random expressions. The type of an integer decides whether it overflows, so each has its kind."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._one_of = self._random.choice

    def value(self) -> int | Decimal:
        most = self._one_of([9, 9, 300, 2**63])
        whole = self._random.randint(0, most)
        return whole if self._random.random() < 0.7 else Decimal(whole).scaleb(-self._random.randint(1, 3))

    def literal(self) -> Model:
        found = self.value()
        is_long_integer = isinstance(found, int) and is_long(found)
        return Model(str(found), ATOM, "integer" if is_long_integer else "decimal", lambda _: Fraction(found))

    def number(self, depth: int, kinds: Sequence[str] = ("integer", "decimal")) -> Model:
        kind = self._one_of(kinds)
        if not depth or self._random.random() < 0.2:
            name = self._one_of(["a", "b", "small"] if kind == "integer" else ["price", "wide"])
            return Model(name, ATOM, kind, lambda row: None if row[name] is None else Fraction(row[name]))
        made = self._one_of([self.literal, *[self._sum] * 3, self._rest, self._minus, self._cast])
        found = made() if made == self.literal else made(depth - 1, kinds)  # type: ignore[call-arg]
        return found if found.kind in kinds else self.number(depth, kinds)

    def operand(self) -> Model:
        """Of columns: what literals alone decide, `x OR 1 = 1`, is not computed, so that it never fails."""
        return next(found for found in iter(lambda: self.number(2), None) if _COLUMN.search(found.text))

    def _sum(self, depth: int, kinds: Sequence[str]) -> Model:
        sign = self._one_of([*SUMS])
        (binds, function), left, right = SUMS[sign], self.number(depth, kinds), self.number(depth, kinds)
        is_whole = left.kind == right.kind == "integer"
        calculate = strict(lambda a, b: fitting(function(a, b)) if is_whole else function(a, b))
        text = f"{left.within(binds)} {sign} {right.within(binds + 1)}"
        kind = "integer" if is_whole else "decimal"
        return Model(text, binds, kind, lambda row: calculate(left.of(row), right.of(row)))

    def _rest(self, depth: int, _: Sequence[str]) -> Model:
        left, right = self.number(depth, ["integer"]), self.number(depth, ["integer"])
        text = f"{left.within(MULTIPLIED)} % {right.within(SIGNED)}"
        divide = strict(rest)
        return Model(text, MULTIPLIED, "integer", lambda row: divide(left.of(row), right.of(row)))

    def _minus(self, depth: int, kinds: Sequence[str]) -> Model:
        inner = self.number(depth, kinds)
        if inner.text == str(2**63):
            return inner  # its negative is an integer, and it is none
        negate = strict(lambda value: fitting(-value) if inner.kind == "integer" else -value)
        return Model(f"- {inner.within(SIGNED)}", SIGNED, inner.kind, lambda row: negate(inner.of(row)))

    def _cast(self, depth: int, _: Sequence[str]) -> Model:
        inner = self.number(depth)
        name, has = self._one_of(CASTS)

        def fits(value: Fraction) -> Fraction:
            if not has(value):
                raise Fails
            return value

        cast = strict(fits)
        kind = "decimal" if name.startswith("decimal") else "integer"
        return Model(f"CAST({inner.text} AS {name})", ATOM, kind, lambda row: cast(inner.of(row)))

    def condition(self, depth: int) -> Model:
        simple = [self._compared, self._between, self._in, self._null, self._boolean, self._text]
        made = self._one_of(simple + [self._joined, self._joined, self._joined, self._not] * bool(depth))
        return made(depth - 1)

    def _boolean(self, _: int) -> Model:
        name = self._one_of(["is_paid", "is_new"])
        return Model(name, ATOM, "boolean", lambda row: row[name])

    def _text(self, _: int) -> Model:
        sign, text = self._one_of([*SIGNS]), self._one_of(["", "a", "it's", "ä", "\U00010000", "\uffff"])
        compare, quoted = strict(SIGNS[sign]), text.replace("'", "''")
        return Model(f"note {sign} '{quoted}'", COMPARED, "boolean", lambda row: compare(row["note"], text))

    def _compared(self, _: int) -> Model:
        sign, left, right = self._one_of([*SIGNS]), self.operand(), self.number(2)
        compare = strict(SIGNS[sign])
        text = f"{left.within(ADDED)} {sign} {right.within(ADDED)}"
        return Model(text, COMPARED, "boolean", lambda row: compare(left.of(row), right.of(row)))

    def _between(self, _: int) -> Model:
        inner, low, high = self.operand(), self.number(1), self.number(1)
        word = self._one_of(["BETWEEN", "NOT BETWEEN"])
        text = f"{inner.within(ADDED)} {word} {low.within(ADDED)} AND {high.within(ADDED)}"

        def between(row: Row) -> bool | None:
            found, least, most = inner.of(row), low.of(row), high.of(row)
            result = both(strict(operator.ge)(found, least), strict(operator.le)(found, most))
            return result if word == "BETWEEN" else opposite(result)

        return Model(text, COMPARED, "boolean", between)

    def _in(self, _: int) -> Model:
        inner, word = self.operand(), self._one_of(["IN", "NOT IN"])
        more = [self._one_of([None, self.value(), self.value()]) for _ in range(self._random.randint(0, 3))]
        items = [*more, self.value()]
        shown = ", ".join("NULL" if item is None else str(item) for item in items)

        def among(row: Row) -> bool | None:
            found = inner.of(row)
            each = [None if None in (found, item) else found == Fraction(item) for item in items]
            result = True if True in each else None if None in each else False
            return result if word == "IN" else opposite(result)

        return Model(f"{inner.within(ADDED)} {word} ({shown})", COMPARED, "boolean", among)

    def _null(self, _: int) -> Model:
        inner, is_null = self.operand(), self._one_of([True, False])
        text = f"{inner.within(ADDED)} IS {'' if is_null else 'NOT '}NULL"
        return Model(text, COMPARED, "boolean", lambda row: (inner.of(row) is None) == is_null)

    def _not(self, depth: int) -> Model:
        inner = self.condition(depth)
        return Model(f"NOT {inner.within(NOT)}", NOT, "boolean", lambda row: opposite(inner.of(row)))

    def _joined(self, depth: int) -> Model:
        left, right = self.condition(depth), self.condition(depth)
        binds, word, join = self._one_of([(AND, "AND", both), (OR, "OR", either)])
        text = f"{left.within(binds)} {word} {right.within(binds + 1)}"
        return Model(text, binds, "boolean", lambda row: join(left.of(row), right.of(row)))


CASTS: list[tuple[str, Callable[[Fraction], bool]]] = [
    ("byte", lambda value: value.denominator == 1 and -128 <= value <= 127),
    ("int", lambda value: value.denominator == 1 and -(2**31) <= value < 2**31),
    ("long", lambda value: value.denominator == 1 and is_long(value)),
    ("decimal(6,1)", lambda value: (value * 10).denominator == 1 and abs(value) < 10**5),
    ("decimal(38,4)", lambda value: (value * 10**4).denominator == 1 and abs(value) < 10**34),
]


def opposite(found: bool | None) -> bool | None:
    return None if found is None else not found


def both(left: bool | None, right: bool | None) -> bool | None:
    return False if False in (left, right) else None if None in (left, right) else True


def either(left: bool | None, right: bool | None) -> bool | None:
    return opposite(both(opposite(left), opposite(right)))


INTEGERS = st.none() | st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1, 2**31])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": INTEGERS,
            "b": INTEGERS,
            "small": st.none() | st.integers(-(2**15), 2**15 - 1),
            "price": st.none() | st.decimals(-3, 3, places=2) | st.just(Decimal("9999999999.99")),
            "wide": st.none() | st.decimals(-2, 2, places=18) | st.just(Decimal("-99999999999999999999.9")),
            "note": st.none() | st.sampled_from(["", "a", "A", "it's", "ä", "\U00010000"]),
            "is_paid": st.none() | st.booleans(),
            "is_new": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=5,
)


def modelled(model: Model, rows: list[Row]) -> list[Any] | None:
    """None where any row fails."""
    try:
        return [model.of(row) for row in rows]
    except Fails:
        return None


def made(text: str, rows: list[Row]) -> list[Any] | None:
    """None where a row fails. Numbers are fractions."""
    try:
        found = of_rows(text, rows)
    except BadRecord:
        return None
    except ConfigError as error:
        if any(said in error.message for said in ("overflow", "divide by zero")):  # of literals alone
            return None
        # Of a literal that is cast, and of more than 76 digits.
        assume(not any(said in error.message for said in (" digits", "takes integers", "takes decimals")))
        raise
    return [each if each is None or isinstance(each, bool | str) else Fraction(each) for each in found]


SEEDS = st.integers(0, 2**32)


@settings(deadline=None)
@given(SEEDS, st.integers(0, 3), ROWS)
def test_a_condition_is_what_its_model_says(seed: int, depth: int, rows: list[Row]) -> None:
    model = Expressions(seed).condition(depth)
    assert made(model.text, rows) == modelled(model, rows), model.text


@settings(deadline=None)
@given(SEEDS, st.integers(0, 4), ROWS)
def test_a_number_is_what_its_model_says(seed: int, depth: int, rows: list[Row]) -> None:
    model = Expressions(seed).number(depth)
    assert made(model.text, rows) == modelled(model, rows), model.text


NAN, INFINITY = math.nan, math.inf
LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
WITH_ZONE = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
VALUES: list[tuple[str, Row, Any]] = [
    # Integers are long, whatever they were.
    ("small + small", {"small": 32767}, 65534),
    ("- small", {"small": -32768}, 32768),
    ("a + 0", {"a": LONG_MAX}, LONG_MAX),
    ("-9223372036854775808", {}, LONG_MIN),
    ("a = -9223372036854775808", {"a": LONG_MIN}, True),
    ("a < 99999999999999999999", {"a": LONG_MAX}, True),
    ("small = 70000", {"small": 4464}, False),
    ("-7 % 2", {}, -1),
    ("7 % -2", {}, 1),
    ("a % 0", {"a": None}, None),
    ("big = 18446744073709551615", {"big": 2**64 - 1}, True),
    ("big > a", {"big": 2**64 - 1, "a": -1}, True),
    ("big IN (1, 18446744073709551615)", {"big": 2**64 - 1}, True),
    ("CAST(big AS decimal(20,0)) + 1", {"big": 2**64 - 1}, Decimal(2**64)),
    # Decimals have all their digits, and are compared with integers by them.
    ("price * 0.01", {"price": Decimal("1.23")}, Decimal("0.0123")),
    ("price * a", {"price": Decimal("9999999999.99"), "a": LONG_MAX}, Decimal("92233720368455524349631452241.93")),
    ("CAST(wide + wide AS decimal(38,18))", {"wide": Decimal("1.000000000000000001")}, Decimal("2.000000000000000002")),
    ("price * wide > 0", {"price": Decimal("0.01"), "wide": Decimal("1e-18")}, True),
    ("price * wide = 0.00000000000000000001", {"price": Decimal("0.01"), "wide": Decimal("1e-18")}, True),
    ("wide = 0.000000000000000000000000000001", {"wide": Decimal(0)}, False),
    ("price = 1.230", {"price": Decimal("1.23")}, True),
    ("price IN (1.230, 7)", {"price": Decimal("1.23")}, True),
    ("price > a", {"price": Decimal("0.50"), "a": 0}, True),
    ("1.50", {}, Decimal("1.50")),
    ("007", {}, 7),
    ("0.5 + 1.", {}, Decimal("1.5")),
    # Doubles are those of IEEE 754. A literal is one where it is exactly one.
    ("x = x", {"x": NAN}, False),
    ("x <> x", {"x": NAN}, True),
    ("x > 0", {"x": NAN}, False),
    ("x IN (1, 0)", {"x": NAN}, False),
    ("x BETWEEN 0 AND 1", {"x": NAN}, False),
    ("x IS NULL", {"x": NAN}, False),
    ("x IN (0)", {"x": -0.0}, True),
    ("x = 0", {"x": -0.0}, True),
    ("x + x", {"x": 1.7976931348623157e308}, INFINITY),
    ("x > 9007199254740992", {"x": 9007199254740994.0}, True),
    ("x = 0.5", {"x": 0.5}, True),
    ("x = 1e-1", {"x": 0.1}, True),
    ("x / 4", {"x": 1.0}, 0.25),
    ("small / 4e0", {"small": 1}, 0.25),
    ("x = y", {"x": 0.1, "y": 0.1}, False),
    ("CAST(a AS double)", {"a": 2**53}, float(2**53)),
    ("CAST(1.5 AS float)", {}, 1.5),
    # Null.
    ("a = NULL", {"a": 1}, None),
    ("NULL = NULL", {}, None),
    ("NULL IS NULL", {}, True),
    ("a IN (1, NULL)", {"a": 1}, True),
    ("a IN (1, NULL)", {"a": 2}, None),
    ("a NOT IN (1, NULL)", {"a": 2}, None),
    ("a IN (NULL)", {"a": 2}, None),
    ("NULL IN (1)", {}, None),
    ("is_paid AND NULL", {"is_paid": False}, False),
    ("is_paid OR NULL", {"is_paid": True}, True),
    ("a + NULL", {"a": 1}, None),
    ("price * NULL", {"price": Decimal(1)}, None),
    ("CAST(NULL AS long)", {}, None),
    ("price BETWEEN NULL AND 0", {"price": Decimal(1)}, False),
    # Texts, bytes and booleans.
    ("note = 'it''s -- /* no */ comment; \\'", {"note": "it's -- /* no */ comment; \\"}, True),
    ("note < 'a'", {"note": "B"}, True),
    ("note = 'e\u0301'", {"note": "\u00e9"}, False),
    ("word = 'x' AND word IN ('x', 'y')", {"word": "x"}, True),
    ("data = CAST('ä' AS binary)", {"data": "ä".encode()}, True),
    ("code = data", {"code": b"ab", "data": b"ab"}, True),
    ("CAST(data AS string) = 'ä'", {"data": "ä".encode()}, True),
    ("is_paid = (a = 1)", {"is_paid": True, "a": 1}, True),
    ("is_paid IN (TRUE)", {"is_paid": False}, False),
    ("tags IS NOT NULL", {"tags": []}, True),
    # Times.
    ("at = TIMESTAMP '2026-11-30 13:00:00+01:00'", {"at": WITH_ZONE}, True),
    ("at >= TIMESTAMP '2026-11-30T12:00:00.000001Z'", {"at": WITH_ZONE}, False),
    ("local < TIMESTAMP '2026-11-30 12:00:00.0005'", {"local": WITH_ZONE.replace(tzinfo=None)}, True),
    ("local IN (TIMESTAMP '2026-11-30 12:00:00')", {"local": WITH_ZONE.replace(tzinfo=None)}, True),
    ("day BETWEEN DATE '2026-11-30' AND DATE '2026-12-31'", {"day": dt.date(2026, 11, 30)}, True),
    ("TIMESTAMP '2026-11-30 13:00:00+01:00'", {}, WITH_ZONE),
    ("CAST(local AS timestamp_ntz)", {"local": dt.datetime(1, 1, 1)}, dt.datetime(1, 1, 1)),
    # Names.
    ("größe", {"größe": 1}, 1),
    ('"order by" = "größe"', {"order by": 1, "größe": 1}, True),
    ("date > DATE '2026-11-29'", {"date": dt.date(2026, 11, 30)}, True),
    ("of.n", {"of": {"n": 1}}, 1),
    ('of."in".text IS NULL', {"of": None}, True),
    ("of IS NULL", {"of": {"n": None}}, False),
    # How tightly things bind.
    ("((a)) IN ((1), 2) AND (is_paid = (b IS NULL))", {"a": 1, "is_paid": True}, True),
    ("CAST((CAST(a AS decimal(9))) AS decimal(9,2))", {"a": 1}, Decimal("1.00")),
    ("NOT a = 1 AND b = 1", {"a": 2, "b": 1}, True),
    ("is_paid OR is_new AND is_paid", {"is_paid": True, "is_new": False}, True),
    ("a - b - 1", {"a": 5, "b": 2}, 2),
    ("x + 1e16 + -1e16", {"x": 1.0}, 0.0),
    ("x * 1e300 * 1e300 * y", {"x": 1e-300, "y": 0.0}, 0.0),
    ("a + -9223372036854775807 + -9223372036854775807", {"a": LONG_MAX}, -LONG_MAX),
    ("- a % 3 * 2", {"a": 5}, -4),
    ("a BETWEEN 1 AND 2 AND is_paid", {"a": 1, "is_paid": False}, False),
]


@pytest.mark.parametrize(("text", "row", "expected"), VALUES, ids=[text for text, _, _ in VALUES])
def test_a_text_has_this_value_of_a_row(text: str, row: Row, expected: Any) -> None:
    found = value(text, **row)
    assert found == expected and type(found) is type(expected)
    made = expression_of(text, COLUMNS, "select")
    assert pickle.loads(pickle.dumps(made)).equals(made)  # its way to the workers of either runtime


FAILING: list[tuple[str, Row]] = [
    ("a + 1", {"a": LONG_MAX}),
    ("a - 1", {"a": LONG_MIN}),
    ("a * a", {"a": 2**32}),
    ("- a", {"a": LONG_MIN}),
    ("a % b", {"a": 1, "b": 0}),
    ("a % b", {"a": LONG_MIN, "b": -1}),
    ("x / y", {"x": 1.0, "y": 0.0}),
    ("b <> 0 AND a % b = 0", {"a": 1, "b": 0}),
    ("CAST(a AS byte)", {"a": 128}),
    ("CAST(big AS long)", {"big": 2**63}),
    ("CAST(price AS long)", {"price": Decimal("1.50")}),
    ("CAST(price AS decimal(12,1))", {"price": Decimal("1.23")}),
    ("CAST(price AS decimal(3,2))", {"price": Decimal("10.00")}),
    ("CAST(a AS decimal(3,0))", {"a": 1000}),
    ("CAST(a AS double)", {"a": 2**53 + 1}),
    ("CAST(a AS float)", {"a": 2**24 + 1}),
    ("CAST(wide + wide AS decimal(38,18))", {"wide": Decimal("99999999999999999999.000000000000000000")}),
    ("a > 9223372036854775807 + 1", {"a": 1}),
    ("a = 1 % 0", {"a": 1}),
    ("a - 1 + 1", {"a": LONG_MIN}),
    ("a + (b + b)", {"b": LONG_MAX, "a": None}),
    ("CAST(data AS string)", {"data": b"\xff"}),
]


@pytest.mark.parametrize(("text", "row"), FAILING, ids=[text for text, _ in FAILING])
def test_a_value_that_its_type_does_not_have_is_an_error_of_the_row(text: str, row: Row) -> None:
    with pytest.raises(BadRecord) as failed:
        value(text, **row)
    assert failed.value.code == "expression-fails"
    assert f"{text} cannot be computed of the row {{" in failed.value.message
    assert all(repr(value) in failed.value.message for value in row.values())


def test_an_error_names_operator_column_text_and_row() -> None:
    flow, stream = orders(COLUMNS.empty_table().select(["a", "b"]).schema)
    node = node_of(flow, stream.with_columns(fine="a + b", c="a % b"))
    rows = [{"a": number, "b": abs(number - 700)} for number in range(1000)]
    with pytest.raises(BadRecord) as failed:
        list(evaluation(node)(pa.RecordBatch.from_pylist(rows)))
    said = "select-1: c = a % b cannot be computed of the row {'a': 700, 'b': 0}: divide by zero"
    assert failed.value.message.startswith(said)


UNSUPPORTED = [
    *[
        "lower(note)",
        "mine(a)",
        "abs(a)",
        "coalesce(a, 0)",
        "CASE WHEN is_paid THEN 1 END",
        "if(is_paid, 1, 2)",
        "current_date",
    ],
    *["note LIKE 'a%'", "note ILIKE 'a'", "note ~ 'a'", "a IS DISTINCT FROM b", "a <=> b", "is_paid IS TRUE", "a || b"],
    *["a ^ b", "a & b", "a | b", "~a", "a << 1", "a DIV 2", "a // 2", "a ** 2", "a = ANY(b)", "EXISTS (SELECT 1)"],
    *[
        "a IN (SELECT 1)",
        "(SELECT 1)",
        "SELECT 1",
        "a IN ()",
        "a IN (b)",
        "a IN (1, b)",
        "a IN b",
        "a BETWEEN SYMMETRIC 1 AND 2",
    ],
    *[
        "sum(a)",
        "sum(a) OVER ()",
        "row_number() OVER (ORDER BY a)",
        "a OVER (b)",
        "tags[0]",
        "{a}",
        "(a, b)",
        "(a, b) = (1, 2)",
    ],
    *[
        "a AS c",
        "a c",
        "a, b",
        "a; b",
        "a;",
        ";",
        "",
        "  ",
        "a >",
        "> a",
        "(a",
        "a)",
        "a > > b",
        "AND",
        "NOT",
        "a NOT",
        "if",
        "*",
        "of.*",
    ],
    *[
        "a -- b",
        "a /* b */",
        "/* b */ a",
        "a # b",
        "a\u00a0+ 1",
        "a /*",
        "'a",
        '"a',
        "`a`",
        "a == b",
        "a::int",
        "a ISNULL",
        "CAST(a AS varchar)",
        "CAST(note AS text)",
        "CAST(a AS int8)",
        "CAST(a AS decimal(39,0))",
        "CAST(a AS decimal(9,-2))",
        "CAST(a AS int[])",
        "CAST(a AS timestamp(3))",
        "CAST(tags AS array<string>)",
        "a NOT NULL",
        "a IS UNKNOWN",
        "a IS NOT `",
        "ELSE a",
        "CAST(a AS int",
        "CAST(a AS int = 1",
        "+a",
        ".5",
        ". 5",
        "a IN (1,)",
    ],
    *[
        "TRY_CAST(a AS int)",
        "CAST(note AS string FORMAT 'x')",
        "INTERVAL '1' DAY",
        "TIME '10:00:00' = 1 = 2",
        "INT 5",
        "INT '5'",
    ],
    *[
        "0x1F",
        "1_000",
        "1L",
        "x'ff'",
        "N'a'",
        "'a' 'b'",
        ":a",
        "?",
        "@a",
        "{{ a }}",
        "FALSE . note",
        "1.5.2",
        "a.1",
        "of.1",
    ],
    *[
        "a = b = is_paid",
        "is_paid = b IS NULL",
        "is_paid = NOT is_new",
        "is_paid = (a) IS NULL",
        "a IN (1) = is_paid",
        "a BETWEEN 1 AND 2 = is_paid",
    ],
    *[
        "note COLLATE c = 'a'",
        "at AT TIME ZONE 'UTC'",
        "DATE('2026-11-30')",
        "PRIOR a",
        "a -> b",
        "note ESCAPE 'a'",
        "a XOR b",
    ],
    *[
        "(" * 3000 + "a" + ")" * 3000,
        "NOT " * 3000 + "is_paid",
        "- " * 3000 + "a",
        "of" + ".in" * 3000 + "()",
        "a " * 60_000,
    ],
    " AND ".join(["is_paid"] * 102),
]


@pytest.mark.parametrize("text", UNSUPPORTED, ids=[text[:40] for text in UNSUPPORTED])
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    assert refused(text)[0] == "expression-unsupported"


UNTYPED = [
    # Doubles beside others.
    *[
        "x > 0.1",
        "x > price",
        "x > a",
        "x > big",
        "x + a",
        "x IN (0.1)",
        "x = 9007199254740993",
        "CAST(x AS long)",
        "CAST(x AS decimal(9,2))",
    ],
    *[
        "CAST(x AS float)",
        "CAST(price AS double)",
        "CAST(0.1 AS double)",
        "CAST(1e-1 AS float)",
        "1e400",
        "1e-400",
        "x % 2",
    ],
    # Division, and digits.
    *[
        "a / 2",
        "price / 2",
        "1 / 2",
        "price % 2",
        "big + 1",
        "- big",
        "wide + wide",
        "price * wide",
        "wide * wide * wide > 0",
    ],
    *["9" * 39, "0." + "1" * 39, "9" * 5000],
    # Texts are no numbers, no times and no bytes.
    *[
        "a = '1'",
        "note = 1",
        "note > a",
        "note + 'x'",
        "CAST(note AS int)",
        "CAST(a AS string)",
        "data = 'a'",
        "CAST('2026-11-30' AS date)",
    ],
    *["at > '2026-11-30'", "CAST('2026-11-30 00:00:00' AS timestamp)", "CAST(200 AS byte)", "CAST(1.5 AS int)"],
    # Times.
    *[
        "at > local",
        "at > TIMESTAMP '2026-11-30 12:00:00'",
        "local > TIMESTAMP '2026-11-30 12:00:00Z'",
        "at > day",
        "local = day",
    ],
    *[
        "CAST(at AS date)",
        "CAST(day AS timestamp)",
        "CAST(at AS timestamp_ntz)",
        "at + 1",
        "at - at",
        "day - day",
        "- at",
    ],
    *[
        "DATE '2026-02-29'",
        "DATE '26-2-1'",
        "DATE '2026-11-30 00:00:00'",
        "TIMESTAMP '2026-11-30'",
        "TIMESTAMP '2026-11-30 12:00'",
    ],
    *[
        "TIMESTAMP '2026-11-30 12:00:00 Europe/Berlin'",
        "TIMESTAMP '2026-11-30 12:00:00.1234567'",
        "TIMESTAMP '2026-11-30 24:00:00'",
    ],
    *["TIMESTAMP '0001-01-01 00:00:00+01:00'", "DATE '٢٠٢٦-11-30'", "date '2026-11-30x'"],
    # Others.
    *[
        "is_paid > TRUE",
        "is_paid = 1",
        "is_paid + 1",
        "NOT a",
        "a AND is_paid",
        "a OR b",
        "NULL",
        "- NULL",
        "NULL + NULL",
        "tags = tags",
    ],
    *[
        "of = of",
        "- is_paid",
        "- note",
        "CAST(a AS boolean)",
    ],
    *["CAST(is_paid AS int)", "CAST(a AS timestamp)"],
]


@pytest.mark.parametrize("text", UNTYPED, ids=[text[:40] for text in UNTYPED])
def test_types_that_do_not_go_together_are_refused(text: str) -> None:
    assert refused(text)[0] == "expression-type"


@pytest.mark.parametrize(
    "text", ["c = 1", "A = 1", '"note " = 1', "of.m = 1", "a.n = 1", "OF.n = 1", 'note = "paid"', "a\u200b = 1"]
)
def test_a_column_that_is_not_there_is_refused(text: str) -> None:
    assert refused(text)[0] == "no-such-column"


def test_a_refusal_names_the_construct_its_place_and_what_there_is() -> None:
    _, said = refused("a > 1 AND lower(note) = 'x'")
    assert said.startswith(
        """select("a > 1 AND lower(note) = 'x'"), near character 11, "lower(note) = 'x'": the function LOWER"""
    )
    assert "BETWEEN" in said and "pyarrow.compute" in said


@pytest.mark.parametrize("name", [*_TYPES, "decimal", "dec(9,2)", "numeric(38,38)"])
def test_a_cast_knows_the_names_of_types_that_schemas_know(name: str) -> None:
    made = orders(COLUMNS)[1].select(made=f"CAST(NULL AS {name.upper()})").schema
    assert made.field(0).type == schema_of(f"made {name}").field(0).type


def test_a_null_in_a_dictionary_is_null() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None]))
    flow, stream = orders(pa.schema([("word", words.type)]))
    node = node_of(flow, stream.select(made="word IS NULL"))
    ((_, batch),) = evaluation(node)(pa.RecordBatch.from_arrays([words], ["word"]))
    assert batch["made"].to_pylist() == [False, True]


def test_a_field_whose_name_a_struct_has_twice_is_refused() -> None:
    twice = pa.schema([("of", pa.struct([("n", pa.int64()), ("n", pa.int64())]))])
    assert refused("of.n", twice)[0] == "no-such-column"


def test_a_text_filters_and_is_shown_as_it_was_written() -> None:
    flow, stream = orders(COLUMNS)
    rows = [{"a": 1, "note": "DE"}, {"a": 0, "note": "DE"}, {"a": 2, "note": "IT"}, {"a": 3, "note": None}]
    kept = stream.filter("a > 0 AND note IN ('DE', 'FR')")
    ((_, batch),) = evaluation(node_of(flow, kept))(pa.RecordBatch.from_pylist(rows, COLUMNS))
    assert batch["a"].to_pylist() == [1]
    kept.select("a", more="a + 1").sink(AnySink("other"))
    assert "keeps rows with a > 0 AND note IN ('DE', 'FR')" in flow.explain()
    assert "selects a, more = a + 1" in flow.explain()
    assert isinstance(expression_of("a > 0", COLUMNS, "filter"), pc.Expression)


def test_a_column_of_a_text_keeps_what_its_schema_says_of_it() -> None:
    columns = pa.schema(
        [pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"}), pa.field("w", pa.decimal256(50, 0))]
    )
    made = orders(columns)[1].select(b="a", w="w", c="a + 1").schema
    assert made.field("b").equals(columns.field("a").with_name("b"), check_metadata=True)
    assert made.field("w").type == pa.decimal256(50, 0) and made.field("c").type == pa.int64()


def test_a_flow_without_texts_imports_no_parser() -> None:
    code = """
import sys
import pyarrow as pa, pyarrow.compute as pc
from flow_parts import orders
orders()[1].filter(pc.field("id") > 1)
assert not [name for name in sys.modules if name.startswith("sqlglot")]
orders()[1].filter("id > 1")
assert "sqlglot" in sys.modules
"""
    run = [sys.executable, "-c", code]
    ended = subprocess.run(run, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}, timeout=120, check=False)
    assert ended.returncode == 0
