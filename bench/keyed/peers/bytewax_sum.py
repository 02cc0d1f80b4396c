"""`bytewax_sum.py SERVERS TOPIC ROWS`: a sum by key with Bytewax; into nothing, without recovery."""

from __future__ import annotations

import sys
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main


class _Nothing(StatelessSinkPartition[Any]):
    def write_batch(self, items: list[Any]) -> None: ...


class Nowhere(DynamicSink[Any]):
    def build(self, _step_id: str, _index: int, _count: int) -> _Nothing:
        return _Nothing()


def parsed(message: Any) -> tuple[str, int]:
    record = orjson.loads(message.value)
    return str(record["account"]), record["amount"]


def added(total: int | None, amount: int) -> tuple[int, int]:
    total = (total or 0) + amount
    return total, total


servers, topic, _rows = sys.argv[1:]
flow = Dataflow("sum")
records = op.input("in", flow, KafkaSource([servers], [topic], tail=False, batch_size=10_000))
totals = op.stateful_map("sum", op.map("parse", records, parsed), added)
op.output("out", totals, Nowhere())
run_main(flow)
