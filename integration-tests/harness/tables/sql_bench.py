"""One SqlSink, its checkpoint store, and epochs through both, without Spark or driver."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from onefold.core import Committable, LedgerEntry, Positions, Range, TaskId
from onefold.core.contract import Decided, EpochRecord
from onefold.core.protocol.effects import EpochRequest
from onefold.sinks import SqlSink
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["DELETES", "NOW_MS", "PIPELINE", "UPSERT", "Bench", "Make", "rows", "staged_tables"]

PIPELINE = "p"
NOW_MS = 1_700_000_000_000

UPSERT = {"mode": "upsert", "key": ("id",), "order": ("v",)}
DELETES = {**UPSERT, "delete_when_true": "gone"}


def rows(*found: tuple[Any, ...]) -> pa.RecordBatch:
    """Rows of id, v, name, and gone where there are four."""
    names = ["id", "v", "name", "gone"][: len(found[0])]
    types = [pa.int64(), pa.int64(), pa.string(), pa.bool_()]
    columns = zip(*found, strict=True)
    return pa.record_batch({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=False)})


def staged_tables(engine: sa.Engine) -> list[str]:
    """The stages, and the table that lists their attempts: SqlSink's own, or on Postgres PostgresSink's."""
    schema = "onefold_sinks" if engine.dialect.name == "postgresql" else None
    stages = [n for n in sa.inspect(engine).get_table_names(schema) if n.startswith("onefold_stage_")]
    if schema is None:
        return [*stages, "onefold_sql_staged"]
    return [f"{schema}.{name}" for name in [*stages, "onefold_staged"]]


class Bench:
    """One sink, its store, and epochs through both."""

    def __init__(self, url: str, table: str = "t", **settings: Any) -> None:
        self.sink = SqlSink(url, table, **settings)
        self.store = CheckpointStore(self.sink.store_url() or "", lock_timeout_s=settings.get("lock_timeout_s", 30))
        self.engine = sa.create_engine(self.sink.store_url() or "", poolclass=sa.NullPool)
        self.generation = self.store.acquire(PIPELINE, 0)
        self.committer: Any = None
        self.end = 0

    def close(self) -> None:
        if self.committer is not None:
            self.committer.close()
        self.store.close()
        self.engine.dispose()

    def open(self, schema: pa.Schema) -> None:
        if self.committer is not None:
            self.committer.close()
        self.committer = self.sink.open(PIPELINE, schema)

    def begin(self, now_ms: int = NOW_MS) -> EpochRecord:
        span = Range(Positions.of({"t/0": self.end}), Positions.of({"t/0": self.end + 1}))
        request = EpochRequest(span, "q", self.end, "job", (self.sink.name,))
        last = self.store.facts(PIPELINE).last
        return self.store.open_epoch(self.generation, request, last.epoch if last else 0, now_ms)

    def prepare(self, record: EpochRecord, *batches: pa.RecordBatch) -> Committable:
        task = TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        writer = pickle.loads(pickle.dumps(self.sink)).writer(task)
        for batch in batches:
            writer.write(batch)
        committable = writer.prepare()
        assert committable is not None
        return committable

    def decide(self, record: EpochRecord, manifest: Sequence[Committable]) -> Decided:
        entry = LedgerEntry(record.epoch, record.generation, record.timestamp_ms, record.range.end, self.store.id())

        def merge(connection: Any) -> None:
            self.committer.merge(connection, record, manifest, entry)

        return self.store.decide(self.generation, record, tuple(manifest), NOW_MS, merge)

    def finish(self, record: EpochRecord, manifest: Sequence[Committable]) -> None:
        self.committer.verify(manifest)
        decided = self.decide(record, manifest)
        self.committer.commit(decided, manifest)
        self.store.complete(self.generation, decided, NOW_MS)
        self.end += 1

    def epoch(self, *batches: pa.RecordBatch, now_ms: int = NOW_MS) -> None:
        """One whole epoch, each batch by a task of its own."""
        if self.committer is None:
            self.open(batches[0].schema)
        record = self.begin(now_ms)
        self.finish(record, [self.prepare(record, batch) for batch in batches])

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    def do(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def staged(self) -> int:
        """Rows that wait in the stage, and attempts that are listed."""
        return sum(int(self.ask(f"SELECT count(*) FROM {name}")[0][0]) for name in staged_tables(self.engine))

    @property
    def is_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"


Make = Callable[..., Bench]
