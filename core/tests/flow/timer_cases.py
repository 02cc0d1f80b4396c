"""Timers of event time, by a processor that adds up ten seconds a key, and the cases that every runtime has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flow_parts import AnySink, AnySource
from timed_rows import EPOCH, ROWS, written_by

from onefold.flow import Flow, Side, StatefulProcessor, Watermarks, bounded, monotonic

SIZE_MS = 10_000


class TenSeconds(StatefulProcessor):
    """What tumbling windows do, without their cost."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._sums = handle.getMapState("sums", "start long", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        for row in rows:
            at_ms = round((row.at - EPOCH).total_seconds() * 1_000)
            start = at_ms // SIZE_MS * SIZE_MS
            if start + SIZE_MS <= timerValues.getCurrentWatermarkInMs():
                yield Side("late", (f"{key[0]}@{at_ms / 1_000:g}",))
                continue
            self._handle.registerTimer(start + SIZE_MS)
            (before,) = self._sums.getValue((start,)) or (0,)
            self._sums.updateValue((start,), (before + row.amount,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:  # noqa: N802, N803
        end = expiredTimerInfo.getExpiryTimeInMs()
        assert timerValues.getCurrentWatermarkInMs() >= end
        (amount,) = self._sums.getValue((end - SIZE_MS,))
        self._sums.removeKey((end - SIZE_MS,))
        yield (f"{key[0]}[{(end - SIZE_MS) // 1_000},{end // 1_000})={amount}",)


def flow(watermarks: Watermarks | None, timers: Any = "event") -> Flow:
    made = Flow("windows")
    rows = made.source(AnySource("rows", ROWS, is_resolved=True), uid="rows", watermarks=watermarks)  # type: ignore[arg-type]
    found = rows.key_by("key").process(
        TenSeconds(), "fired string", uid="ten", sides={"late": "row string"}, timers=timers
    )
    found.sink(AnySink("fired"))
    found.side("late").sink(AnySink("late"))
    return made


def fired(test: Any, text: str, restores: bool = False) -> dict[str, list[str]]:
    """What each epoch gives that gives something, and its late rows; of the flow that a `FlowTest`, or a model of
    another runtime, has."""
    found = {}
    try:
        for number, written in enumerate(written_by(test, text, restores), start=1):
            if out := [row["fired"] for row in written["fired"]] + [f"late {row['row']}" for row in written["late"]]:
                found[f"N{number}"] = out
    finally:
        test.close()
    return found


IDLE = monotonic("at", idle="60 seconds")
EVER = monotonic("at", idle=None)


CASES: list[Any] = [
    pytest.param(EVER, "a@1 a@9 | a@10", {"N2": ["a[0,10)=2"]}, id="1"),
    pytest.param(EVER, "a@25 a@1", {"N1": ["a[0,10)=1"]}, id="2"),
    pytest.param(bounded("at", "5 seconds"), "a@1 a@12 | a@15", {"N2": ["a[0,10)=1"]}, id="3"),
    pytest.param(EVER, "a@25 | a@12 a@29", {"N2": ["late a@12"]}, id="4"),
    pytest.param(EVER, "p:a@25 q:a@3 | q:a@12", {"N2": ["a[0,10)=1"]}, id="5"),
    pytest.param(IDLE, "p:a@5 q:a@5 T=0 | p:a@25 T=30 | p:a@26 T=61", {"N3": ["a[0,10)=2"]}, id="7"),
    pytest.param(IDLE, "p:a@25 q:a@5 T=0 | T=60", {"N2": ["a[0,10)=1"]}, id="8"),
    pytest.param(
        IDLE,
        "p:a@5 q:a@5 T=0 | p:a@26 T=61 | q:a@7 p:a@50 T=62 | q:a@40 T=63",
        {"N2": ["a[0,10)=2"], "N3": ["late a@7"], "N4": ["a[20,30)=1"]},
        id="9",
    ),
    pytest.param(
        IDLE,
        "q:a@2 T=0 | p:a@4 T=1 | p:a@31 T=2 | T=61 | q:b@12 T=62 | q:b@33 T=63",
        {"N4": ["a[0,10)=2"], "N5": ["late b@12"]},
        id="11",
    ),
    pytest.param(EVER, "a@-1 a@-10 a@-11 END", {"N1": ["a[-20,-10)=1", "a[-10,0)=2"]}, id="15"),
    pytest.param(EVER, "a@25=7 | END", {"N2": ["a[20,30)=7"]}, id="END in an epoch without records"),
]
