"""A complete sink: rows into a table of a SQLite file, exactly once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from onefold.core import (
    Binding,
    Committable,
    CommittedPart,
    Damaged,
    Decided,
    Guarantee,
    LedgerEntry,
    Positions,
    Retriable,
    SinkKind,
    TaskId,
    WorkLost,
)
from onefold.core.protocol.binding import bound, check_forward

# One row of onefold_work is one attempt: prepared (its rows wait in onefold_stage), and later committed.
TABLES = """
CREATE TABLE IF NOT EXISTS {target} (id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS onefold_stage (handle TEXT, id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS onefold_work (
    handle TEXT PRIMARY KEY, pipeline TEXT, sink TEXT, generation INTEGER, epoch INTEGER, timestamp_ms INTEGER,
    rows INTEGER, is_committed INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS onefold_ledger (
    pipeline TEXT, sink TEXT, epoch INTEGER, generation INTEGER, timestamp_ms INTEGER, positions TEXT, store_id TEXT,
    PRIMARY KEY (pipeline, sink));
"""


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """All of the block takes effect, durably, or nothing of it: also if the process dies in it."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise Retriable("sqlite-unavailable", f"{path}: {error}") from error
    finally:
        db.close()  # rolls back what was not committed


class SqliteSink:
    """What the user names. It pickles: the driver sends it to the executors."""

    def __init__(self, path: str, table: str = "rows", name: str = "rows") -> None:
        self.path, self.table, self.name = path, table, name

    def guarantee(self) -> Guarantee:
        return Guarantee("sqlite", SinkKind.TWO_PHASE, atomic_epoch=False, conditions=("one machine, a local disk",))

    def store_url(self) -> str | None:
        return f"sqlite:///{self.path}"

    def recover(self, pipeline: str) -> SqliteCommitter:
        with transaction(self.path) as db:
            for statement in TABLES.format(target=self.table).split(";"):
                db.execute(statement)
        return SqliteCommitter(self, pipeline)

    def open(self, pipeline: str, schema: pa.Schema) -> SqliteCommitter:
        assert set(schema.names) == {"id", "name"}, schema
        return self.recover(pipeline)

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> SqliteWriter:
        return SqliteWriter(self, task)


class SqliteWriter:
    """One attempt of one task: gathers rows, and stages them all at once."""

    def __init__(self, sink: SqliteSink, task: TaskId) -> None:
        self.sink, self.task = sink, task
        self.rows: list[tuple[int, str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += [(row["id"], row["name"]) for row in batch.to_pylist()]

    def prepare(self) -> Committable | None:
        if not self.rows:
            return None
        task, sink = self.task, self.sink
        handle = f"{sink.name}/{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}"
        work = (handle, task.pipeline, sink.name, task.generation, task.epoch, task.timestamp_ms, len(self.rows))
        with transaction(sink.path) as db:
            db.executemany("INSERT INTO onefold_stage VALUES (?, ?, ?)", [(handle, *row) for row in self.rows])
            db.execute("INSERT INTO onefold_work VALUES (?, ?, ?, ?, ?, ?, ?, 0)", work)
        return Committable(sink.name, sink.guarantee().kind, handle, task.generation, task.epoch, len(self.rows))

    def abort(self) -> None:
        self.rows.clear()


class SqliteCommitter:
    """The driver's hand. Nothing is kept between calls, so any process can go on where another one died."""

    def __init__(self, sink: SqliteSink, pipeline: str) -> None:
        self.sink, self.pipeline = sink, pipeline
        self.mine = (pipeline, sink.name)

    def verify(self, committables: Sequence[Committable]) -> None:
        with transaction(self.sink.path) as db:
            for work in committables:
                query = "SELECT rows FROM onefold_work WHERE handle = ? AND NOT is_committed"
                if db.execute(query, (work.handle,)).fetchone() != (work.rows,):
                    raise WorkLost(
                        "prepared-work-gone",
                        f"{self.sink.path}: {work.handle} is gone: the epoch's writers must run again",
                    )

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        gone = [work.handle for work in committables if not self._commit(work)]
        if gone:
            raise Damaged(
                "decided-work-gone", f"{self.sink.path}: epoch {decided.record.epoch} was decided, and {gone} are gone"
            )

    def _commit(self, work: Committable) -> bool:
        """Whether it is visible now: one that is gone keeps none of the others."""
        with transaction(self.sink.path) as db:
            query = "UPDATE onefold_work SET is_committed = 1 WHERE handle = ? AND NOT is_committed"
            if not db.execute(query, (work.handle,)).rowcount:
                return self._was_committed(db, work)
            copy = f"INSERT INTO {self.sink.table} SELECT id, name FROM onefold_stage WHERE handle = ?"
            db.execute(copy, (work.handle,))
            db.execute("DELETE FROM onefold_stage WHERE handle = ?", (work.handle,))
            return True

    def _was_committed(self, db: sqlite3.Connection, work: Committable) -> bool:
        if db.execute("SELECT 1 FROM onefold_work WHERE handle = ?", (work.handle,)).fetchone():
            return True
        query = "SELECT 1 FROM onefold_ledger WHERE (pipeline, sink) = (?, ?) AND epoch > ?"
        return db.execute(query, (*self.mine, work.epoch)).fetchone() is not None

    def abort(self, committables: Sequence[Committable]) -> None:
        with transaction(self.sink.path) as db:
            for work in committables:
                db.execute("DELETE FROM onefold_work WHERE handle = ? AND NOT is_committed", (work.handle,))
                db.execute("DELETE FROM onefold_stage WHERE handle = ?", (work.handle,))

    def leftovers(self, up_to_generation: int) -> list[Committable]:
        query = """SELECT handle, generation, epoch FROM onefold_work
                   WHERE (pipeline, sink) = (?, ?) AND generation <= ? AND NOT is_committed"""
        with transaction(self.sink.path) as db:
            found = db.execute(query, (*self.mine, up_to_generation)).fetchall()
        kind = self.sink.guarantee().kind
        return [Committable(self.sink.name, kind, handle, generation, epoch, 0) for handle, generation, epoch in found]

    def ledger(self) -> LedgerEntry | None:
        with transaction(self.sink.path) as db:
            row = self._row(db)
            query = """SELECT DISTINCT epoch, generation, timestamp_ms FROM onefold_work
                       WHERE (pipeline, sink) = (?, ?) AND is_committed AND epoch > ? ORDER BY 1, 2"""
            members = tuple(CommittedPart(*found) for found in db.execute(query, (*self.mine, row.epoch)))
        return replace(row, members=members) if row.store_id or members else None

    def bind(self, binding: Binding) -> None:
        with transaction(self.sink.path) as db:
            self._write(db, bound(self._row(db), binding, self.sink.name))

    def write_ledger(self, entry: LedgerEntry) -> None:
        with transaction(self.sink.path) as db:
            self._record(db, entry)

    def _record(self, db: sqlite3.Connection, entry: LedgerEntry) -> None:
        check_forward(self._row(db), entry, self.sink.name)
        self._write(db, entry)

    def _row(self, db: sqlite3.Connection) -> LedgerEntry:
        query = "SELECT * FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)"
        row = db.execute(query, self.mine).fetchone() or (*self.mine, 0, 0, 0, "{}", "")
        return LedgerEntry(row[2], row[3], row[4], Positions.from_json(row[5]), row[6])

    def _write(self, db: sqlite3.Connection, entry: LedgerEntry) -> None:
        values = (entry.epoch, entry.generation, entry.timestamp_ms, entry.positions.to_json(), entry.store_id)
        db.execute("INSERT OR REPLACE INTO onefold_ledger VALUES (?, ?, ?, ?, ?, ?, ?)", (*self.mine, *values))
        query = "DELETE FROM onefold_work WHERE (pipeline, sink) = (?, ?) AND is_committed AND epoch < ?"
        db.execute(query, (*self.mine, entry.epoch))  # the row itself now says that these were committed

    def close(self) -> None:
        return
