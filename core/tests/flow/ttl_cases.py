"""Sums that live for ten seconds, by each operator that keeps some, and the cases that every runtime has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flow_parts import AnySink, AnySource
from timed_rows import EPOCH, ROWS, written_by

from onefold.core import Upsert
from onefold.flow import Flow, StatefulProcessor, Ttl, monotonic, sum_

__all__ = ["CASES", "EPOCH", "OPERATORS", "expected", "flow", "sums"]

OPERATORS = ("process", "reduce", "aggregate")


class Sums(StatefulProcessor):
    def __init__(self, ttl: Ttl | None) -> None:
        self._ttl = ttl

    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState("sum", "amount long", ttl=self._ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del timerValues
        (before,) = self._sum.get() or (0,)
        self._sum.update((before + sum(row.amount for row in rows),))
        yield (*key, *self._sum.get())


def flow(operator: str, ttl: Ttl | None) -> Flow:
    made = Flow("sums")
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    keyed = made.source(source, uid="rows", watermarks=monotonic("at", idle=None)).key_by("key")
    if operator == "process":
        sums = keyed.process(Sums(ttl), "key string, amount long", uid="sums")
    elif operator == "reduce":
        sums = keyed.reduce(lambda kept, row: {**row, "amount": kept["amount"] + row["amount"]}, uid="sums", ttl=ttl)
    else:
        sums = keyed.aggregate(uid="sums", ttl=ttl, amount=sum_("amount"))
    replaces = None if operator == "process" else Upsert(("key",), ("onefold_epoch",))
    sums.sink(AnySink("sums", replaces=replaces))
    return made


def sums(test: Any, text: str, restores: bool = False) -> list[str]:
    """What each epoch gives, of the flow that a `FlowTest`, or a model of another runtime, has."""
    try:
        return [
            " ".join(sorted(f"{row['key']}={row['amount']}" for row in written["sums"]))
            for written in written_by(test, text, restores)
        ]
    finally:
        test.close()


CASES: list[Any] = [
    pytest.param(
        Ttl("10 seconds"), "a@0=1 T=0 | a@0=2 T=9 | a@0=4 T=19 | a@0=8 T=28", "1 3 4 12", id="processing time"
    ),
    pytest.param(Ttl("10 seconds"), "a@0=1 T=0 | b@0=2 T=9 | a@0=4 T=10 | b@0=8 T=18", "1 2 4 10", id="by key"),
    pytest.param(
        Ttl("10 seconds", visible="until_cleaned"),
        "a@0=1 T=0 | a@0=2 T=11 | T=22 | a@0=4 T=23",
        "1 3 - 4",
        id="until it is cleaned",
    ),
    pytest.param(
        Ttl("10 seconds", clock="event"),
        "a@0=1 T=0 | a@9=2 T=99 | b@19=1 T=100 | a@20=4 T=101",
        "1 3 1 4",
        id="event time: an epoch's rows see the watermark at its begin, and what came before there was one lives on",
    ),
    pytest.param(
        Ttl("10 seconds", clock="event"), "a@0=1 | a@1=2 | a@25=4 END", "1 3 7", id="event time, and the end of all"
    ),
]


def expected(text: str, epochs: str) -> list[str]:
    """`epochs` has the sum of each epoch, whose rows are of one key; `-` where it has none."""
    keys = [next((word[0] for word in epoch.split() if "@" in word), "") for epoch in text.split("|")]
    return ["" if total == "-" else f"{key}={total}" for key, total in zip(keys, epochs.split(), strict=True)]
