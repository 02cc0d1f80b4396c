"""What tables a shape has of records, in plain Python: loops over dicts, and nothing of onefold's."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any

from harness.differential import shapes as s

__all__ = ["Table", "tables"]

Table = list[tuple[Any, ...]]


def tables(shape: s.Shape, records: Sequence[Sequence[s.Row]]) -> list[Table]:
    """The rows of each end's table, of the records of each source."""
    streams = [list(each) for each in records]
    for step in shape.steps:
        streams += _stepped(step, streams)
    return [_ended(end, streams[end.of]) for end in shape.ends]


def value(of: s.Expression, row: s.Row) -> Any:
    match of:
        case s.Field(name):
            return row[name]
        case s.Const(constant):
            return constant
        case s.Call(function, arguments):
            return FUNCTIONS[function](*(value(each, row) for each in arguments))


def _or_null(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: None if None in arguments else function(*arguments)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _ratio(a: int, b: float) -> float:
    if b == 0:
        return math.copysign(math.inf, a) if a else math.nan
    return a / b


def _and(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": _or_null(lambda a, b: a + b),
    "subtract": _or_null(lambda a, b: a - b),
    "multiply": _or_null(lambda a, b: a * b),
    "divide": _or_null(_quotient),
    "negate": _or_null(lambda a: -a),
    "abs": _or_null(abs),
    "coalesce": lambda a, b: b if a is None else a,
    "least": lambda *of: min((each for each in of if each is not None), default=None),
    "if_else": lambda condition, a, b: None if condition is None else a if condition else b,
    "length": _or_null(len),
    "text": _or_null(str),
    "upper": _or_null(str.upper),
    "join": _or_null(lambda a, b: f"{a}-{b}"),
    "cents": _or_null(lambda a: a.quantize(Decimal("0.01"))),
    "less": _or_null(lambda a, b: a < b),
    "at_least": _or_null(lambda a, b: a >= b),
    "equal": _or_null(lambda a, b: a == b),
    "differs": _or_null(lambda a, b: a != b),
    "and": _and,
    "or": lambda a, b: _not(_and(_not(a), _not(b))),
    "not": _not,
    "is_null": lambda a: a is None,
    "is_valid": lambda a: a is not None,
    "is_small": lambda a: a in (0, 1, 2, 3),
    "over": _or_null(_ratio),
    "is_nan": _or_null(math.isnan),
    "begins": _or_null(lambda a: a[:1] == "a"),
}


def _stepped(step: s.Step, streams: list[list[s.Row]]) -> list[list[s.Row]]:
    """The step's stream, and that of its side output where it has one."""
    match step:
        case s.Filtered(of, condition):
            return [[row for row in streams[of] if value(condition, row) is True]]
        case s.Computed(of, columns, _):
            return [[row | {name: value(each, row) for name, each in columns} for row in streams[of]]]
        case s.Mapped(of, bound):
            low = [row | {"n": row["n"] + bound} for row in streams[of] if row["n"] is not None and row["n"] < bound]
            return [low, [row for row in streams[of] if row["n"] is None or row["n"] >= bound]]
        case s.FlatMapped(of, most):
            copies, rest = [], []
            for row in streams[of]:
                times = (row["n"] or 0) % most
                if times == 0:
                    rest.append(row)
                for number in range(times):
                    changed = {"note": f"{row['note']}.{number}"} if number % 2 else {"n": number}
                    copies.append(row | changed)
            return [copies, rest]
        case s.United(of):
            return [[row for each in of for row in streams[each]]]
        case s.Rebalanced(of):
            return [streams[of]]
        case s.Processed(of, key, kind):
            main: list[s.Row] = []
            side: list[s.Row] = []
            models: dict[Any, Any] = defaultdict(MODELS[kind])
            for row in streams[of]:
                models[tuple(row[name] for name in key)](row, main, side)
            return [main, side]


class _Numbered:
    def __init__(self) -> None:
        self.rows: list[s.Row] = []

    def __call__(self, row: s.Row, main: list[s.Row], side: list[s.Row]) -> None:
        number = len(self.rows)
        before = self.rows[-1] if self.rows else {"amount": None, "at": None}
        note = "".join(str(each) for each in range(number + 1))
        given = row | {"n": number + 1, "amount": before["amount"], "at": before["at"], "note": note}
        (side if number in (2, 5) else main).append(given)
        self.rows = [] if number == 6 else [*self.rows, row]


class _Listed:
    def __init__(self) -> None:
        self.notes = ""

    def __call__(self, row: s.Row, main: list[s.Row], side: list[s.Row]) -> None:
        if row["n"] is None:
            self.notes = ""
            side.append(row)
            return
        # An empty note has no first letter: a mark in its place, which is taken out again.
        self.notes += str(row["note"])[:1] or "\0"
        if len(self.notes) > 4:
            self.notes = self.notes[-2:]
        elif row["n"] % 5 == 0:
            self.notes += "fN"
        main.append(row | {"note": self.notes.replace("\0", "")})


class _Counted:
    def __init__(self) -> None:
        self.teams: dict[str, int] = {}

    def __call__(self, row: s.Row, main: list[s.Row], side: list[s.Row]) -> None:
        times = self.teams.pop(str(row["team"]), 0)
        if times == 2:
            side.append(row)
        else:
            self.teams[str(row["team"])] = times + 1
        if row["n"] == 0:
            self.teams = {}
        told = " ".join(f"{team}{times}" for team, times in sorted(self.teams.items()))
        main.append(row | {"note": told, "n": len(self.teams)})


class _Alarms:
    def __init__(self) -> None:
        self.alarms: set[int] = set()

    def __call__(self, row: s.Row, main: list[s.Row], side: list[s.Row]) -> None:
        number = (row["n"] or 0) % 7
        self.alarms ^= {number}
        if number in self.alarms:
            main.append(row | {"note": "".join(map(str, sorted(self.alarms)))})
        else:
            side.append(row)


class _Distinct:
    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def __call__(self, row: s.Row, main: list[s.Row], side: list[s.Row]) -> None:
        times = self.seen.count(row["n"])
        self.seen.append(row["n"])
        given = dict.fromkeys(row) | {"account": times, "team": row["team"], "n": row["n"]}
        (side if times else main).append(given)


MODELS: Mapping[str, Callable[[], Any]] = {
    "numbered": _Numbered,
    "listed": _Listed,
    "counted": _Counted,
    "alarms": _Alarms,
    "distinct": _Distinct,
}


def _ended(end: s.End, rows: list[s.Row]) -> Table:
    match end:
        case s.Appended():
            return [tuple(row.values()) for row in rows]
        case s.Newest():
            groups = _groups(rows, ("account",), ("n", "id"))
            highest = {key: max((row["n"], row["id"]) for row in of) for key, of in groups.items()}
            return [(account, n, id_) for (account,), (n, id_) in highest.items()]
        case s.Aggregated(_, key, aggregates):
            groups = _groups(rows, key)
            return [
                (*of, *(AGGREGATES[name]([row[column] for row in group]) for name, column in aggregates))
                for of, group in groups.items()
            ]
        case s.Busiest(_, key, _):
            groups = _groups(rows, ("team",))
            of_keys = {team: Counter(tuple(row[name] for name in key) for row in of) for (team,), of in groups.items()}
            return [(team, max(counts.values())) for team, counts in of_keys.items()]
        case s.Reduced(_, key, "largest"):
            return [tuple(max(map(_rank, of))[1].values()) for of in _groups(rows, key).values()]
        case s.Reduced(_, key, _):
            return [_joined(of) for of in _groups(rows, key).values()]
        case s.Timed(_, key):
            return [(*of, len(group), sum(row["n"] or 0 for row in group)) for of, group in _groups(rows, key).items()]
    raise AssertionError(end)


def _groups(rows: list[s.Row], key: tuple[str, ...], more: tuple[str, ...] = ()) -> dict[Any, list[s.Row]]:
    """The rows of each key, those aside that have a null in it, or in `more`."""
    found = defaultdict(list)
    for row in rows:
        if None not in [row[name] for name in (*key, *more)]:
            found[tuple(row[name] for name in key)].append(row)
    return found


class _Ranked(tuple[Any, ...]):
    """Ranks by its first element alone."""

    __slots__ = ()

    def __lt__(self, other: Any) -> bool:
        return bool(self[0] < other[0])

    def __gt__(self, other: Any) -> bool:
        return bool(self[0] > other[0])


def _rank(row: s.Row) -> _Ranked:
    return _Ranked(([(each is not None, str(each)) for each in row.values()], row))


def _joined(rows: list[s.Row]) -> tuple[Any, ...]:
    note = rows[0]["note"]
    for row in rows[1:]:
        note = f"{note}|{row['note']}"[-20:]
    return tuple((rows[-1] | {"note": note}).values())


def _of_some(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def of(values: list[Any]) -> Any:
        some = [each for each in values if each is not None]
        return function(some) if some else None

    return of


def _above_all_if_nan(value: Any) -> Any:
    return value != value, value


def _mean(values: list[Any]) -> Any:
    total = sum(values)
    if isinstance(total, Decimal):
        return (total / len(values)).quantize(Decimal("0.000001"), ROUND_HALF_UP)
    return total / len(values)


AGGREGATES: Mapping[str, Callable[[list[Any]], Any]] = {
    "sum": _of_some(sum),
    "count": lambda values: sum(each is not None for each in values),
    "min": _of_some(partial(min, key=_above_all_if_nan)),
    "max": _of_some(partial(max, key=_above_all_if_nan)),
    "mean": _of_some(_mean),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
