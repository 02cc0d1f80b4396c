"""A pipeline without Spark: the real store, sink, driver and patience, over a source of numbers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onefold.core import Committable, Committer, EpochRecord, Positions, Range, TaskId, driver
from onefold.core.dead_letters import BAD_COLUMNS, LETTER_COLUMNS
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest
from onefold.core.protocol import Initial, Outcome, Started, epoch, start
from onefold.core.store import CheckpointStore
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import committer as committing
from onefold.sinks.postgres import writer as writing
from onefold.spark import writers
from onefold.spark.bad_records import Bad, Policy
from onefold.spark.patience import Patience

SCHEMA = pa.schema([("id", pa.int64())])
TASKS = 2
BAD_EACH = 10


class Line:
    """One process's life. Each epoch takes the numbers from where the last one ended, in two tasks."""

    def __init__(
        self,
        url: str,
        *,
        delivery: str = "two_phase",
        name: str = "t",
        patience_s: float = 30,
        dead_letters: PostgresSink | None = None,
        **sink: Any,
    ) -> None:
        """`name` is the pipeline's and the table's. With `dead_letters`, every tenth number is one."""
        self.name = name
        self.sink = PostgresSink(url, name, delivery=delivery, **sink)
        self.dead_letters = dead_letters
        self.sinks = [self.sink] if dead_letters is None else [self.sink, dead_letters]
        store_url = self.sink.store_url()
        assert store_url is not None
        self.store = CheckpointStore(store_url)
        self.patience = Patience(patience_s, pause_max_s=0.3)
        committers: dict[str, Committer] = {
            each.name: self.patience.insist(partial(each.recover, name), "recover") for each in self.sinks
        }
        self.driver = Driver(name, self.store, committers, self.patience)
        self.batch = 0
        self.started: Started | None = None
        self.at = 0

    def start(self, *, from_ledger: bool = False) -> Line:
        """Recovery, then the sink's opening, as for the first batch of a query."""
        self.started = self.driver.run(start(self._names, Initial(_at(0), from_ledger)))
        if from_ledger:
            assert self.started.start is not None
            self.at = int(dict(self.started.start.items)["t/0"])
        for each in self.sinks:
            self.driver.committers[each.name].close()
            schema = LETTER_COLUMNS if each is self.dead_letters else SCHEMA
            self.driver.committers[each.name] = self.patience.insist(partial(each.open, self.name, schema), "open")
        merging = [each.name for each in self.sinks if each.guarantee().mode == "staged"]
        self.driver.last_resource = merging[0] if merging else None
        return self

    def to(self, end: int) -> Outcome:
        """The epoch from where the line is to `end`."""
        assert self.started is not None
        span = Range(_at(self.at), _at(end))
        request = EpochRequest(span, "q", self.batch, "job", self._names, continues=self.batch > 0)
        outcome = self.driver.run(epoch(self.started.generation, self.started.store_id, request), self._write)
        self.at, self.batch = end, self.batch + 1
        return outcome

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        numbers = range(dict(record.range.start.items)["t/0"], dict(record.range.end.items)["t/0"])
        prepared: list[Committable] = []
        for number in range(TASKS):
            task = TaskId(self.name, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
            prepared += writers.write_task([self.sink], task, *self._read(numbers[number::TASKS])).committables
        return tuple(prepared)

    def _read(self, numbers: range) -> tuple[list[pa.RecordBatch | Bad], Policy | None]:
        if self.dead_letters is None:
            return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)], None
        good = [number for number in numbers if number % BAD_EACH]
        bad = [
            {"source_topic": "t", "source_partition": 0, "source_offset": number, "value": b"?", "reason": "odd"}
            for number in numbers
            if number % BAD_EACH == 0
        ]
        rows = pa.record_batch([pa.array(good, pa.int64())], schema=SCHEMA)
        letters = [Bad(pa.RecordBatch.from_pylist(bad, schema=BAD_COLUMNS))] if bad else []
        return [rows, *letters], Policy(self.dead_letters, 1000)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.sinks)

    def close(self) -> None:
        for committer in self.driver.committers.values():
            committer.close()
        self.store.close()


def _at(number: int) -> Positions:
    return Positions.of({"t/0": number})


def assert_exact(url: str, end: int, *tables: str) -> None:
    """Every number up to `end` is there once; nothing is in doubt, staged, or left open."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in tables or ("t",):
            rows = connection.execute(f"SELECT id FROM {table} ORDER BY id".encode())
            assert [number for (number,) in rows] == list(range(end))
        for query in (
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
            "SELECT attempt FROM onefold_sinks.onefold_staged",
            "SELECT epoch FROM onefold_epochs WHERE state NOT IN ('complete', 'given_up')",
        ):
            assert connection.execute(query.encode()).fetchall() == []


def at_failpoint(monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], object]) -> list[str]:
    """Do `act` once, when the pipeline passes the failpoint `place`. The list shows whether it did."""
    passed: list[str] = []

    def failpoint(name: str) -> None:
        if name == place and not passed:
            passed.append(name)
            act()

    for module in (driver, committing, writing, writers):
        monkeypatch.setattr(module, "failpoint", failpoint)
    return passed


def later(delay_s: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.start()
    return timer
