"""Keys and values that are almost right, each with the one form that its schema has for it, written by hand."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

__all__ = ["KEYS", "REFUSED", "VALUES", "Sample"]

REFUSED = "the schema takes no such value"


@dataclass(frozen=True)
class Sample:
    """What a processor gives, and what its state then has."""

    given: Any
    form: Any

    def __repr__(self) -> str:
        return f"{self.given!r}"


def one_each(*pairs: tuple[Any, Any]) -> list[Sample]:
    """Tuples of one value."""
    return [Sample((given,), REFUSED if form is REFUSED else (form,)) for given, form in pairs]


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
TWICE = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)  # that half hour comes twice
FIRST, SECOND = (dt.datetime(2026, 10, 25, hour, 30, tzinfo=dt.UTC) for hour in (0, 1))
NAIVE = dt.datetime(2026, 1, 2, 12)
HALF, WHOLE, NOTHING = Decimal("0.500000"), Decimal("1.000000"), Decimal("0.000000")
NAN, INFINITE = math.nan, math.inf

INSTANTS = [
    *((at, NOON) for at in (NOON, NOON.astimezone(BERLIN), NOON.astimezone(ZoneInfo("UTC")))),
    (NOON.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30))), NOON),
    (TWICE, FIRST),
    (TWICE.replace(fold=1), SECOND),
    (FIRST, FIRST),
    (NAIVE, REFUSED),
    (None, None),
]

KEYS: dict[str, list[Sample]] = {
    "k decimal(20,6)": one_each(
        *((given, HALF) for given in (Decimal("0.5"), Decimal("0.50"), Decimal("5E-1"), Decimal("0.5000000"))),
        *((given, WHOLE) for given in (Decimal(1), 1, Decimal("1.0"))),
        *((given, NOTHING) for given in (0, Decimal("-0.0"), Decimal("0E+3"), Decimal("0E-30"))),
        (Decimal("1E+2"), Decimal("100.000000")),
        *((given, REFUSED) for given in (True, 1.0, 0.5, "1", Decimal("NaN"), Decimal("1E+30"), Decimal("0.0000005"))),
    ),
    "k long": one_each(
        *same(0, 1, -1, 2**63 - 1, -(2**63), None),
        *((given, 1) for given in (Decimal(1), Decimal("1.0"), Decimal("10E-1"))),
        *((given, REFUSED) for given in (True, 1.0, -0.0, NAN, 2**63, Decimal("1.5"), "1", b"1", [1])),
    ),
    "k timestamp": one_each(*INSTANTS),
    "k timestamp_ntz": one_each(
        (NAIVE, NAIVE), (NAIVE.replace(fold=1), NAIVE), (NOON, REFUSED), (NAIVE.date(), REFUSED)
    ),
    "k string": one_each(
        *same("", "e", "\u00e9", "e\u0301", "\uffff", "\U0001f600", None),
        ("\u00e9".encode(), "\u00e9"),
        *((given, REFUSED) for given in ("\ud800", b"\xff", 1, True)),
    ),
    "k boolean": one_each(*same(True, False, None), (1, REFUSED), (0.0, REFUSED)),
    "k binary": one_each(*same(b"", b"a", b"\xff"), ("a", b"a"), (bytearray(b"a"), b"a"), (1, REFUSED)),
    "k array<timestamp>": one_each(
        *(([at], form if form is REFUSED else (form,)) for at, form in INSTANTS), ((), ()), ([], ()), (None, None)
    ),
    "a struct<x: long, y: decimal(9,2)>, b long": [
        *(
            Sample((given, b), ((1, Decimal("1.50")), 7))
            for given in ((1, Decimal("1.5")), {"x": 1, "y": Decimal("1.500")}, {"y": Decimal("1.5"), "x": Decimal(1)})
            for b in (7, Decimal("7.0"))
        ),
        *(Sample((given, 7), ((1, None), 7)) for given in ({"x": 1}, (1, None))),
        Sample((None, 7), (None, 7)),
        *(Sample((given, 7), REFUSED) for given in ((1.0, None), (True, None), (1,), {"z": 1}, [1, None], 1)),
    ],
}

VALUES: dict[str, list[Sample]] = {
    "n long": one_each(*same(1, 0, None), (Decimal(1), 1), (True, REFUSED), (1.0, REFUSED)),
    "x double": one_each(*same(0.0, -0.0, NAN, INFINITE, 1.5, None), (1, 1.0), (True, REFUSED), (Decimal(1), REFUSED)),
    "p decimal(9,2), at timestamp": [
        Sample((given, at), ((form, instant)) if instant is not REFUSED else REFUSED)
        for given, form in ((Decimal("1.5"), Decimal("1.50")), (1, Decimal("1.00")), (None, None))
        for at, instant in INSTANTS
    ],
    "ids array<long>, of map<string, array<decimal(9,2)>>": [
        Sample(([1, Decimal(2)], {"a": [Decimal("1.5")], "b": []}), ([1, 2], {"a": [Decimal("1.50")], "b": []})),
        Sample(((1, 2), {"a": (Decimal("1.5"),)}), ([1, 2], {"a": [Decimal("1.50")]})),
        Sample(([], {}), ([], {})),
        Sample(([None], None), ([None], None)),
        Sample(([1.0], {}), REFUSED),
        Sample(([], {"a": [0.5]}), REFUSED),
    ],
    "s struct<x: double, of: array<struct<t: string>>>": one_each(
        ({"of": [("a",), {"t": "b"}], "x": 1}, {"x": 1.0, "of": [{"t": "a"}, {"t": "b"}]}),
        ((-0.0, []), {"x": -0.0, "of": []}),
        ({}, {"x": None, "of": None}),
        (None, None),
        ({"of": ["a"]}, REFUSED),
        ({"y": 1}, REFUSED),
    ),
}
