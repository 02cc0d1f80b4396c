"""A sink's contract, call by call: what its tasks and its driver do, and the server's own view of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa

from onefold.clients.postgres import sessions as pool
from onefold.core.contract import Committable, Decided, EpochRecord, EpochState, LastResource, LedgerEntry, TaskId
from onefold.core.positions import Positions, Range
from onefold.sinks import PostgresSink

__all__ = [
    "BATCH",
    "DELIVERIES",
    "SCHEMA",
    "Ask",
    "decided",
    "entry",
    "eventually",
    "merge",
    "prepared",
    "record",
    "task",
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BATCH = pa.record_batch({"id": pa.array([1, 2, 3]), "name": pa.array(["a", "b", None])}, schema=SCHEMA)
DELIVERIES = ["two_phase", "staged"]


class Ask:
    """The server's own view, over a connection that the sink knows nothing of."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, query: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def ids(self, table: str = "t") -> list[int]:
        return [row[0] for row in self(f"SELECT id FROM {table} ORDER BY id")]

    def gids(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        return [row[0] for row in self(query)]

    def parts(self) -> list[Any]:
        return self("SELECT epoch, generation, timestamp_ms, rows FROM onefold_sinks.onefold_parts ORDER BY 1, 2, 3, 4")

    def staged(self) -> int:
        return int(self("SELECT count(*) FROM onefold_sinks.onefold_staged")[0][0])

    def stage(self) -> str:
        (row,) = self("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_stage_'")
        return str(row[0])

    def stage_rows(self) -> int:
        return int(self(f"SELECT count(*) FROM {self.stage()}")[0][0])


def task(generation: int = 1, epoch: int = 1, pipeline: str = "p") -> TaskId:
    return TaskId(pipeline, generation, epoch, 1000 + epoch, uuid.uuid4())


def prepared(sink: PostgresSink, of: TaskId | None = None, batch: pa.RecordBatch = BATCH) -> Committable:
    writer = sink.writer(of or task())
    writer.write(batch)
    committable = writer.prepare()
    assert committable is not None
    return committable


def decided(*manifest: Committable, state: EpochState = EpochState.DECIDED) -> Decided:
    return Decided(record(*manifest, state=state))


def record(*manifest: Committable, state: EpochState = EpochState.OPEN) -> EpochRecord:
    epoch, generation = manifest[0].epoch, manifest[0].generation
    range_ = Range(Positions(), Positions.of({"t/0": 9}))
    return EpochRecord("p", epoch, generation, state, range_, 1000 + epoch, "q", 0, "f", manifest, ("t",))


def entry(epoch: int = 1, generation: int = 1, **more: Any) -> LedgerEntry:
    return LedgerEntry(epoch, generation, 1000 + epoch, Positions.of({"t/0": 9}), "store", **more)


def merge(sink: PostgresSink, committer: Any, *manifest: Committable, of: LedgerEntry | None = None) -> None:
    """A decision, as the checkpoint store makes it: one transaction of its own."""
    assert isinstance(committer, LastResource)
    with pool.borrow(sink.settings.conninfo("decides"), "deciding") as connection, connection.transaction():
        connection.execute("CREATE TABLE IF NOT EXISTS decisions (epoch bigint PRIMARY KEY)")
        connection.execute("INSERT INTO decisions VALUES (%s)", (manifest[0].epoch,))
        committer.merge(connection, record(*manifest), manifest, of or entry(manifest[0].epoch))


def eventually(check: Callable[[], Any], timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline_s, "it never came to be so"
        time.sleep(0.02)
