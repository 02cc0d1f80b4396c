"""`python -m bench.rows`: what a row costs where a function or a processor in Python sees it, without servers: the rows
made, the function, its state, the batches made of what it gives, and the snapshots."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.engine_parts import DroppingSink
from bench.keyed.ours import Sum
from bench.state import GROUPS, in_another
from onefold.core import TaskId
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.full_collections import make_rare
from onefold.flow import Flow, Stream
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

BATCH = 32_768
EPOCH = 200_000  # rows
RECORDS = "id long, account long, amount long"
TYPED = "id long, account string, at timestamp, day date, amount decimal(18,2)"


def summed(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "amount": kept["amount"] + row["amount"]}


def halved(row: dict[str, Any]) -> Iterator[Any]:
    if row["id"] % 2:
        yield row


CASES: dict[str, tuple[str, Callable[[Stream], Stream]]] = {
    "process": (
        RECORDS,
        lambda rows: rows.key_by("account").process(Sum(), "account long, total long, records long", uid="node"),
    ),
    "process_typed": (
        TYPED,
        lambda rows: rows.key_by("account").process(
            Sum("total decimal(38,2), records long"), "account string, total decimal(38,2), records long", uid="node"
        ),
    ),
    "reduce": (RECORDS, lambda rows: rows.key_by("account").reduce(summed, uid="node")),
    "flat_map": (RECORDS, lambda rows: rows.flat_map(halved, RECORDS)),
    "flat_map_typed": (TYPED, lambda rows: rows.flat_map(halved, TYPED)),
}


@dataclass(frozen=True, slots=True)
class Load:
    case: str
    rows: int
    keys: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*CASES], default=[*CASES], metavar="NAME")
    arguments = parser.parse_args()
    print(f"{arguments.rows:,} rows, CPU us a row, load before {os.getloadavg()[0]:.1f}")
    for keys in arguments.keys:
        for case in arguments.only:
            load = Load(case, arguments.rows, keys)
            found = [in_another(used, load) for _ in range(arguments.repeat)]
            parts = {part: statistics.median(each[part] for each in found) for part in found[0]}
            told = ", ".join(f"{part} {us:.2f}" for part, us in parts.items())
            lowest, highest = (of(sum(each.values()) for each in found) for of in (min, max))
            print(f"{case:16} {keys:>9,} keys {sum(parts.values()):6.2f} ({lowest:.2f} to {highest:.2f}): {told}")


def used(load: Load) -> dict[str, float]:
    """CPU microseconds a row of each part."""
    schema, made = CASES[load.case]
    flow = Flow("bench")
    source = KafkaSource("rows", bootstrap_servers="nowhere:1", format="json", schema=schema).bounded()
    sink = PostgresSink("postgresql://nowhere/bench", "rows", mode="upsert", key="account", order="onefold_epoch")
    made(flow.source(source, uid="rows")).sink(sink if load.case == "reduce" else DroppingSink())
    graph = flow.graph()
    folder = Path(tempfile.mkdtemp(prefix="bench-rows-"))
    backend = MemoryBackend(Storage(str(folder), "bench"), 1, graph.max_parallelism)
    backend.restore((), GROUPS)
    logic = make_logic(graph, graph.nodes[1], {}, backend, 0, 1)
    batches = [*_batches(load, source.arrow_schema())]
    make_rare()
    try:
        return {part: s / load.rows * 1e6 for part, s in _run(logic, backend, batches).items()}
    finally:
        shutil.rmtree(folder)


def _run(logic: Any, backend: MemoryBackend, batches: list[pa.RecordBatch]) -> dict[str, float]:
    spent = dict.fromkeys(("take", "flush", "snapshot"), 0.0)
    epoch = rows = 0

    def timed(part: str, work: Callable[[], Any]) -> None:
        begun = time.process_time()
        work()
        spent[part] += time.process_time() - begun

    for number, batch in enumerate(batches):
        task = TaskId("bench", 1, epoch + 1, 1_700_000_000_000 + epoch, uuid.UUID(int=0))
        if not rows and hasattr(logic, "begin"):
            logic.begin(task)
        timed("take", lambda batch=batch: [*logic.take(batch, 0)])
        rows += batch.num_rows
        if rows >= EPOCH or number == len(batches) - 1:
            timed("flush", lambda task=task: [*logic.flush(task)])
            timed("snapshot", lambda epoch=epoch: backend.freeze(epoch + 1).store())
            epoch, rows = epoch + 1, 0
    return spent


def _batches(load: Load, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for at in range(0, load.rows, BATCH):
        count = min(BATCH, load.rows - at)
        accounts, amounts = random.integers(load.keys, size=count), random.integers(100_000, size=count)
        columns = {
            "id": pa.array(np.arange(at, at + count)),
            "account": pa.array(accounts).cast(schema.field("account").type),
            "amount": pa.array(amounts).cast(pa.decimal128(38, 0)).cast(schema.field("amount").type)
            if pa.types.is_decimal(schema.field("amount").type)
            else pa.array(amounts),
            "at": pa.array(1_700_000_000_000_000 + amounts).cast(pa.timestamp("us", "UTC")),
            "day": pa.array(amounts.astype(np.int32) % 10_000).cast(pa.date32()),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


if __name__ == "__main__":
    main()
