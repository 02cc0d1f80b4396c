"""`bytewax_windows.py SERVERS TOPIC ROWS KIND TOLD`: windows by key with Bytewax; into nothing, without recovery."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import orjson
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOWS = {
    "tumbling": win.TumblingWindower(length=timedelta(seconds=60), align_to=START),
    "sliding": win.SlidingWindower(length=timedelta(seconds=60), offset=timedelta(seconds=1), align_to=START),
    "session": win.SessionWindower(gap=timedelta(seconds=10)),
}


class Counting(StatelessSinkPartition[Any]):
    def __init__(self) -> None:
        self.windows, self.total = 0, 0

    def write_batch(self, items: list[Any]) -> None:
        for _key, (_window, total) in items:
            self.windows += total > 0
            self.total += total

    def close(self) -> None:
        Path(told).write_text(f"{self.windows} {self.total}")


class Nowhere(DynamicSink[Any]):
    def build(self, _step_id: str, _index: int, _count: int) -> Counting:
        return Counting()


def parsed(message: Any) -> tuple[str, tuple[int, datetime]]:
    record = orjson.loads(message.value)
    return str(record["account"]), (record["amount"], datetime.fromisoformat(record["at"]))


servers, topic, _rows, kind, told = sys.argv[1:]
flow = Dataflow("windows")
records = op.input("in", flow, KafkaSource([servers], [topic], tail=False, batch_size=10_000))
# by records alone: with the system's clock its watermarks would overtake records that it is slow to read
clock = win.EventClock(
    ts_getter=lambda value: value[1],
    wait_for_system_duration=timedelta(seconds=5),
    now_getter=lambda: START,
    to_system_utc=lambda _: None,
)
totals = win.fold_window(
    "sum",
    op.map("parse", records, parsed),
    clock,
    WINDOWS[kind],
    builder=int,
    folder=lambda total, value: total + value[0],
    merger=lambda one, other: one + other,
    ordered=False,
)
op.output("out", totals.down, Nowhere())
run_main(flow)
