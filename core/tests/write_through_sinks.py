"""A write-through sink on a SQLite file, right, and broken in ways that an author might."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
from sqlite_sink import transaction

from onefold.core import (
    Announcement,
    Binding,
    CheckpointMismatch,
    Committable,
    Damaged,
    Decided,
    EpochRecord,
    Guarantee,
    LedgerEntry,
    Positions,
    SinkKind,
    TaskId,
    WorkLost,
)
from onefold.core.protocol.binding import bound, check_forward

TABLES = """
CREATE TABLE IF NOT EXISTS rows (id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS notes (pipeline TEXT, sink TEXT, what TEXT, value BLOB, PRIMARY KEY (pipeline, sink, what));
"""


class Writer:
    def __init__(self, sink: Sink, task: TaskId) -> None:
        self.sink, self.task, self.rows = sink, task, 0

    def write(self, batch: pa.RecordBatch) -> None:
        with transaction(self.sink.path) as db:
            for row in batch.to_pylist():
                self.put(db, row["id"], row["name"])
        self.rows += batch.num_rows

    def put(self, db: sqlite3.Connection, id: int, name: str | None) -> None:
        db.execute("DELETE FROM rows WHERE id = ?", (id,))
        db.execute("INSERT INTO rows VALUES (?, ?)", (id, name))

    def prepare(self) -> Committable | None:
        task, sink = self.task, self.sink
        handle = f"{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}"
        kind = SinkKind.WRITE_THROUGH
        return Committable(sink.name, kind, handle, task.generation, task.epoch, self.rows) if self.rows else None

    def abort(self) -> None:
        """What was written stays."""


class Committer:
    def __init__(self, sink: Sink, pipeline: str) -> None:
        self.sink, self.mine = sink, (pipeline, sink.name)

    def read(self, db: sqlite3.Connection, what: str) -> Any:
        found = db.execute("SELECT value FROM notes WHERE (pipeline, sink, what) = (?, ?, ?)", (*self.mine, what))
        row = found.fetchone()
        return pickle.loads(row[0]) if row else None

    def note(self, db: sqlite3.Connection, what: str, value: Any) -> None:
        db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)", (*self.mine, what, pickle.dumps(value)))

    def announce(self, record: EpochRecord) -> None:
        new = Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)
        with transaction(self.sink.path) as db:
            old = self.read(db, "announced")
            for there in (old, self.read(db, "entry")):
                check_forward(there, new, self.sink.name)
            if old is not None and old.epoch == new.epoch:
                if (old.timestamp_ms, old.range) != (new.timestamp_ms, new.range):
                    raise CheckpointMismatch("epoch-in-progress", f"{old}, and {new}")
                new = replace(new, is_written=old.is_written)
            self.note(db, "announced", new)

    def verify(self, committables: Sequence[Committable]) -> None:
        """Nothing is prepared."""

    def seal(self, committables: Sequence[Committable]) -> None:
        with transaction(self.sink.path) as db:
            told = self.read(db, "announced")
            for committable in committables:
                if told is None or told.epoch < committable.epoch:
                    raise WorkLost("prepared-work-gone", "another copy")
                if told.epoch == committable.epoch:
                    self.note(db, "announced", replace(told, is_written=True))

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        record = decided.record
        with transaction(self.sink.path) as db:
            told = self.read(db, "announced")
        if told is not None and told.epoch > record.epoch:
            return
        is_here = told is not None and (told.epoch, told.timestamp_ms) == (record.epoch, record.timestamp_ms)
        if not is_here or (committables and not told.is_written):
            raise Damaged("decided-work-gone", "another copy")

    def abort(self, committables: Sequence[Committable]) -> None:
        """Nothing can be taken back."""

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        return ()

    def ledger(self) -> LedgerEntry | None:
        with transaction(self.sink.path) as db:
            entry, told = self.read(db, "entry"), self.read(db, "announced")
        if entry is None and told is None:
            return None
        return replace(entry or LedgerEntry(0, 0, 0, Positions(), ""), announced=told)

    def bind(self, binding: Binding) -> None:
        with transaction(self.sink.path) as db:
            self.note(db, "entry", bound(self.read(db, "entry"), binding, self.sink.name))

    def write_ledger(self, entry: LedgerEntry) -> None:
        with transaction(self.sink.path) as db:
            check_forward(self.read(db, "entry"), entry, self.sink.name)
            self.note(db, "entry", replace(entry, announced=None))

    def close(self) -> None:
        return


class Sink:
    writers: ClassVar[type[Writer]] = Writer
    committers: ClassVar[type[Committer]] = Committer

    def __init__(self, path: str, name: str = "rows") -> None:
        self.path, self.name = path, name

    def guarantee(self) -> Guarantee:
        return Guarantee("row_key", SinkKind.WRITE_THROUGH, atomic_epoch=False)

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> Committer:
        with transaction(self.path) as db:
            for statement in TABLES.split(";"):
                db.execute(statement)
        return self.committers(self, pipeline)

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        assert set(schema.names) == {"id", "name"}, schema
        return self.recover(pipeline)

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> Writer:
        return self.writers(self, task)


class AddsAgain(Sink):
    class Again(Writer):
        def put(self, db: sqlite3.Connection, id: int, name: str | None) -> None:
            db.execute("INSERT INTO rows VALUES (?, ?)", (id, name))

    writers = Again


class KeepsTheFirstAttempt(Sink):
    """Whose rows were cut off, and stay so."""

    class Once(Writer):
        def write(self, batch: pa.RecordBatch) -> None:
            firsts = batch.column("id").slice(0, 1).to_pylist()
            with transaction(self.sink.path) as db:
                known = [1 for first in firsts if db.execute("SELECT 1 FROM rows WHERE id = ?", (first,)).fetchone()]
            for row in () if known else batch.to_pylist():
                with transaction(self.sink.path) as db:
                    self.put(db, row["id"], row["name"])
            self.rows += batch.num_rows

    writers = Once


class ForgetsToNote(Sink):
    class Forgetful(Committer):
        def seal(self, committables: Sequence[Committable]) -> None:
            return

    committers = Forgetful


class TakesAnyCopy(Sink):
    class Trusting(Committer):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            return

    committers = Trusting


class AnnouncesOverAnything(Sink):
    class Bold(Committer):
        def announce(self, record: EpochRecord) -> None:
            with transaction(self.sink.path) as db:
                new = Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)
                self.note(db, "announced", new)

    committers = Bold


class AnnouncesForAnybody(Sink):
    """announce looks at what was announced, and not at the ledger row."""

    class Deaf(Committer):
        def read(self, db: sqlite3.Connection, what: str) -> Any:
            row = super().read(db, what)
            return replace(row, generation=0) if what == "entry" and row and self.is_announcing else row

        def announce(self, record: EpochRecord) -> None:
            self.is_announcing = True
            super().announce(record)

        is_announcing = False

    committers = Deaf


class RecordsOverTheAnnouncement(Sink):
    class Tidy(Committer):
        def write_ledger(self, entry: LedgerEntry) -> None:
            super().write_ledger(entry)
            with transaction(self.sink.path) as db:
                db.execute("DELETE FROM notes WHERE (pipeline, sink, what) = (?, ?, 'announced')", self.mine)

    committers = Tidy


class AnnouncesInTwoSteps(Sink):
    class Twice(Committer):
        def announce(self, record: EpochRecord) -> None:
            with transaction(self.sink.path) as db:
                db.execute("DELETE FROM notes WHERE (pipeline, sink, what) = (?, ?, 'nothing')", self.mine)
                told = self.read(db, "announced")
                if told is not None and told.epoch < record.epoch:
                    self.note(db, "announced", replace(told, epoch=0))
            super().announce(record)

    committers = Twice


class ListsWhatItWrote(Sink):
    class Listing(Committer):
        def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
            kind = SinkKind.WRITE_THROUGH
            return (Committable(self.sink.name, kind, "all", up_to_generation, 1, 1),)

    committers = Listing


class DropsWhatComesLate(Sink):
    """As readers do that remember the highest id: and it asks for no order."""

    class Highest(Writer):
        def put(self, db: sqlite3.Connection, id: int, name: str | None) -> None:
            near = (id, id + 1000)
            if db.execute("SELECT 1 FROM rows WHERE id BETWEEN ? AND ?", near).fetchone() is None:
                db.execute("INSERT INTO rows VALUES (?, ?)", (id, name))

    writers = Highest


class AsksForItsOrder(DropsWhatComesLate):
    """The same, and right: the rows of a name come to one writer, in the order of their ids."""

    def partition_by(self) -> tuple[str, ...]:
        return ("name",)

    def order_by(self) -> tuple[str, ...]:
        return ("id",)


class AsksForItsRowsOnly(AsksForItsOrder):
    """All rows of a name, in any order."""

    def order_by(self) -> tuple[str, ...]:
        return ()
