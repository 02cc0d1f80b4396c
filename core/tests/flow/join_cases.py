"""Joins as texts, and the cases that every runtime has: rows of `l` and `r`, and the pairs of each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from flow_parts import AnySink, AnySource
from timed_rows import ROWS, epochs_of, second_of

from onefold.flow import Flow, KeyedStream, Sliding, Stream, Tumbling, monotonic

TEN = Tumbling("10 seconds")


def _within(left: KeyedStream, right: KeyedStream) -> Stream:
    sides: Any = {"late": "late", "other_late": "other_late"}
    return left.join_within(right, "joined", before="1 second", after="2 seconds", **sides)


def _windows(window: Any, how: Any) -> Any:
    return lambda left, right: left.join(right, window, "joined", how=how)


def _as_of(how: Any) -> Any:
    return lambda left, right: left.as_of(right, "joined", how=how, columns=["amount"])


def flow(join: Any) -> Flow:
    """Two sources, `l` and `r`, whose watermarks are their highest times."""
    made = Flow("joins", max_parallelism=16)
    streams = []
    for name in "lr":
        rows: Any = AnySource(name, ROWS, is_resolved=True)
        streams.append(made.source(rows, uid=name, watermarks=monotonic("at", idle=None)).key_by("key"))
    joined = join(*streams)
    joined.sink(AnySink("joined"))
    if join is _within:
        joined.side("late").sink(AnySink("late"))
        joined.side("other_late").sink(AnySink("other_late"))
    return made


def told(row: Mapping[str, Any]) -> str:
    """`a 10-9`: the seconds of both, or of an order and the amount that it found; `a@3` a row that was late."""
    if "amount_right" not in row:
        return f"late {row['key']}@{second_of(row['at']):g}"
    pair = "-".join(
        "" if row[name] is None else f"{second_of(row[name]):g}" for name in ("at", "at_right") if name in row
    )
    found = "" if "at_right" in row else f"={row['amount_right']}"
    return f"{row['key']} {pair}{found}"


def by_test(test: Any, text: str, restores: bool = False) -> dict[str, list[str]]:
    """What each epoch gives that gives something, in no order; partitions of the text are the sources."""
    found: dict[str, list[str]] = {}
    try:
        for number, epoch in enumerate(epochs_of(text), start=1):
            written = test.epoch(epoch.rows, ended=["l", "r"] if epoch.is_last else [])
            if out := sorted(told(row) for rows in written.values() for row in rows):
                found[f"N{number}"] = out
            if restores:
                test.restore()
    finally:
        test.close()
    return found


def case(name: str, join: Any, text: str, **expected: str) -> Any:
    return pytest.param(join, text, {n: sorted(out.split(", ")) for n, out in expected.items()}, id=name)


PAIRS = "l:a@1 l:b@2 r:a@3 r:c@4 | l:z@10 r:z@10"
RATES = "r:e@0=1 r:e@10=2 l:e@9 l:e@10 l:e@11 | l:z@10 r:z@10 | l:z@12 r:z@12 | r:e@5=9 | l:e@9"
CASES = [
    case("73 inner", _windows(TEN, "inner"), PAIRS, N2="a 1-3"),
    case("73 left", _windows(TEN, "left"), PAIRS, N2="a 1-3, b 2-"),
    case("73 right", _windows(TEN, "right"), PAIRS, N2="a 1-3, c -4"),
    case("73 full", _windows(TEN, "full"), PAIRS, N2="a 1-3, b 2-, c -4"),
    case("73 at the end", _windows(TEN, "full"), "l:a@1 r:a@3 END", N1="a 1-3"),
    case("73 sliding", _windows(Sliding("4 seconds", "2 seconds"), "inner"), "l:a@1 r:a@3 END", N1="a 1-3"),
    case(
        "74",
        _within,
        "l:a@10 r:a@8.9 r:a@9 r:a@12 r:a@12.1 | r:b@9 l:b@9",
        N1="a 10-9, a 10-12",
        N2="b 9-9",
    ),
    case(
        "74 in epochs",
        _within,
        "l:a@10 | r:a@9 r:b@9 | r:a@12 | l:a@13 | r:a@13 | l:a@12 | l:z@20 r:z@20 | l:a@16 r:a@17 | l:a@18",
        N2="a 10-9",
        N3="a 10-12",
        N4="a 13-12",
        N5="a 13-13",
        N6="a 12-12, a 12-13",
        N7="z 20-20",
        N8="late a@16",
        # the watermark is at 20: one of 18 could belong to what is kept, from 19 on
    ),
    case(
        "75",
        _as_of("left"),
        RATES,
        N1="e 9=1",
        N3="e 10=2, e 11=2, z 10=1",
        N5="e 9=None",  # it is late: what is kept is newer
    ),
    case("75 inner", _as_of("inner"), RATES, N1="e 9=1", N3="e 10=2, e 11=2, z 10=1"),
    case("75 none yet", _as_of("left"), "l:e@1 | r:z@5 | l:z@5", N3="e 1=None"),
    case("75 two of one time", _as_of("left"), "r:e@1=3 r:e@1=4 l:e@1 | l:z@2 r:z@2", N2="e 1=4"),
    case(
        "75 a late version",
        _as_of("left"),
        "r:e@1=3 l:e@1 | l:z@9 r:z@9 | r:e@8=5 | l:e@9 END",
        N2="e 1=3",
        N4="e 9=5, z 9=1",
    ),
]
