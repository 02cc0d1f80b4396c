"""`python -m bench.authentication`: what closing the driver to others costs, beside one open to all. One run."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onefold.spark.runtime.access import close_callbacks
from onefold.spark.session import spark_session

WAYS = ("open", "closed")
STARTS = 15
BATCHES = 60
PATIENCE_S = 60
NOTHING_MS = 1e-1  # there is nothing to close in an open one
UNITS = {"session": "s", "closing": "ms", "start of a query": "ms", "batch": "ms", "batch with a shuffle": "ms"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.authentication", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(_measured(arguments.measure == "closed", Path(directory))))
        return
    print(f"{arguments.pairs} pairs, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for pair in range(arguments.pairs):
        for way in WAYS[:: 1 if pair % 2 else -1]:
            taken[way].append(_in_a_process(way))
        print(f"pair {pair + 1} is measured", flush=True)
    for name, unit in UNITS.items():
        was, now = (statistics.median(one[name] for one in taken[way]) for way in WAYS)
        pairs = zip(*taken.values(), strict=True)
        ratios = [closed[name] / opened[name] for opened, closed in pairs if opened[name] > NOTHING_MS]
        spread = f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        print(f"{name:22} open {was:8.2f} {unit:2}  closed {now:8.2f} {unit:2}{spread}")
    print(f"load after {os.getloadavg()[0]:.1f}")


def _in_a_process(way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.authentication", "--measure", way]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    measured: dict[str, float] = json.loads(said.splitlines()[-1])
    return measured


def _measured(is_closed: bool, directory: Path) -> dict[str, float]:
    started_s = time.monotonic()
    with _session(directory, is_closed) as spark:
        session_s = time.monotonic() - started_s
        started_s = time.monotonic()
        if is_closed:
            close_callbacks(spark)
        closing_ms = (time.monotonic() - started_s) * 1e3
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
        _run(rows, directory / "warm-up", 10)
        starts = [_run(rows, directory / f"start-{number}", 1)[0] for number in range(STARTS)]
        return {
            "session": session_s,
            "closing": closing_ms,
            "start of a query": statistics.median(starts),
            "batch": statistics.median(_gaps(_run(rows, directory / "batches", BATCHES))),
            "batch with a shuffle": statistics.median(
                _gaps(_run(rows.repartition(4, "value"), directory / "shuffled", BATCHES))
            ),
        }


def _run(rows: DataFrame, checkpoint: Path, batches: int) -> list[float]:
    """When each of the first batches of a new query was written, in ms since the query was started."""
    written: SimpleQueue[float] = SimpleQueue()

    def write(df: DataFrame, _: int) -> None:
        df.write.format("noop").mode("overwrite").save()
        written.put((time.monotonic() - started_s) * 1e3)

    started_s = time.monotonic()
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
    seen = [written.get(timeout=PATIENCE_S) for _ in range(batches)]
    query.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return seen


def _gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments[10:])]


@contextmanager
def _session(directory: Path, is_closed: bool) -> Iterator[SparkSession]:
    settings: dict[str, Any] = {"spark.authenticate": str(is_closed).lower()}
    spark = spark_session("onefold bench", directory / "spark", "local[2]", **settings)
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
