"""`python -m bench.epoch`: what an epoch costs by itself, in bare commits of the same database, and what a batch of
Spark costs over Spark's own noop sink. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.arguments import parser_of
from bench.epochs import Epochs
from bench.micro import MICRO, BatchTimes, run_micro
from bench.narrator import Say, narrated
from bench.report import Load, print_micro
from bench.world import open_world
from onefold.core import Sink, TaskId
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateSink, committable
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.local import PostgresServer
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.sink_options import Delivery

COMMITS_MAX = {"direct": 3.0, "two_phase": 5.0}  # the goals, by delivery
STATELESS_MAX = 2.0  # of an epoch with state, in those of one without
OVER_NOOP_MS_MAX = 40.0  # a batch's, on Spark
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DDL = "id bigint, name text"
KEYS = 100  # each epoch changes the state of so many
TOTALS = StateSpec("totals", "total", StateKind.VALUE)
WITH_STATE = ", with state in memory"
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
    """Writes an epoch's rows in this process, as one task; with `state`, it keeps a value for each key, too."""

    def __init__(self, sink: Sink, rows: int, state: Storage | None = None) -> None:
        self._sink, self._state = sink, state
        self._backend: MemoryBackend | None = None
        names = pa.array([f"row {number}" for number in range(rows)])
        self._rows = pa.record_batch([pa.array(range(rows), pa.int64()), names], schema=SCHEMA)
        self._task: TaskId | None = None

    def go(self, order: Any) -> None:
        self._task = order

    def answers(self) -> list[Any]:
        assert self._task is not None
        writer = self._sink.writer(self._task)
        writer.write(self._rows)
        prepared = [writer.prepare()]
        if self._state is not None:
            prepared.append(committable(self._snapshot(self._state, self._task)))
        return prepared

    def _snapshot(self, state: Storage, task: TaskId) -> str:
        if self._backend is None:
            self._backend = MemoryBackend(state, task.generation)
            self._backend.restore([], range(MAX_PARALLELISM))
        keys = [(number,) for number in range(KEYS)]
        self._backend.table(TOTALS).put_many(keys, [(number, task.epoch) for number in range(KEYS)])
        frozen = self._backend.freeze(task.epoch)
        handle = frozen.store()
        frozen.release()
        return handle


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    load, times, batches = Load(), Times(), list[BatchTimes]()

    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
        with PostgresServer(arguments.directory) as server:
            _take_times(server.url, arguments, times, say)
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


def _take_times(url: str, arguments: argparse.Namespace, times: Times, say: Callable[[str], None]) -> None:
    """Milliseconds of each delivery's epochs, without and with state, and of bare commits, in turn."""
    for delivery in Delivery:
        with _epochs(url, delivery, arguments) as steps, psycopg.connect(url) as connection, _table(url) as table:
            say(f"epochs: {delivery.value}")
            steps["commit"] = partial(_commit, connection, table)
            for number in range(-(-(arguments.epochs + WARM_UP) // ROUND)):
                for name, step in steps.items():
                    for turn in range(ROUND):
                        times.take(name, step, is_warm_up=number == 0 and turn < WARM_UP)


@contextmanager
def _epochs(url: str, delivery: Delivery, arguments: argparse.Namespace) -> Iterator[dict[str, Callable[[], None]]]:
    """One epoch of a pipeline without state, and one of a pipeline with it, by what they are called."""
    with ExitStack() as ending:
        found: dict[str, Callable[[], None]] = {}
        for name, has_state in ((delivery.value, False), (f"{delivery.value}{WITH_STATE}", True)):
            table = ending.enter_context(_table(url))
            sink = PostgresSink(url, table, delivery=delivery.value)
            folder = ending.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
            state = StateSink(folder) if has_state else None
            pipeline = Epochs(sink, table, sink.store_url() or "", SCHEMA, state)
            ending.callback(pipeline.close)
            writer = OneWriter(sink, arguments.rows, Storage(folder, table) if has_state else None)
            found[name] = partial(pipeline.run, writer)
        yield found


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
    for heading in ("median", "p95", "bare commits", "goal", "of the stateless", "goal", "CPU of this process"):
        table.add_column(heading, justify="right")
    bare_ms = statistics.median(times.wall_ms["commit"])
    for name, taken in sorted(times.wall_ms.items(), key=lambda each: each[0] != "commit"):
        median_ms, p95_ms = statistics.median(taken), sorted(taken)[int(len(taken) * 0.95)]
        what = "bare INSERT and COMMIT" if name == "commit" else f"epoch, {name}"
        goals = [f"{COMMITS_MAX[name]:.0f}" if name in COMMITS_MAX else "", "", ""]
        if name.endswith(WITH_STATE):
            stateless_ms = statistics.median(times.wall_ms[name.removesuffix(WITH_STATE)])
            goals[1:] = f"{median_ms / stateless_ms:.1f}", f"{STATELESS_MAX:.0f}"
        cpu_ms = statistics.median(times.cpu_ms[name])
        table.add_row(what, f"{median_ms:.2f}", f"{p95_ms:.2f}", f"{median_ms / bare_ms:.1f}", *goals, f"{cpu_ms:.2f}")
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = parser_of("bench.epoch", __doc__, rows=100, of="rows of an epoch without Spark", repeat=1)
    add = parser.add_argument
    add("--epochs", type=int, default=200, help="epochs without Spark, of each delivery (default: %(default)s)")
    add("--no-spark", action="store_true", help="without Spark alone")
    add("--micro-rows", type=int, default=100, help="rows of a batch of Spark (default: %(default)s)")
    add("--micro-batches", type=int, default=40, help="batches of each run on Spark (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every time there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
