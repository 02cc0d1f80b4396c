"""A small sink: rows into a table of Postgres, by its own prepared transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.errors import UndefinedObject

from onefold.core import (
    Binding,
    Committable,
    CommittedPart,
    Damaged,
    Decided,
    Guarantee,
    InDoubt,
    LedgerEntry,
    Positions,
    Retriable,
    SinkKind,
    TaskId,
    WorkLost,
)
from onefold.core.protocol.binding import bound, check_forward

# A row of note_parts is written in the transaction that is prepared: once it shows, that one was committed.
TABLES = """
CREATE TABLE IF NOT EXISTS notes (id bigint, name text);
CREATE TABLE IF NOT EXISTS note_parts (
    handle text PRIMARY KEY, pipeline text, epoch bigint, generation bigint, timestamp_ms bigint);
CREATE TABLE IF NOT EXISTS note_ledger (
    pipeline text PRIMARY KEY, epoch bigint, generation bigint, timestamp_ms bigint, positions text, store_id text);
"""
SECONDS = 3  # that a server may be silent


@contextmanager
def connected(url: str, failed: type[Retriable] | type[InDoubt] = Retriable) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction ends with the block; a server that goes away raises `failed`."""
    try:
        with psycopg.connect(url, connect_timeout=SECONDS, tcp_user_timeout=SECONDS * 1000) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise failed("notes-unavailable", f"Postgres went away: {error}") from error


class NotesSink:
    def __init__(self, url: str, name: str = "notes") -> None:
        self.url, self.name = url, name

    def guarantee(self) -> Guarantee:
        return Guarantee("prepared", SinkKind.TWO_PHASE, atomic_epoch=False, conditions=())

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> NotesCommitter:
        with connected(self.url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(1)")  # two drivers may make the tables at once
            connection.execute(TABLES)
        return NotesCommitter(self, pipeline)

    def open(self, pipeline: str, schema: pa.Schema) -> NotesCommitter:
        assert set(schema.names) == {"id", "name"}, schema
        return self.recover(pipeline)

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> NotesWriter:
        return NotesWriter(self, task)


class NotesWriter:
    def __init__(self, sink: NotesSink, task: TaskId) -> None:
        self.sink, self.task = sink, task
        self.rows: list[tuple[int, str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += [(row["id"], row["name"]) for row in batch.to_pylist()]

    def prepare(self) -> Committable | None:
        if not self.rows:
            return None
        task, name = self.task, self.sink.name
        handle = f"{name}/{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}"
        part = (handle, f"{name}/{task.pipeline}", task.epoch, task.generation, task.timestamp_ms)
        with connected(self.sink.url) as connection:
            connection.cursor().executemany("INSERT INTO notes VALUES (%s, %s)", self.rows)
            connection.execute("INSERT INTO note_parts VALUES (%s, %s, %s, %s, %s)", part)
            connection.execute(f"PREPARE TRANSACTION '{handle}'".encode())
        return Committable(name, SinkKind.TWO_PHASE, handle, task.generation, task.epoch, len(self.rows))

    def abort(self) -> None:
        self.rows.clear()


class NotesCommitter:
    def __init__(self, sink: NotesSink, pipeline: str) -> None:
        self.sink, self.mine = sink, f"{sink.name}/{pipeline}"

    def verify(self, committables: Sequence[Committable]) -> None:
        there = {work.handle for work in self._prepared()}
        for work in committables:
            if work.handle not in there:
                raise WorkLost("notes-gone", f"{work.handle} is gone: the epoch's writers must run again")

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        gone = [work.handle for work in committables if not self._end("COMMIT", work) and not self._was_committed(work)]
        if gone:
            raise Damaged("notes-lost", f"epoch {decided.record.epoch} was decided, and {gone} are gone")

    def abort(self, committables: Sequence[Committable]) -> None:
        for work in committables:
            self._end("ROLLBACK", work)

    def _end(self, how: str, work: Committable) -> bool:
        """False if it is not there, or no longer."""
        with connected(self.sink.url, InDoubt) as connection:
            connection.autocommit = True
            try:
                connection.execute(f"{how} PREPARED '{work.handle}'".encode())
            except UndefinedObject:
                return False
        return True

    def _was_committed(self, work: Committable) -> bool:
        with connected(self.sink.url) as connection:
            if connection.execute("SELECT 1 FROM note_parts WHERE handle = %s", (work.handle,)).fetchone():
                return True
            query = "SELECT 1 FROM note_ledger WHERE pipeline = %s AND epoch > %s"
            return connection.execute(query, (self.mine, work.epoch)).fetchone() is not None

    def leftovers(self, up_to_generation: int) -> list[Committable]:
        return [work for work in self._prepared() if work.generation <= up_to_generation]

    def _prepared(self) -> list[Committable]:
        """What waits here for this sink and pipeline: its names say so."""
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
        with connected(self.sink.url) as connection:
            handles = [handle for (handle,) in connection.execute(query, (f"{self.mine}/",))]
        parts = [(handle, handle.removeprefix(f"{self.mine}/").split("/")) for handle in handles]
        kind, name = SinkKind.TWO_PHASE, self.sink.name  # another pipeline's name may begin with this one's
        return [Committable(name, kind, handle, int(p[0]), int(p[1]), 0) for handle, p in parts if len(p) == 3]

    def ledger(self) -> LedgerEntry | None:
        query = """SELECT DISTINCT epoch, generation, timestamp_ms FROM note_parts
                   WHERE pipeline = %s AND epoch > %s ORDER BY 1, 2"""
        with connected(self.sink.url) as connection:
            row = self._row(connection)
            members = tuple(CommittedPart(*found) for found in connection.execute(query, (self.mine, row.epoch)))
        return replace(row, members=members) if row.store_id or members else None

    def bind(self, binding: Binding) -> None:
        with connected(self.sink.url) as connection:
            self._write(connection, bound(self._row(connection), binding, self.sink.name))

    def write_ledger(self, entry: LedgerEntry) -> None:
        with connected(self.sink.url) as connection:
            check_forward(self._row(connection), entry, self.sink.name)
            self._write(connection, entry)

    def _row(self, connection: psycopg.Connection[Any]) -> LedgerEntry:
        """Kept from others until the transaction ends."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.mine,))
        query = "SELECT epoch, generation, timestamp_ms, positions, store_id FROM note_ledger WHERE pipeline = %s"
        epoch, generation, timestamp_ms, positions, store_id = connection.execute(query, (self.mine,)).fetchone() or (
            (0, 0, 0, "{}", "")
        )
        return LedgerEntry(epoch, generation, timestamp_ms, Positions.from_json(positions), store_id)

    def _write(self, connection: psycopg.Connection[Any], entry: LedgerEntry) -> None:
        values = (entry.epoch, entry.generation, entry.timestamp_ms, entry.positions.to_json(), entry.store_id)
        connection.execute("DELETE FROM note_ledger WHERE pipeline = %s", (self.mine,))
        connection.execute("INSERT INTO note_ledger VALUES (%s, %s, %s, %s, %s, %s)", (self.mine, *values))
        query = "DELETE FROM note_parts WHERE pipeline = %s AND epoch < %s"
        connection.execute(query, (self.mine, entry.epoch))  # the row itself now says that these were committed

    def close(self) -> None:
        return
