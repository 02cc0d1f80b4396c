"""Pipelines without Spark: the real driver, store, sinks and patience, and writers that run in this process.

Epochs  batches that the test hands over, a writer for each; recovered and open as soon as it is made
World   one or several Postgres sinks, ten rows for each batch; started and struck step by step
Line    numbers up to where the test says, with a patience of its own: for servers that go away
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

import psycopg
import pyarrow as pa
import pytest

from onefold.core import Committable, EpochRecord, LastResource, Positions, Range, Sink, SinkKind, TaskId
from onefold.core.protocol import coordinator
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial, Outcome, Started, StoreCache, complete_last, epoch, start, sweep
from onefold.core.protocol.patience import Patience
from onefold.core.writing import attempt
from onefold.core.writing.dead_letters import Policy
from onefold.sinks import PostgresSink
from onefold.sinks import sink_writer as writing
from onefold.sinks.postgres import committer as committing
from onefold.sinks.postgres import prepared
from onefold.sinks.staged import ledger_committer as merging
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["Epochs", "Line", "MakeWorld", "World", "assert_exact", "at_failpoint", "later", "worlds"]

NAMED = pa.schema([("id", pa.int64()), ("name", pa.string())])
NUMBERS = pa.schema([("id", pa.int64())])
NO_PATIENCE_S = -1.0

S = TypeVar("S", bound=Sink)


class PipelineDriver(Generic[S]):
    """A pipeline's driver: recovery, the sinks' opening, then epochs of a source of one partition."""

    def __init__(
        self, sinks: Sequence[S], pipeline: str, store: str | None = None, patience: Patience | None = None
    ) -> None:
        self.sinks, self.pipeline = tuple(sinks), pipeline
        self.patience = patience or Patience(NO_PATIENCE_S)
        self.store = CheckpointStore(store or sinks[0].store_url() or "")
        committers = {s.name: self.patience.retry(partial(s.recover, pipeline), "recover") for s in sinks}
        self.driver = Coordinator(pipeline, self.store, committers, self.patience)
        self.started: Started | None = None
        self.cache = StoreCache()
        self.may_come_late: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sink.name for sink in self.sinks)

    def recover(
        self,
        initial: Positions | None = None,
        *,
        from_ledger: bool = False,
        adopt_ledger: bool = False,
        accept_damage: int | None = None,
    ) -> Started:
        """With `from_ledger` a first life begins at `initial`, and every later one where the ledger stands."""
        has_ledger = adopt_ledger or accept_damage or self.store.facts(self.pipeline).last
        initial = Initial(initial or _at(0), from_ledger and bool(has_ledger))
        protocol = start(self.names, initial, adopt_ledger, accept_damage, self.may_come_late)
        self.started, self.cache = self.driver.run(protocol), StoreCache()
        self.driver.run(sweep(self.started.generation, self.names))  # nobody has a checkpoint here
        return self.started

    def open(self, schema: pa.Schema, **of_sinks: pa.Schema) -> None:
        """What a query does before its first epoch; another may follow in the same life, with other columns.

        `of_sinks` are the columns of sinks that get other rows.
        """
        self.driver.last_resource = None
        for sink in self.sinks:
            self.driver.committers[sink.name].close()
            rows = of_sinks.get(sink.name, schema)
            committer = self.patience.retry(partial(sink.open, self.pipeline, rows), "open")
            self.driver.committers[sink.name] = committer
            if sink.guarantee().kind is SinkKind.LAST_RESOURCE:
                assert isinstance(committer, LastResource)
                self.driver.last_resource = sink.name

    def process(
        self,
        begin: int,
        end: int,
        batch: int,
        write: Callable[[EpochRecord], tuple[Committable, ...]],
        *,
        continues: bool = False,
    ) -> Outcome:
        """The epoch of one range, which is Spark's batch of that number."""
        return self.process_range(Range(_at(begin), _at(end)), batch, write, continues=continues)

    def process_range(
        self,
        between: Range,
        batch: int,
        write: Callable[[EpochRecord], tuple[Committable, ...]],
        *,
        continues: bool = False,
    ) -> Outcome:
        """The same of a source with as many partitions as it likes."""
        assert self.started is not None
        through = tuple(s.name for s in self.sinks if s.guarantee().kind is SinkKind.WRITE_THROUGH)
        request = EpochRequest(between, "q", batch, "job", self.names, through, continues)
        cache, self.cache = self.cache, StoreCache(None, self.cache.committed)
        started = self.started
        outcome = self.driver.run(epoch(started.generation, started.store_id, request, cache=cache), write)
        self.cache = self.driver.run(complete_last(started.generation, outcome.cache))  # nobody says what follows
        self.driver.run(sweep(started.generation, self.names))
        return outcome

    def task(
        self, sink: Sink, record: EpochRecord, batches: Iterable[pa.RecordBatch], policy: Policy | None = None
    ) -> tuple[Committable, ...]:
        """One attempt of one task; with a policy, of bad records."""
        task = TaskId(self.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        if policy is not None:
            return attempt.write_letters(policy, task, batches).committables
        return attempt.write_task((sink,), task, batches).committables

    def close(self) -> None:
        for committer in self.driver.committers.values():
            committer.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Epochs(PipelineDriver[Sink]):
    """Recovery and opening at first, then an epoch for each `run`."""

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        *,
        pipeline: str = "p",
        store: str | None = None,
        accept_damage: int | None = None,
    ) -> None:
        super().__init__([sink], pipeline, store)
        self.sink = sink
        try:
            started = self.recover(from_ledger=True, accept_damage=accept_damage)
            self.open(schema)
        except BaseException:
            self.close()
            raise
        self.at = _number(started.start) if started.start else 0

    def run(
        self, *tasks: Sequence[pa.RecordBatch] | pa.RecordBatch, doing: Callable[[], None] | None = None
    ) -> Outcome:
        """One epoch, with a writer for each task. `doing` runs when all are prepared."""

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            prepared: list[Committable] = []
            for task in tasks:
                prepared += self.task(self.sink, record, [task] if isinstance(task, pa.RecordBatch) else task)
            if doing is not None:
                doing()
            return tuple(prepared)

        first = self.at
        outcome = self.process(first, first + 1, first, write, continues=first > 0)
        self.at += 1
        return outcome


class World(PipelineDriver[PostgresSink]):
    """One pipeline in one driver: `start`, then `epoch(0)`, `epoch(1)`, ...; each of ten rows for every sink."""

    ROWS = 10
    TASKS = 2

    def __init__(self, url: str, *sinks: PostgresSink, pipeline: str = "p", store: str | None = None) -> None:
        super().__init__(sinks, pipeline, store)
        self.url = url
        self.between_tasks: Callable[[], None] = lambda: None

    def start(self, adopt_ledger: bool = False) -> Started:
        started = self.recover(adopt_ledger=adopt_ledger)
        self.open(NAMED)
        return started

    def epoch(self, batch: int) -> Outcome:
        return self.process(batch, batch + 1, batch, self.write)

    def write(self, record: EpochRecord) -> tuple[Committable, ...]:
        """What Spark's tasks do: each writes its share to every sink."""
        first = _number(record.range.start) * self.ROWS
        ids = list(range(first, first + self.ROWS))
        manifest: list[Committable] = []
        for task in range(self.TASKS):
            for sink in self.sinks:
                manifest += self.attempt(sink, record, ids[task :: self.TASKS])
            self.between_tasks()
        return tuple(manifest)

    def attempt(self, sink: PostgresSink, record: EpochRecord, ids: Sequence[int]) -> tuple[Committable, ...]:
        rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array(["x"] * len(ids))})
        return self.task(sink, record, [rows])

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def gids(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"
        return [gid for (gid,) in self.sql(query)]

    def staged(self) -> int:
        return int(self.sql("SELECT count(*) FROM onefold_sinks.onefold_staged")[0][0])

    def ids(self, table: str) -> list[int]:
        return [row[0] for row in self.sql(f"SELECT id FROM {table} ORDER BY id")]

    def assert_exact(self, batches: int) -> None:
        """Every record of the first batches is in every table, once; nothing is prepared or staged."""
        for sink in self.sinks:
            assert self.ids(sink.table) == list(range(batches * self.ROWS)), sink
        assert (self.gids(), self.staged()) == ([], 0)


class MakeWorld(Protocol):
    """`make("t", delivery="staged", pipeline="p")`, `make(sink, another)`: pipelines that the test need not close."""

    def __call__(self, *sinks: str | PostgresSink, delivery: str = ..., url: str = ..., **more: str) -> World: ...


@contextmanager
def worlds(database: str) -> Iterator[MakeWorld]:
    """Pipelines into one database; without a sink, each into the table `t`."""
    made: list[World] = []

    def make(*sinks: str | PostgresSink, delivery: str = "two_phase", url: str = database, **more: str) -> World:
        named = [s if isinstance(s, PostgresSink) else PostgresSink(url, s, delivery=delivery) for s in sinks or ("t",)]
        made.append(World(url, *named, **more))
        return made[-1]

    try:
        yield make
    finally:
        for world in made:
            world.close()


class Line(PipelineDriver[PostgresSink]):
    """One process's life. Each epoch takes the numbers from where the last one ended, in two tasks."""

    TASKS = 2

    def __init__(
        self, url: str, *, delivery: str = "two_phase", name: str = "t", patience_s: float = 30, **sink: Any
    ) -> None:
        """`name` is the pipeline's and the table's."""
        self.sink = PostgresSink(url, name, delivery=delivery, **sink)
        super().__init__([self.sink], name, patience=Patience(patience_s, pause_max_s=0.3))
        self.at = self.batch = 0

    def start(self, *, from_ledger: bool = False) -> Line:
        """Recovery, then the sink's opening, as for the first batch of a query."""
        started = self.recover(from_ledger=from_ledger)
        if from_ledger:
            assert started.start is not None
            self.at = _number(started.start)
        self.open(NUMBERS)
        return self

    def to(self, end: int) -> Outcome:
        """The epoch from where the line is to `end`."""
        outcome = self.process(self.at, end, self.batch, self._write, continues=self.batch > 0)
        self.at, self.batch = end, self.batch + 1
        return outcome

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        numbers = range(_number(record.range.start), _number(record.range.end))
        prepared: list[Committable] = []
        for task in range(self.TASKS):
            batch = pa.record_batch([pa.array(numbers[task :: self.TASKS], pa.int64())], schema=NUMBERS)
            prepared += self.task(self.sink, record, [batch])
        return tuple(prepared)


def assert_exact(url: str, end: int, *tables: str) -> None:
    """Every number up to `end` is there once; nothing is in doubt, staged, or left open."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in tables or ("t",):
            rows = connection.execute(f"SELECT id FROM {table} ORDER BY id".encode())
            assert [number for (number,) in rows] == list(range(end))
        for query in (
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
            "SELECT attempt FROM onefold_sinks.onefold_staged",
            "SELECT epoch FROM onefold_sinks.onefold_epochs WHERE state NOT IN ('complete', 'given_up')",
        ):
            assert connection.execute(query.encode()).fetchall() == []


def at_failpoint(monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], object]) -> list[str]:
    """Do `act` once, when the pipeline passes the failpoint `place`. The list shows whether it did."""
    passed: list[str] = []

    def failpoint(name: str) -> None:
        if name == place and not passed:
            passed.append(name)
            act()

    for module in (coordinator, committing, prepared, merging, writing, attempt):
        monkeypatch.setattr(module, "failpoint", failpoint)
    return passed


def later(delay_s: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.start()
    return timer


def _at(number: int) -> Positions:
    return Positions.of({"t/0": number})


def _number(positions: Positions) -> int:
    return int(dict(positions.items)["t/0"])
