"""Draws shapes of flows, and makes records for them."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from typing import Any

from harness.differential import shapes as s
from hypothesis import strategies as st

__all__ = ["PARTITIONS", "encoded", "partition_of", "records", "shapes"]

STEPS_MAX, ENDS_MORE_MAX = 5, 3
PARTITIONS = 4
_BEGIN = dt.datetime(2024, 2, 29, 23, 59, 59, 999_000, tzinfo=dt.UTC)


def _call(function: str, *of: st.SearchStrategy[Any]) -> st.SearchStrategy[s.Expression]:
    return st.tuples(*of).map(lambda arguments: s.Call(function, arguments))


def _some(of: type, *values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([of(each) for each in values])


_LONG = _some(s.Field, "n", "account", "id")
_NUMBER = st.integers(-20, 20).map(s.Const)
_TEXT = _some(s.Field, "note", "team")
_CONDITION = st.one_of(
    _call("less", _LONG, _NUMBER),
    _call("at_least", _LONG, _LONG),
    _call("equal", _TEXT, _TEXT),
    _call("differs", _TEXT, _some(s.Const, "a", "")),
    _call("is_small", _LONG),
    _call("begins", _TEXT),
    _call("is_null", _some(s.Field, *s.COLUMNS)),
    _call("is_valid", _some(s.Field, *s.COLUMNS)),
    _call("is_nan", _some(s.Field, "ratio")),
    _call("less", _some(s.Field, "ratio"), _some(s.Const, 0.0, 1.5)),
    _call("at_least", _some(s.Field, "ratio"), _some(s.Field, "ratio")),
    _call("less", _some(s.Field, "amount"), _some(s.Const, Decimal("0.00"), Decimal("17.50"))),
)
CONDITION = st.recursive(
    _CONDITION,
    lambda of: st.one_of(_call("and", of, of), _call("or", of, of), _call("not", of)),
    max_leaves=3,
)
TEXT = st.recursive(
    _TEXT,
    lambda of: st.one_of(
        _call("upper", of),
        _call("join", of, of),
        _call("coalesce", of, _some(s.Const, "none")),
        _call("if_else", CONDITION, of, of),
        _call("text", _LONG),
    ),
    max_leaves=3,
)
LONG = st.recursive(
    _LONG,
    lambda of: st.one_of(
        _call("add", of, _NUMBER),
        _call("subtract", of, of),
        _call("multiply", of, _some(s.Const, -1, 0, 3)),
        _call("divide", of, _some(s.Const, -7, 2, 3)),
        _call("negate", of),
        _call("abs", of),
        _call("least", of, of),
        _call("coalesce", of, _NUMBER),
        _call("if_else", CONDITION, of, of),
        _call("length", TEXT),
    ),
    max_leaves=3,
)
_AMOUNT = _some(s.Field, "amount")
RATIO = st.recursive(
    st.one_of(_some(s.Field, "ratio"), _call("over", _some(s.Field, "n", "account"), _some(s.Const, 0.0, 2.0, -4.0))),
    lambda of: st.one_of(
        _call("negate", of), _call("abs", of), _call("coalesce", of, of), _call("if_else", CONDITION, of, of)
    ),
    max_leaves=3,
)
AMOUNT = st.one_of(
    _AMOUNT,
    _call("cents", _call("add", _AMOUNT, _some(s.Const, Decimal("0.25")))),
    _call("cents", _call("multiply", _AMOUNT, _some(s.Const, Decimal(2), Decimal(-1)))),
    _call("if_else", CONDITION, _AMOUNT, _AMOUNT.map(lambda of: s.Call("negate", (of,)))),
)
COLUMN = st.one_of(
    st.tuples(st.just("n"), LONG),
    st.tuples(st.just("account"), _call("least", _LONG, _NUMBER)),
    st.tuples(st.just("note"), TEXT),
    st.tuples(st.just("team"), TEXT),
    st.tuples(st.just("amount"), AMOUNT),
    st.tuples(st.just("ratio"), RATIO),
)
AGGREGATES = st.sampled_from(
    [
        *(("count", column) for column in s.COLUMNS),
        *(("sum", column) for column in ("id", "n", "amount", "ratio")),
        *(("mean", column) for column in ("n", "amount", "ratio")),
        *((name, column) for name in ("min", "max") for column in s.COLUMNS),
    ]
)
IN_ORDER = st.tuples(st.sampled_from(["first", "last"]), st.sampled_from(s.COLUMNS))
OF_ACCOUNT = st.sampled_from([("account",), ("account", "team")])
WITH_NULLS = st.sampled_from([("account",), ("amount",), ("at",), ("note", "n")])
OF_ANY = st.sampled_from([("account",), ("team",), ("amount",), ("team", "n"), ("at", "account")])


@st.composite
def shapes(draw: st.DrawFn, sources: int = 1) -> s.Shape:
    """Flows whose tables do not depend on how the rows are cut into epochs, nor on the order in which rows of two
    branches come.

    `ordered` has the streams in which the rows of an account are in the order of the topic: those of one account are in
    one partition.
    """
    ordered, unused, steps = [True] * sources, {*range(sources)}, list[s.Step]()
    for _ in range(draw(st.integers(1, STEPS_MAX))):
        of = draw(st.sampled_from(sorted(unused) * 3 + [*range(len(ordered))]))
        step = draw(_step(of, ordered))
        steps.append(step)
        used = step.of if isinstance(step, s.United) else (of,)
        made = [_stays_ordered(step, ordered)] * (2 if isinstance(step, s.Mapped | s.FlatMapped | s.Processed) else 1)
        unused = (unused - {*used}) | {*range(len(ordered), len(ordered) + len(made))}
        ordered += made
    more = draw(st.lists(st.integers(0, len(ordered) - 1), max_size=ENDS_MORE_MAX))
    ends = tuple(draw(_end(of, ordered[of])) for of in (*sorted(unused), *more))
    return s.Shape(
        tuple(steps), ends, draw(st.integers(-1, len(ends) - 1)), draw(st.sampled_from([2, 7, 128])), sources
    )


def _step(of: int, ordered: list[bool]) -> st.SearchStrategy[s.Step]:
    stream = st.just(of)
    keyed = [st.builds(s.Processed, stream, st.just(("team",)), st.just("distinct"))]
    if ordered[of]:
        kinds = st.sampled_from(["numbered", "listed", "counted", "alarms"])
        keyed.append(st.builds(s.Processed, stream, OF_ACCOUNT, kinds))
    return st.one_of(
        st.builds(s.Filtered, stream, CONDITION),
        st.builds(
            s.Computed,
            stream,
            st.lists(COLUMN, min_size=1, max_size=3, unique_by=lambda each: each[0]).map(tuple),
            st.booleans(),
        ),
        st.builds(s.Mapped, stream, st.integers(-5, 5)),
        st.builds(s.FlatMapped, stream, st.integers(1, 3)),
        st.lists(st.integers(0, len(ordered) - 1), min_size=1, max_size=2).map(lambda more: s.United((of, *more))),
        st.builds(s.Rebalanced, stream),
        *keyed,
        *keyed,
    )


def _stays_ordered(step: s.Step, ordered: list[bool]) -> bool:
    match step:
        case s.United() | s.Rebalanced():
            return False
        case s.Computed(of, columns, _):
            return ordered[of] and "account" not in dict(columns)
        case s.Processed(of, key, _):
            return ordered[of] and key == ("account",)
        case _:
            return ordered[step.of]


def _end(of: int, is_ordered: bool) -> st.SearchStrategy[s.End]:
    stream = st.just(of)
    several = st.lists(AGGREGATES, min_size=1, max_size=4, unique=True).map(tuple)
    ends = [
        st.builds(s.Appended, stream),
        st.builds(s.Appended, stream),
        st.builds(s.Newest, stream),
        st.builds(s.Aggregated, stream, OF_ANY, several),
        st.builds(s.Busiest, stream, WITH_NULLS, st.booleans()),
        st.builds(s.Reduced, stream, OF_ANY, st.just("largest")),
        st.builds(s.Timed, stream, OF_ANY),
    ]
    if is_ordered:
        in_order = st.lists(IN_ORDER | AGGREGATES, min_size=1, max_size=4, unique=True).map(tuple)
        ends += [
            st.builds(s.Aggregated, stream, OF_ACCOUNT, in_order),
            st.builds(s.Reduced, stream, OF_ACCOUNT, st.just("joined")),
        ]
    return st.one_of(ends)


def records(seed: int, count: int) -> list[s.Row]:
    """Some are there twice, one account has most of them, and any value may be null."""
    chance, made = random.Random(seed), list[s.Row]()
    values = {
        "id": lambda: chance.choice([chance.randint(-9, 9), chance.randint(-(2**33), 2**33)]),
        "account": lambda: chance.choices([0, 1, 2, 3, -5], [60, 20, 10, 5, 5])[0],
        "team": lambda: chance.choice(["a", "b", "Ü", "", "a b"]),
        "n": lambda: chance.randint(-20, 20),
        "amount": lambda: Decimal(chance.randint(-3_000, 3_000)).scaleb(-2),
        "note": lambda: chance.choice(["a", "ab", "'", "ü\\", "", "日本"]),
        "at": lambda: _BEGIN + dt.timedelta(microseconds=chance.choice([0, 1, 999, 1_000_000, -86_400_000_000])),
        "ratio": lambda: chance.choice([0.0, -0.0, 0.25, -1.5, 1e6]),  # whose sums are exact in any order
    }
    for _ in range(count):
        if made and chance.random() < 0.1:
            made.append(dict(chance.choice(made)))
        else:
            made.append({name: None if chance.random() < 0.1 else value() for name, value in values.items()})
    return made


def partition_of(row: s.Row) -> int:
    """All rows of an account are in one partition."""
    return (row["account"] or 0) % PARTITIONS


def encoded(row: s.Row) -> bytes:
    """The record; half of the nulls are left out."""
    given = {name: value for name, value in row.items() if value is not None or (row["n"] or 0) % 2}
    return json.dumps(given, default=_as_json).encode()


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)
