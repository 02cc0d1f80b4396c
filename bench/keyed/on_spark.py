"""`python -m bench.keyed.on_spark`: a sum by key with a Python function a row on Spark, from JSON files into nothing:
as a flow, and as the same job in Spark's own Python API (`transformWithState`, and its form of pandas). CPU
microseconds a row, of Spark and all its Python processes, beyond what a start and an end take.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from rich.console import Console
from rich.table import Table

from bench.cpu import cpu_s
from bench.engine_parts import DroppingSink
from bench.keyed.ours import RECORDS, Sum
from bench.narrator import Say, narrated
from bench.report import Load
from onefold.flow import Flow
from onefold.sources import FileSource
from onefold.spark.session import spark_session

START_FILES = 1
TOTALS = "account long, total long, records long"


class _Sum(StatefulProcessor):
    """As `bench.keyed.ours.Sum`, by Spark's own classes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long, records long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        total, records = self._total.get() or (0, 0)
        for row in self._rows(rows):
            total, records = total + row.amount, records + 1
        self._total.update((total, records))
        yield self._made(key[0], total, records)

    def _rows(self, rows: Iterator[Any]) -> Iterator[Any]:
        return rows

    def _made(self, account: int, total: int, records: int) -> Any:
        return Row(account=account, total=total, records=records)

    def close(self) -> None:
        return


class _SumOfPandas(_Sum):
    def _rows(self, rows: Iterator[Any]) -> Iterator[Any]:
        return (row for frame in rows for row in frame.itertuples(index=False))

    def _made(self, account: int, total: int, records: int) -> Any:
        return pd.DataFrame({"account": [account], "total": [total], "records": [records]})


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()
    rows_per_file = arguments.rows // arguments.batches
    with tempfile.TemporaryDirectory(prefix="bench-on-spark-") as folder:
        root = Path(folder)
        spark = spark_session("onefold bench", root, master="local[2]", **_SETTINGS)
        for keys in arguments.keys:
            few, all_of = root / f"few-{keys}", root / f"all-{keys}"
            for place, files in ((few, START_FILES), (all_of, arguments.batches)):
                _write(place, files, rows_per_file, keys)
            contestants: dict[str, Callable[[Path, Path], None]] = {
                "a flow": partial(_run_flow, spark),
                "transformWithState": partial(_run_spark, spark, _Sum),
                "transformWithStateInPandas": partial(_run_spark, spark, _SumOfPandas),
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
            for name, run in contestants.items():  # the first of a JVM is slower, and counts for nothing
                run(few, root / f"{name}-{keys}-first")
            for turn in range(arguments.repeat):
                for name, run in contestants.items():
                    (few_s, few_cpu_s), (all_s, all_cpu_s) = (
                        _timed(partial(run, place), root / f"{name}-{turn}-{place.name}") for place in (few, all_of)
                    )
                    more = rows_per_file * (arguments.batches - START_FILES)
                    found[name].append(((all_s - few_s) / more * 1e6, (all_cpu_s - few_cpu_s) / more * 1e6))
                    say(f"{turn + 1}/{arguments.repeat} {keys:,} keys: {name} {found[name][-1][1]:.2f} us a row")
            _print(console, f"{arguments.rows:,} rows in {arguments.batches} batches, {keys:,} keys", found)
    console.print(str(load))
    return 0


_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def _write(folder: Path, files: int, rows: int, keys: int) -> None:
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number in range(files):
        accounts, amounts = chance.integers(0, keys, rows).tolist(), chance.integers(0, 1000, rows).tolist()
        made = zip(range(number * rows, (number + 1) * rows), accounts, amounts, strict=True)
        lines = (json.dumps({"id": at, "account": account, "amount": amount}) for at, account, amount in made)
        place = folder / f"{number:05}.json"
        place.write_text("\n".join(lines) + "\n")
        os.utime(place, (number, number))  # Spark reads the oldest first


def _run_flow(spark: SparkSession, folder: Path, checkpoint: Path) -> None:
    flow = Flow(f"bench_{checkpoint.name}".replace(" ", "_"))
    source = FileSource(str(folder), format="json", schema=RECORDS, max_files_per_trigger=1)
    totals = flow.source(source.bounded(), uid="rows").key_by("account").process(Sum(), TOTALS, uid="totals")
    totals.sink(DroppingSink())
    store = f"sqlite:///{checkpoint}.db"
    flow.start(spark, checkpoint=str(checkpoint), store=store).await_termination()


def _run_spark(spark: SparkSession, kind: type[_Sum], folder: Path, checkpoint: Path) -> None:
    rows = spark.readStream.schema(RECORDS).option("maxFilesPerTrigger", 1).json(str(folder)).groupBy("account")
    by = rows.transformWithStateInPandas if kind is _SumOfPandas else rows.transformWithState
    made: DataFrame = by(kind(), TOTALS, "Update", "none")
    writing = made.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()


def _timed(run: Callable[[Path], None], checkpoint: Path) -> tuple[float, float]:
    """Wall and CPU seconds."""
    before_s, began_s = cpu_s(os.getpid()), time.monotonic()
    run(checkpoint)
    return time.monotonic() - began_s, cpu_s(os.getpid()) - before_s


def _print(console: Console, title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    table = Table("", "us a row", "CPU us a row", "CPU of the flow's", title=title)
    medians = {name: [float(np.median(part)) for part in zip(*runs, strict=True)] for name, runs in found.items()}
    (_, ours_us), *_ = medians.values()
    for name, (wall_us, cpu_us) in medians.items():
        table.add_row(name, f"{wall_us:.1f}", f"{cpu_us:.1f}", f"{cpu_us / ours_us:.2f}")
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.keyed.on_spark", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=400_000, help="of all files (default: %(default)s)")
    add("--batches", type=int, default=8, help="as many files, one a batch (default: %(default)s)")
    add("--keys", type=int, nargs="+", default=[1_000, 100_000], help="(default: 1000 100000)")
    add("--repeat", type=int, default=2, help="how often each contestant runs (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
