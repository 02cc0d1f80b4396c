"""Aggregates whose states are lists, beside one that keeps all rows, of which Python makes the others."""

from __future__ import annotations

import datetime as dt
from typing import Any

from onefold.flow import Aggregate, Aggregator, approx_distinct, count_distinct, first, last, quantile, quantiles, top

__all__ = ["SUB_KEYED", "Collected", "checked"]


class Collected(Aggregator):
    """All rows."""

    state_type = result_type = "array<struct<at: timestamp, amount: long>>"

    def create(self) -> Any:
        return []

    def add(self, state: Any, *values: Any) -> Any:
        return [*state, {"at": values[0], "amount": values[1]}]

    def merge(self, state: Any, other: Any) -> Any:
        return state + other

    def result(self, state: Any) -> Any:
        return state


SUB_KEYED: dict[str, Aggregate] = {
    "rows": Collected().of("at", "amount"),
    "different": count_distinct("amount"),
    "times": count_distinct("at"),
    "about": approx_distinct("amount"),
    "middle": quantile("amount", 0.5),
    "ends": quantiles("amount", [0, 1]),
    "three": top(3, by="amount", columns=("amount", "at")),
    "oldest": first("amount", by="at"),
    "newest": last("amount", by="at"),
}


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """The row without these results, which are those of its rows."""
    found = {name: row[name] for name in SUB_KEYED}
    rows = [(each["amount"], each["at"]) for each in found.pop("rows")]
    amounts, three = sorted(amount for amount, _ in rows), sorted(rows, key=_largest_first)[:3]
    middle = amounts[(len(amounts) - 1) // 2]
    told = {name: found.pop(name) for name in ("middle", "ends")}
    assert found == {
        "different": len({*amounts}),
        "times": len({at for _, at in rows}),
        "about": len({*amounts}),
        "three": [{"amount": amount, "at": at} for amount, at in three],
        "oldest": min((at, amount) for amount, at in rows)[1],
        "newest": min((-_us(at), amount) for amount, at in rows)[1],
    }
    assert all(
        abs(one - other) <= 0.01 * abs(other)
        for one, other in zip(told["ends"], (amounts[0], amounts[-1]), strict=True)
    )
    assert abs(told["middle"] - middle) <= 0.01 * abs(middle)
    return {name: value for name, value in row.items() if name not in SUB_KEYED}


def _largest_first(row: tuple[int, dt.datetime]) -> tuple[int, dt.datetime]:
    return -row[0], row[1]


def _us(at: dt.datetime) -> int:
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
