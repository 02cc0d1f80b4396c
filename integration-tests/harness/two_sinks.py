"""A pipeline's driver, there to be killed: a Kafka topic into HBase and Postgres, each epoch into both.

The real source, sinks, store and protocol, without Spark. A life is a process of its own, forked from one that has
loaded the code, and nothing else: no connection is anybody's but its own.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from harness.pipeline_drivers import PipelineDriver

from onefold.core import Committable, EpochRecord, Positions, Range, Sink, TaskId, failpoints
from onefold.core.failpoints import arm, failpoint
from onefold.core.protocol.epoch import Started
from onefold.core.protocol.patience import Patience
from onefold.core.writing.attempt import write_task
from onefold.sinks import HBaseSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, Planner, ranges, read
from onefold.sources.kafka.offsets import OffsetSnapshot

__all__ = ["OPENED", "PARTS", "RECOVERED", "Driver", "Job", "Orders"]

TYPES = {"id": pa.int64(), "k": pa.int64(), "n": pa.int64(), "note": pa.string()}
ROWS_MAX = 8  # of an epoch
# A life's parts, and the places where each but the first begins.
PARTS = ("recovery", "opening", "epochs")
RECOVERED, OPENED = "life:recovered", "life:opened"
PASSED = "passed"
_MODES = {
    "row_key": {"row_key": "id"},
    "rolling": {"row_key": "k", "mode": "rolling", "merge": {"id": "count", "n": "sum"}},
    "incremental": {"row_key": "k", "mode": "incremental", "sequence": "id", "merge": {"n": "sum"}},
}
_LOADED = [  # before the fork, among it what Arrow and the store would load in mid-life
    "harness.two_sinks",
    "pandas",
    "psycopg",
    "onefold.clients.postgres.store",
    "onefold.sources.formats.json",
    "onefold.sinks.postgres.committer",
    "onefold.clients.hbase.thrift_connection",
]


@dataclass(frozen=True)
class Job:
    """What stays the same in all lives. `table` is the name of both tables, and the pipeline's."""

    bootstrap_servers: str
    topic: str
    postgres_url: str
    hbase_servers: str
    table: str
    mode: str
    delivery: str

    def source(self, columns: str) -> KafkaSource:
        schema = ", ".join(f"{name} {'string' if name == 'note' else 'long'}" for name in columns.split())
        return KafkaSource(self.topic, bootstrap_servers=self.bootstrap_servers, format="json", schema=schema)

    def sinks(self, lock_timeout_s: float = 30) -> tuple[PostgresSink, HBaseSink]:
        postgres = PostgresSink(
            self.postgres_url,
            self.table,
            delivery=self.delivery,
            name="postgres",
            evolve=True,
            lock_timeout_s=lock_timeout_s,
        )
        hbase = HBaseSink(self.hbase_servers, self.table, family="f", name="hbase", **_MODES[self.mode])
        return postgres, hbase


@dataclass(frozen=True)
class Orders:
    """What one life is told. `at` names the places where it holds still, in which part of it; `noting`, it passes them,
    and writes down that it did."""

    at: Mapping[str, str]
    noting: bool = False
    epochs_max: int = 1
    rows_max: int | None = ROWS_MAX
    columns: str = "id k n"
    lock_timeout_s: float = 30
    adopt_ledger: bool = False
    accept_damage: int | None = None


class Driver:
    """One life. It holds still where it was told to, until it is let go, or killed."""

    def __init__(self, job: Job, orders: Orders, directory: Path) -> None:
        self.directory, self.log = directory, directory / "log"
        directory.mkdir(parents=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        self._process = context.Process(target=_live, args=(job, orders, directory))
        with pytest.MonkeyPatch.context() as patch:  # for the server of forks, which the first start starts
            patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
            self._process.start()

    @property
    def exit_status(self) -> int | None:
        return self._process.exitcode

    def held_at(self) -> str | None:
        """The place, where it holds still."""
        for marker in self.directory.glob("*.MainThread"):
            return marker.name.rsplit(".", 2)[0].replace("-", ":")
        return None

    def passed(self) -> list[str]:
        """The places that it has passed, where it was told to note them."""
        return (self.directory / PASSED).read_text().splitlines()

    def let_go(self) -> None:
        for marker in self.directory.glob("*.MainThread"):
            marker.unlink()

    def kill(self) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def wait(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        return self._process.exitcode


def _live(job: Job, orders: Orders, directory: Path) -> None:
    with (directory / "log").open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ["ONEFOLD_FAILPOINT_DIR"] = str(directory)
    if orders.noting:
        failpoints._hold = partial(_note, directory / PASSED)
    planner = Planner(job.source(orders.columns))
    schema = pa.schema([(name, TYPES[name]) for name in orders.columns.split()])
    sinks: tuple[Sink, ...] = job.sinks(orders.lock_timeout_s)
    with PipelineDriver[Sink](sinks, job.table, patience=Patience(30, pause_max_s=0.3)) as life:
        arm(orders.at.get("recovery", ""))
        initial = planner.initial().positions()
        started = life.recover(
            initial, from_ledger=True, adopt_ledger=orders.adopt_ledger, accept_damage=orders.accept_damage
        )
        failpoint(RECOVERED)
        arm(orders.at.get("opening", ""))
        life.open(schema)
        failpoint(OPENED)
        arm(orders.at.get("epochs", ""))
        _run(life, started, planner, schema, orders)


def _note(passed: Path, name: str) -> None:
    with passed.open("a") as file:
        file.write(f"{name}\n")


def _run(life: PipelineDriver[Sink], started: Started, planner: Planner, schema: pa.Schema, orders: Orders) -> None:
    """Epochs from where the pipeline stands. One that was begun is run as it was."""
    assert started.start is not None
    at, until = started.start, started.until
    for number in range(orders.epochs_max):
        end = until or _next(planner, at, orders.rows_max)
        until = None
        if end == at:
            return
        wanted = ranges(OffsetSnapshot.of(at).offsets, OffsetSnapshot.of(end).offsets, end.topic_ids())

        def write(record: EpochRecord, wanted: list[OffsetRange] = wanted) -> tuple[Committable, ...]:
            """A task for each partition."""
            prepared: list[Committable] = []
            for one in wanted:
                task = TaskId(life.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
                prepared += write_task(life.sinks, task, read(planner.source, schema, one)).committables
            return tuple(prepared)

        life.process_range(Range(at, end), number, write, continues=number > 0)
        at = end


def _next(planner: Planner, at: Positions, rows_max: int | None) -> Positions:
    start = OffsetSnapshot.of(at)
    seen = planner.ends(start)
    return planner.next(start, seen, seen.offsets, rows_max).positions()
