"""Rows with times as a text, by which tests say what an epoch has.

`a@3=5` is a row of key a at second 3 with the amount 5 (1 if left out), `p:` its partition, `|` ends an epoch, `T=` is
its time in seconds (else its number), `END` the end of the source.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

ROWS = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "amount": pa.int64()})
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_ROW = re.compile(r"(?:(?P<partition>\w+):)?(?P<key>\w+)@(?P<at>-?[\d.]+)(?:=(?P<amount>\d+))?")
Row = tuple[Any, dt.datetime, int]


@dataclass(frozen=True)
class Epoch:
    """One epoch: its time, its rows by their partition, and whether the source ends with it."""

    now_s: int
    rows: dict[str, list[Row]]
    is_last: bool = False


def epochs_of(text: str) -> Iterator[Epoch]:
    for number, epoch in enumerate(text.split("|"), start=1):
        words = epoch.split()
        now_s = next((int(word[2:]) for word in words if word.startswith("T=")), number)
        rows: dict[str, list[Row]] = {}
        for each in filter(None, map(_ROW.fullmatch, words)):
            row = each["key"], time_of(float(each["at"])), int(each["amount"] or 1)
            rows.setdefault(each["partition"] or "p", []).append(row)
        yield Epoch(now_s, rows, "END" in words)


def time_of(second: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=second)


def second_of(time: dt.datetime) -> float:
    return (time - EPOCH) / dt.timedelta(seconds=1)


def written_by(test: Any, text: str, restores: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """What the flow's sinks get in each epoch, from a source `rows`. `test` is a `FlowTest`, or does what it does."""
    passed_s = 0
    for epoch in epochs_of(text):
        test.advance(seconds=epoch.now_s - passed_s)
        passed_s = epoch.now_s
        given = {f"rows/{partition}": rows for partition, rows in epoch.rows.items()}
        yield test.epoch(given, ended=["rows"] if epoch.is_last else [])
        if restores:
            test.restore()
