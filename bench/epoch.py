"""`python -m bench.epoch`: what an epoch costs by itself, in bare commits of the same database, and what a batch of
Spark costs over Spark's own noop sink. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.epochs import Epochs
from bench.micro import MICRO, BatchTimes, run_micro
from bench.narrator import Say, narrated
from bench.report import Load, print_micro
from bench.world import open_world
from onefold.core import Sink, TaskId
from onefold.local import PostgresServer
from onefold.sinks import PostgresSink

COMMITS_MAX = 10.0  # an epoch's goal
OVER_NOOP_MS_MAX = 40.0  # a batch's, on Spark
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DDL = "id bigint, name text"
WARM_UP = 20
ROUND = 25  # epochs, then as many bare commits: both see the same minute


@dataclass
class Times:
    """Of each epoch and each bare commit, by what it was: milliseconds, and those of this process's CPU."""

    wall_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, step: Callable[[], None], is_warm_up: bool) -> None:
        began_s, before_s = time.perf_counter(), time.process_time()
        step()
        if not is_warm_up:
            self.wall_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)
            self.cpu_ms.setdefault(name, []).append((time.process_time() - before_s) * 1000)


class OneWriter:
    """Writes an epoch's rows in this process, as one task."""

    def __init__(self, sink: Sink, rows: int) -> None:
        self._sink = sink
        names = pa.array([f"row {number}" for number in range(rows)])
        self._rows = pa.record_batch([pa.array(range(rows), pa.int64()), names], schema=SCHEMA)
        self._task: TaskId | None = None

    def go(self, order: Any) -> None:
        self._task = order

    def answers(self) -> list[Any]:
        assert self._task is not None
        writer = self._sink.writer(self._task)
        writer.write(self._rows)
        return [writer.prepare()]


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    load, times, batches = Load(), Times(), list[BatchTimes]()

    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
        with PostgresServer(arguments.directory) as server:
            _take_times(server.url, arguments.rows, arguments.epochs, times, say)
        if not arguments.no_spark:
            with open_world(arguments.directory, say) as world:
                for _ in range(arguments.repeat):
                    batches += run_micro(world, ["noop", *MICRO], arguments.micro_rows, arguments.micro_batches)
    except KeyboardInterrupt:
        console.print("interrupted: the servers are stopped")
        return 130
    _print(console, times, arguments.rows)
    if batches:
        print_micro(console, batches, arguments.micro_rows)
        console.print(f"goal: a batch at most {OVER_NOOP_MS_MAX:.0f} ms over noop")
    console.print(str(load))
    if arguments.json is not None:
        spark = [{"contestant": one.contestant, "batch_ms": one.batch_ms} for one in batches]
        found = {"machine": str(load), "rows": arguments.rows, **asdict(times), "spark": spark}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _take_times(url: str, rows: int, epochs: int, times: Times, say: Callable[[str], None]) -> None:
    """Milliseconds of each epoch and each bare commit, in turn."""
    for delivery in ("two_phase", "staged", "direct"):
        say(f"epochs: {delivery}")
        with _table(url) as table, psycopg.connect(url) as connection:
            sink = PostgresSink(url, table, delivery=delivery)
            pipeline = Epochs(sink, table, sink.store_url() or "", SCHEMA)
            writer = OneWriter(sink, rows)
            for number in range(-(-(epochs + WARM_UP) // ROUND)):
                steps = {delivery: partial(pipeline.run, writer), "commit": partial(_commit, connection, table)}
                for name, step in steps.items():
                    for turn in range(ROUND):
                        times.take(name, step, is_warm_up=number == 0 and turn < WARM_UP)
            pipeline.close()


def _commit(connection: psycopg.Connection[Any], table: str) -> None:
    connection.execute(f"INSERT INTO {table} VALUES (1, 'row 1')".encode())
    connection.commit()


@contextmanager
def _table(url: str) -> Iterator[str]:
    name = f"bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} ({DDL})".encode())
        try:
            yield name
        finally:
            connection.execute(f"DROP TABLE {name}".encode())


def _print(console: Console, times: Times, rows: int) -> None:
    table = Table(title=f"an epoch of {rows} rows, without Spark: milliseconds")
    table.add_column("what", no_wrap=True)
    for heading in ("median", "p95", "bare commits", "goal", "CPU of this process"):
        table.add_column(heading, justify="right")
    bare_ms = statistics.median(times.wall_ms["commit"])
    for name, taken in sorted(times.wall_ms.items(), key=lambda each: each[0] != "commit"):
        median_ms, p95_ms = statistics.median(taken), sorted(taken)[int(len(taken) * 0.95)]
        goal = "" if name == "commit" else f"{COMMITS_MAX:.0f}"
        what = "bare INSERT and COMMIT" if name == "commit" else f"epoch, {name}"
        cpu_ms = statistics.median(times.cpu_ms[name])
        table.add_row(what, f"{median_ms:.2f}", f"{p95_ms:.2f}", f"{median_ms / bare_ms:.1f}", goal, f"{cpu_ms:.2f}")
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.epoch", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=100, help="rows of an epoch without Spark (default: %(default)s)")
    add("--epochs", type=int, default=200, help="epochs without Spark, of each delivery (default: %(default)s)")
    add("--no-spark", action="store_true", help="without Spark alone")
    add("--repeat", type=int, default=1, help="how often each runs on Spark (default: %(default)s)")
    add("--micro-rows", type=int, default=100, help="rows of a batch of Spark (default: %(default)s)")
    add("--micro-batches", type=int, default=40, help="batches of each run on Spark (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every time there")
    add("--directory", type=Path, default=Path(".onefold/bench"), help="servers and scratch (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
