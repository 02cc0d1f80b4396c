"""Windows as texts, and the cases that every runtime has: firings and late rows of each epoch, by windows of ten
seconds, and of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flow_parts import AnySink, AnySource
from timed_rows import ROWS, second_of, written_by

from onefold.core import Upsert
from onefold.flow import Flow, Sliding, Stream, Tumbling, Watermarks, bounded, monotonic, sum_

EVER = monotonic("at", idle=None)
IDLE = monotonic("at", idle="60 seconds")
LATER = bounded("at", "5 seconds", idle=None)
TEN, LATE = Tumbling("10 seconds"), {"lateness": "5 seconds"}


def source(made: Flow, watermarks: Watermarks = EVER) -> Stream:
    rows: Any = AnySource("rows", ROWS, is_resolved=True)
    return made.source(rows, uid="rows", watermarks=watermarks)


def flow(watermarks: Watermarks, window: Tumbling | Sliding, given: dict[str, Any]) -> Flow:
    made = Flow("windows", max_parallelism=16)
    found = source(made, watermarks).key_by("key").window(window, late="late", **given)
    fired = found.aggregate(uid="sums", total=sum_("amount"))
    is_whole = given.get("results") != "discarding"
    fired.sink(AnySink("fired", replaces=Upsert(("key", "window_start")) if is_whole else None))
    fired.side("late").sink(AnySink("late"))
    return made


def told(row: dict[str, Any]) -> str:
    if "at" in row:
        return f"late {row['key']}@{second_of(row['at']):g}"
    start, end = second_of(row["window_start"]), second_of(row["window_end"])
    again = f"#{row['emission']}" if row.get("emission", 1) > 1 else ""
    return f"{row.get('key', '')}[{start:g},{end:g})={row['total']}{again}"


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


def case(name: str, text: str, expected: str, of: Watermarks = EVER, window: Any = TEN, **given: Any) -> Any:
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
    case("29", "a@1 | a@10 | b@2 b@3", "N2: a[0,10)=1; N3: b[0,10)=2", **LATE),
    case("30", "a@12 | b@3 | b@4", "N2: b[0,10)=1; N3: b[0,10)=2#2", **LATE),
    case("31", "a@1 | b@100", "N2: a[0,10)=1", **LATE),
    case("32", "a@1 END", "N1: a[0,10)=1", lateness="15653571 weeks"),
    case("END in an epoch without records", "a@25=7 | END", "N2: a[20,30)=7"),
]
