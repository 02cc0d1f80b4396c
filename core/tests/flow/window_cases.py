"""Windows as texts, and the cases that every runtime has: firings and late rows of each epoch, by windows of ten
seconds, and of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource
from timed_rows import ROWS, second_of, written_by

from onefold.core import Upsert
from onefold.flow import (
    CONTINUE,
    FIRE,
    FIRE_AND_PURGE,
    PURGE,
    AfterRows,
    EachEpoch,
    Every,
    Firing,
    Flow,
    Global,
    KeepDelta,
    KeepLast,
    KeepTime,
    OnDelta,
    Purging,
    Rows,
    Session,
    Sliding,
    Stream,
    Trigger,
    Tumbling,
    Watermarks,
    WindowBounds,
    WindowContext,
    WindowProcessor,
    bounded,
    monotonic,
    sum_,
)
from onefold.flow.windowing import Window

EVER = monotonic("at", idle=None)
IDLE = monotonic("at", idle="60 seconds")
LATER = bounded("at", "5 seconds", idle=None)
AHEAD = bounded("at", "0 seconds", idle=None, ahead="1 hour")
ADVANCE = bounded("at", "0 seconds", idle="60 seconds", when_silent="advance")
FAR_LATER = bounded("at", "10 seconds", idle=None)
A_BIT_LATER = bounded("at", "1100 milliseconds", idle=None)
TEN, LATE = Tumbling("10 seconds"), {"lateness": "5 seconds"}
TWENTY, PANES = Tumbling("20 seconds"), Every("5 seconds")
GAP, GAP_5, TEN_LATE = Session("3 seconds"), Session("5 seconds"), {"lateness": "10 seconds"}


class Summing(WindowProcessor):
    """The sum of the amounts, by elements."""

    def process(self, key: Any, window: WindowBounds, rows: pa.RecordBatch, at: WindowContext) -> Iterator[Any]:
        del key, window, at
        yield (sum(rows.column("amount").to_pylist()),)


class DropsTheSecond(Trigger):
    """Empties the window at its second row, and fires at the end."""

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.on_event_time(at.window.end_us)
        return PURGE if at.state.add("rows", 1) == 2 else CONTINUE


class EmptiesAtEnd(Trigger):
    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.on_event_time(at.window.end_us)
        return CONTINUE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        del time_us, at
        return FIRE_AND_PURGE


class OnceEarly(Trigger):
    """At its first row, and at the end."""

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.on_event_time(at.window.end_us)
        return FIRE if at.state.add("rows", 1) == 1 else CONTINUE

    def on_merge(self, at: WindowContext) -> None:
        at.on_event_time(at.window.end_us)


class AtItsFirstEnd(Trigger):
    """At the end, for which it has a timer since its first row."""

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        if at.state.add("rows", 1) == 1:
            at.on_event_time(at.window.end_us)
        return CONTINUE

    def on_merge(self, at: WindowContext) -> None:
        at.on_event_time(at.window.end_us)


class After(Trigger):
    """So many seconds after the end alone."""

    def __init__(self, seconds: int) -> None:
        self._us = seconds * 1_000_000

    def __str__(self) -> str:
        return f"{self._us // 1_000_000} seconds after the end"

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.on_event_time(at.window.end_us + self._us)
        return CONTINUE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        assert time_us == at.window.end_us + self._us
        return FIRE


class Panes(Trigger):
    """Each five seconds, the next of which a timer registers; and at the end."""

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        if at.state.add("rows", 1) == 1:
            at.on_event_time(min(at.window.start_us + 5_000_000, at.window.end_us))
        return CONTINUE

    def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
        at.on_event_time(min(time_us + 5_000_000, at.window.end_us))
        return FIRE


def source(made: Flow, watermarks: Watermarks | None = EVER) -> Stream:
    rows: Any = AnySource("rows", ROWS, is_resolved=True)
    return made.source(rows, uid="rows", watermarks=watermarks)


def flow(watermarks: Watermarks | None, window: Window, given: dict[str, Any], by_elements: bool = False) -> Flow:
    made = Flow("windows", max_parallelism=16)
    late = None if isinstance(window, Rows | Global) or getattr(window, "clock", "event") != "event" else "late"
    found = source(made, watermarks).key_by("key").window(window, late=late, **given)
    if by_elements:
        fired = found.process(Summing(), "total long", uid="sums")
    else:
        fired = found.aggregate(uid="sums", total=sum_("amount"))
    deletes = "retracts" if "retracts" in fired.schema.names else None
    trigger = given.get("trigger")
    is_whole = given.get("results", "accumulating") == "accumulating" and not isinstance(trigger, Purging)
    start = [name for name in ("window_start", "window_number") if name in fired.schema.names]
    replaces = Upsert(("key", *start), ("emission",) if "emission" in fired.schema.names else (), deletes)
    fired.sink(AnySink("fired", replaces=replaces if is_whole else None))
    if late is not None:
        fired.side(late).sink(AnySink("late"))
    return made


def told(row: dict[str, Any]) -> str:
    if "at" in row:
        return f"late {row['key']}@{second_of(row['at']):g}"
    again = f"#{row['emission']}" if row.get("emission", 1) > 1 else ""
    back = "-" if row.get("retracts") else ""
    if "window_start" not in row:
        number = f":{row['window_number']}" if "window_number" in row else ""
        return f"{row['key']}{number}={row['total']}{again}"
    start, end = second_of(row["window_start"]), second_of(row["window_end"])
    return f"{back}{row.get('key', '')}[{start:g},{end:g})={row['total']}{again}"


def numbered(epochs: Iterable[list[str]]) -> dict[str, list[str]]:
    """What each epoch gives that gives something."""
    return {f"N{number}": out for number, out in enumerate(epochs, start=1) if out}


def by_test(test: Any, text: str, restores: bool) -> Iterator[list[str]]:
    """Results in the order in which they come, and late rows; of the flow that a `FlowTest`, or a model of another
    runtime, has."""
    try:
        for written in written_by(test, text, restores):
            yield [told(row) for rows in written.values() for row in rows]
    finally:
        test.close()


def in_order(out: list[str]) -> list[str]:
    """Keys of one firing come in any order: as they do, but with the keys' in order."""
    return sorted(out, key=lambda word: word.lstrip("-")[0])


def case(name: str, text: str, expected: str, of: Watermarks | None = EVER, window: Any = TEN, **given: Any) -> Any:
    """`expected` as `N2: a[0,10)=2 late a@1; N3: ...`."""
    epochs = dict(each.strip().split(": ") for each in expected.split(";") if each.strip())
    outs = {
        number: [word.replace("~", " ") for word in out.replace("late ", "late~").split()]
        for number, out in epochs.items()
    }
    return pytest.param(of, window, given, text, outs, id=name)


CASES = [
    case("1", "a@1 a@9 | a@10", "N2: a[0,10)=2"),
    case("2", "a@25 a@1", "N1: a[0,10)=1"),
    case("3", "a@1 a@12 | a@15", "N2: a[0,10)=1", LATER),
    case("4", "a@25 | a@12 a@29", "N2: late a@12"),
    case("5", "p:a@25 q:a@3 | q:a@12", "N2: a[0,10)=1"),
    case("7", "p:a@5 q:a@5 T=0 | p:a@25 T=30 | p:a@26 T=61", "N3: a[0,10)=2", IDLE),
    case("8", "p:a@25 q:a@5 T=0 | T=60", "N2: a[0,10)=1", IDLE),
    case(
        "9",
        "p:a@5 q:a@5 T=0 | p:a@26 T=61 | q:a@7 p:a@50 T=62 | q:a@40 T=63",
        "N2: a[0,10)=2; N3: late a@7; N4: a[20,30)=1",
        IDLE,
    ),
    case(
        "11",
        "q:a@2 T=0 | p:a@4 T=1 | p:a@31 T=2 | T=61 | q:b@12 T=62 | q:b@33 T=63",
        "N4: a[0,10)=2; N5: late b@12",
        IDLE,
    ),
    case(
        "14",
        "a@2 a@3 a@12 a@13 END",
        "N1: a[-7,3)=1 a[3,13)=2 a[13,23)=1",
        window=Tumbling("10 seconds", offset="3 seconds"),
    ),
    case("15", "a@-1 a@-10 a@-11 END", "N1: a[-20,-10)=1 a[-10,0)=2"),
    case("16", "a@7 END", "N1: a[0,10)=1 a[5,15)=1", window=Sliding("10 seconds", "5 seconds")),
    case("17", "a@0 a@4 END", "N1: a[-3,2)=1 a[0,5)=2 a[3,8)=1", window=Sliding("5 seconds", "3 seconds")),
    case("18", "a@5 a@11 END", "N1: a[10,12)=1", window=Sliding("2 seconds", "10 seconds")),
    case(
        "18, in a gap that is past",
        "a@25 | a@15 a@11 END",
        "N2: late a@11",
        window=Sliding("2 seconds", "10 seconds"),
    ),
    case(
        "24",
        "b@3 | b@1.5 b@0 | END",
        "N2: late b@0; N3: b[1,4)=2 b[2,5)=1 b[3,6)=1",
        window=Sliding("3 seconds", "1 second"),
    ),
    case(
        "25",
        "a@1 | a@10 | a@14 a@2 | a@15 | a@3",
        "N2: a[0,10)=1; N3: a[0,10)=2#2; N5: late a@3",
        **LATE,
    ),
    case(
        "26",
        "a@1 | a@14 | a@2 | b@15 | b@2",
        "N2: a[0,10)=1; N3: a[0,10)=2#2; N5: late b@2",
        **LATE,
    ),
    case(
        "27",
        "a@1 a@3 | a@10 | a@2 | a@30",
        "N2: a[0,10)=2; N3: a[0,10)=1#2; N4: a[10,20)=1",
        **LATE,
        results="discarding",
    ),
    case(
        "28",
        "a@1 a@3 | a@10 | a@2=5",
        "N2: a[0,10)=2; N3: -a[0,10)=2#2 a[0,10)=7#2",
        **LATE,
        results="retracting",
    ),
    case("29", "a@1 | a@10 | b@2 b@3", "N2: a[0,10)=1; N3: b[0,10)=2", **LATE),
    case("30", "a@12 | b@3 | b@4", "N2: b[0,10)=1; N3: b[0,10)=2#2", **LATE),
    case("31", "a@1 | b@100", "N2: a[0,10)=1", **LATE),
    case("32", "a@1 END", "N1: a[0,10)=1", lateness="15653571 weeks"),
    case("33", "a@0 a@3 a@6.5 END", "N1: a[0,6)=2 a[6.5,9.5)=1", window=GAP),
    case("34", "a@0 a@5 a@2.5 END", "N1: a[0,8)=3", window=GAP),
    case("35", "a@1 | a@2 | a@4.5 a@8.5 | a@7 | b@12.7", "N5: a[1,11.5)=5", A_BIT_LATER, GAP),
    case("36", "a@0 | b@6 | a@3 | END", "N2: a[0,5)=1; N3: late a@3; N4: b[6,11)=1", window=GAP_5),
    case("37", "a@0 | b@4 | a@2 b@5 | END", "N4: a[0,7)=2 b[4,10)=2", window=GAP_5),
    case(
        "38",
        "a@11.6 | b@15 | a@10 a@10.1 | END",
        "N2: a[11.6,14.6)=1; N3: late a@10 late a@10.1; N4: b[15,18)=1",
        window=GAP,
    ),
    case("39", "a@0 | a@2 | a@4 END", "N3: a[0,7)=3", window=GAP),
    case("40", "a@0 | b@3 | a@3 | END", "N4: a[0,6)=2 b[3,6)=1", window=GAP),
    case("41", "a@0 | b@3.000001 | a@3 | END", "N2: a[0,3)=1; N3: late a@3; N4: b[3,6)=1", window=GAP),
    case("42", "a@0 | b@4 | a@1 | b@20", "N2: a[0,3)=1; N4: a[0,4)=2#2 b[4,7)=1", window=GAP, **TEN_LATE),
    case(
        "42, retracting",
        "a@0 | b@4 | a@1 | b@20",
        "N2: a[0,3)=1; N4: -a[0,3)=1#2 a[0,4)=2#2 b[4,7)=1",
        window=GAP,
        **TEN_LATE,
        results="retracting",
    ),
    case(
        "43",
        "a@0 a@5 | b@9 | a@2.5 | b@40",
        "N1: a[0,3)=1; N2: a[5,8)=1; N3: -a[5,8)=1#3 a[0,8)=3#3; N4: b[9,12)=1",
        window=GAP,
        lateness="20 seconds",
    ),
    case(
        "43, retracting",
        "a@0 a@5 | b@9 | a@2.5 | b@40",
        "N1: a[0,3)=1; N2: a[5,8)=1; N3: -a[0,3)=1#3 -a[5,8)=1#3 a[0,8)=3#3; N4: b[9,12)=1",
        window=GAP,
        lateness="20 seconds",
        results="retracting",
    ),
    case(
        "54",
        "a@1 a@6 a@7 | a@12 END",
        "N1: a[0,20)=1; N2: a[0,20)=3#2 a[0,20)=4#3 a[0,20)=4#4",
        window=TWENTY,
        trigger=PANES,
    ),
    case(
        "54, retracting",
        "a@1 a@6 a@7 | a@12 END",
        "N1: a[0,20)=1; N2: -a[0,20)=1#2 a[0,20)=3#2 -a[0,20)=3#3 a[0,20)=4#3",
        window=TWENTY,
        trigger=PANES,
        results="retracting",
    ),
    case(
        "55",
        "a@1 a@6 a@7 | a@12 END",
        "N1: a[0,20)=1; N2: a[0,20)=2#2 a[0,20)=1#3",
        window=TWENTY,
        trigger=PANES,
        results="discarding",
    ),
    case(
        "56",
        "a@1 | a@6 | a@7 | a@12 | END",
        "N2: a[0,20)=1; N4: a[0,20)=3#2; N5: a[0,20)=4#3 a[0,20)=4#4",
        window=TWENTY,
        trigger=PANES,
    ),
    case(
        "57",
        "a@1 | b@6 | a@2 b@7 | b@11 | b@20",
        "N2: a[0,20)=1; N4: a[0,20)=2#2 b[0,20)=2; N5: a[0,20)=2#3 b[0,20)=3#2 b[0,20)=3#3",
        window=TWENTY,
        trigger=PANES,
    ),
    case("58", "a@1 | b@20", "N2: a[0,20)=1", window=TWENTY, trigger=Every("20 seconds")),
    case(
        "60",
        "a@1 | a@2 | b@3 | b@10",
        "N1: a[0,10)=1; N2: a[0,10)=2#2; N3: b[0,10)=1; N4: a[0,10)=2#3 b[0,10)=1#2 b[10,20)=1",
        trigger=EachEpoch(),
    ),
    case(
        "60, of sessions",
        "a@1 | a@2 | a@9 | a@5 | END",
        "N1: a[1,4)=1; N2: a[1,5)=2#2; N3: a[1,5)=2#3 a[9,12)=1; N4: late a@5; N5: a[9,12)=1#2",
        window=GAP,
        trigger=EachEpoch(),
    ),
    case("46", "a@1 a@2 | a@3 a@4 a@5 a@6 | a@7 | END", "N2: a:0=3 a:1=3; N4: a:2=1", window=Rows(3)),
    case("47", "a@1 a@2 a@3 | a@4 a@5 | a@6", "N1: a:0=2; N2: a:1=4; N3: a:2=4", window=Rows(4, slide=2)),
    case(
        "48",
        "a@1 a@2 a@3 | a@4 a@5 | END",
        "N1: a=2; N2: a=2#2; N3: a=1#3",
        window=Global(),
        trigger=Purging(AfterRows(2)),
    ),
    case("46, without watermarks", "a@1 a@2=2 | a@3=4 | END", "N1: a:0=3; N3: a:1=4", None, Rows(2)),
    case(
        "48, without watermarks",
        "p:a@1 a@2 a@3 | q:a@4 a@5 | END",
        "N1: a=2; N2: a=2#2; N3: a=1#3",
        None,
        Global(),
        trigger=Purging(AfterRows(2)),
    ),
    case(
        "50",
        "a@1 T=3 | a@1 T=9 | a@1 T=12 | T=20",
        "N3: a[0,10)=2; N4: a[10,20)=1",
        window=Tumbling("10 seconds", clock="processing"),
    ),
    case(
        "51",
        "a@1 T=1 | a@1 T=2 | T=5 | T=6",
        "N4: a[1,5)=2",
        window=Session("3 seconds", clock="processing"),
    ),
    case(
        "59, the window closes before",
        "a@1 T=1 | a@10 T=2 | T=6 | a@20 T=11 | END T=12",
        "N2: a[0,10)=1; N3: a[10,20)=1; N4: a[10,20)=1#2; N5: a[20,30)=1",
        trigger=Every("5 seconds", clock="processing"),
    ),
    case(
        "59, in one epoch",
        "a@1 T=1 | a@10 T=5 | END T=6",
        "N2: a[0,10)=1; N3: a[10,20)=1",
        trigger=Every("5 seconds", clock="processing"),
    ),
    case(
        "61",
        "a@1 a@2 a@3 a@4 a@5 | END",
        "N1: a[0,10)=2 a[0,10)=4#2; N2: a[0,10)=5#3",
        trigger=AfterRows(2),
    ),
    case("62", "a@0 a@1 | a@5 | a@3", "N3: a[0,8)=4", FAR_LATER, GAP, trigger=AfterRows(3)),
    case(
        "63",
        "a@1 a@2 | a@10 | a@3 | END",
        "N3: a[0,10)=1; N4: a[10,20)=1",
        **LATE,
        trigger=DropsTheSecond(),
    ),
    case(
        "64",
        "a@1 a@2 | a@10 | a@3=7 | END",
        "N2: a[0,10)=2; N3: a[0,10)=7#2; N4: a[10,20)=1",
        **LATE,
        trigger=EmptiesAtEnd(),
    ),
    case(
        "65",
        "a@0 | a@5 | a@2.5 | END",
        "N1: a[0,3)=1; N2: a[5,8)=1; N4: -a[5,8)=1#3 a[0,8)=3#3",
        FAR_LATER,
        GAP,
        trigger=OnceEarly(),
    ),
    case("65, of one that grows", "a@0 | a@2 | END", "N3: a[0,5)=2", window=GAP, trigger=AtItsFirstEnd()),
    case("66", "a@1 | a@10 | END", "", trigger=After(1_000)),
    case("67", "a@1 | a@15 | END", "N2: a[0,10)=1; N3: a[10,20)=1", **LATE, trigger=After(5)),
    case("68", "a@1=1 a@2=2 a@3=5 a@4=6 a@5=9 | END", "N1: a[0,10)=8 a[0,10)=23#2", trigger=OnDelta("amount", 3)),
    case(
        "69, before",
        "a@1=1 a@2=2 a@3=3 | a@4=4 a@5=5 a@6=6 | END",
        "N1: a=3; N2: a=7#2 a=11#3",
        window=Global(),
        trigger=AfterRows(2),
        evictor=KeepLast(2),
    ),
    case(
        "69, after",
        "a@1=1 a@2=2 a@3=3 | a@4=4 a@5=5 a@6=6 | END",
        "N1: a=3; N2: a=10#2 a=18#3",
        window=Global(),
        trigger=AfterRows(2),
        evictor=KeepLast(2, after=True),
    ),
    case(
        "70",
        "a@0=1 a@4=2 | a@5=4 | a@9=8",
        "N1: a=1 a=3#2; N2: a=6#3; N3: a=12#4",
        window=Global(),
        trigger=AfterRows(1),
        evictor=KeepTime("5 seconds"),
    ),
    case("71", "a@1=1 a@2=4 a@3=5 | END", "N2: a[0,10)=9", evictor=KeepDelta("amount", 3)),
    case("71, nothing is left", "a@1=1 a@2=4 | END", "", evictor=KeepLast(0)),
    case(
        "a trigger that registers its next timer fires for each that is passed",
        "a@1 a@6 a@7 | a@12 END",
        "N1: a[0,20)=1; N2: a[0,20)=3#2 a[0,20)=4#3 a[0,20)=4#4",
        window=TWENTY,
        trigger=Panes(),
    ),
    case(
        "79",
        "a@1 | a@90000 | a@12 | a@15 | END",
        "N3: a[0,10)=1; N5: a[10,20)=2 a[90000,90010)=1",
        AHEAD,
    ),
    case("END in an epoch without records", "a@25=7 | END", "N2: a[20,30)=7"),
]

HUNDRED = Tumbling("100 seconds")
ON_ENGINE = [
    case(
        "time goes on while all are silent, from the highest",
        "p:a@15 q:a@5 T=0 | p:a@20 T=30 | T=90 | T=109 | T=110 | q:a@50 q:a@101 T=111 | END T=112",
        "N5: a[0,100)=3; N6: late a@50; N7: a[100,200)=1",
        ADVANCE,
        HUNDRED,
    ),
    case(
        "one that wakes takes nothing back, and time goes on from what it says",
        "a@5 T=0 | T=94 | a@20 T=95 | T=154 | T=174 | T=175",
        "N6: a[0,100)=2",
        ADVANCE,
        HUNDRED,
    ),
    case("sessions", "a@5 T=0 | T=99 | T=100 | T=101", "N4: a[5,105)=1", ADVANCE, Session("100 seconds")),
]
