"""A pipeline without Spark: the real driver, store and sinks, and writers that run in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg
import pyarrow as pa

from onefold.core import Committable, EpochRecord, LastResource, Positions, Range, SinkKind, TaskId
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest, Pause
from onefold.core.protocol import Initial, Outcome, Started, epoch, start
from onefold.core.store import CheckpointStore
from onefold.sinks import PostgresSink

__all__ = ["SCHEMA", "MakeWorld", "World", "worlds"]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class World:
    """One pipeline in one driver: `start`, then `epoch(0)`, `epoch(1)`, ...; each of ten rows for every sink."""

    ROWS = 10
    TASKS = 2

    def __init__(self, url: str, *sinks: PostgresSink, pipeline: str = "p", store: str | None = None) -> None:
        self.url, self.sinks, self.pipeline = url, sinks, pipeline
        self.store = CheckpointStore(store or sinks[0].store_url() or "")
        self.driver = Driver(pipeline, self.store, {s.name: s.recover(pipeline) for s in sinks}, _raise)
        self.started: Started | None = None
        self.between_tasks: Callable[[], None] = lambda: None

    def start(self, adopt_ledger: bool = False) -> Started:
        names = tuple(sink.name for sink in self.sinks)
        self.started = self.driver.run(start(names, Initial(_at(0)), adopt_ledger))
        for sink in self.sinks:
            self.driver.committers[sink.name] = sink.open(self.pipeline, SCHEMA)
        merging = [s.name for s in self.sinks if s.guarantee().kind is SinkKind.LAST_RESOURCE]
        self.driver.last_resource = merging[0] if merging else None
        assert all(isinstance(self.driver.committers[name], LastResource) for name in merging)
        return self.started

    def epoch(self, batch: int) -> Outcome:
        assert self.started is not None
        names = tuple(sink.name for sink in self.sinks)
        request = EpochRequest(Range(_at(batch), _at(batch + 1)), "q", batch, "job", names)
        protocol = epoch(self.started.generation, self.started.store_id, request)
        return self.driver.run(protocol, self.write)

    def write(self, record: EpochRecord) -> tuple[Committable, ...]:
        """What Spark's tasks do: each writes its share to every sink."""
        first = dict(record.range.start.items)["t/0"] * self.ROWS
        ids = list(range(int(first), int(first) + self.ROWS))
        manifest = []
        for task in range(self.TASKS):
            for sink in self.sinks:
                manifest += self.attempt(sink, record, ids[task :: self.TASKS])
            self.between_tasks()
        return tuple(manifest)

    def attempt(self, sink: PostgresSink, record: EpochRecord, ids: Sequence[int]) -> list[Committable]:
        task = TaskId(self.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        writer = sink.writer(task)
        writer.write(pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array(["x"] * len(ids))}))
        prepared = writer.prepare()
        return [prepared] if prepared else []

    def close(self) -> None:
        for committer in self.driver.committers.values():
            committer.close()
        self.store.close()

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


def _at(batch: int) -> Positions:
    return Positions.of({"t/0": batch})


def _raise(pause: Pause) -> None:
    raise pause.because
