"""The examples of docs/connectors.md, each broken in one way that a connector author might."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlite_sink import SqliteCommitter, SqliteSink, SqliteWriter, transaction
from sqlite_staged_sink import SqliteStagedCommitter, SqliteStagedSink

from onefold.core import Binding, Committable, Damaged, Decided, Guarantee, LedgerEntry, SinkKind, TaskId
from onefold.core.protocol.binding import bound, check_forward


class Broken(SqliteSink):
    """A sink with other writers or committers than the example's."""

    writers: type[SqliteWriter] = SqliteWriter
    committers: type[SqliteCommitter] = SqliteCommitter

    def recover(self, pipeline: str) -> Any:
        super().recover(pipeline)
        return self.committers(self, pipeline)

    def writer(self, task: TaskId) -> SqliteWriter:
        return self.writers(self, task)


BUFFER: dict[str, list[tuple[int, str]]] = {}


class BuffersOnly(Broken):
    """prepare keeps the rows in the process, for commit to write them."""

    class Writer(SqliteWriter):
        def prepare(self) -> Committable | None:
            committable = super().prepare()
            if committable is not None:
                BUFFER[committable.handle] = self.rows
                with transaction(self.sink.path) as db:
                    db.execute("DELETE FROM onefold_stage WHERE handle = ?", (committable.handle,))
            return committable

    class Committer(SqliteCommitter):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            for work in committables:
                with transaction(self.sink.path) as db:
                    rows = BUFFER.pop(work.handle, [])
                    db.executemany(f"INSERT INTO {self.sink.table} VALUES (?, ?)", rows)
            super().commit(decided, committables)

    writers, committers = Writer, Committer


class PreparesRowByRow(Broken):
    """prepare stages in transactions of their own, and only then says whose they are."""

    class Writer(SqliteWriter):
        def prepare(self) -> Committable | None:
            rows, self.rows = self.rows, self.rows[:1]
            handle = (
                f"{self.sink.name}/{self.task.pipeline}/{self.task.generation}/{self.task.epoch}/{self.task.attempt}"
            )
            for row in rows[1:]:
                with transaction(self.sink.path) as db:
                    db.execute("INSERT INTO onefold_stage VALUES (?, ?, ?)", (handle, *row))
            committable = super().prepare()
            if committable is None:
                return None
            with transaction(self.sink.path) as db:
                db.execute("UPDATE onefold_work SET rows = ? WHERE handle = ?", (len(rows), committable.handle))
            return replace(committable, rows=len(rows))

    writers = Writer


class ShowsOnPrepare(Broken):
    """prepare writes straight into the table."""

    class Writer(SqliteWriter):
        def prepare(self) -> Committable | None:
            committable = super().prepare()
            if committable is not None:
                with transaction(self.sink.path) as db:
                    copy = f"INSERT INTO {self.sink.table} SELECT id, name FROM onefold_stage WHERE handle = ?"
                    db.execute(copy, (committable.handle,))
                    db.execute("DELETE FROM onefold_stage WHERE handle = ?", (committable.handle,))
            return committable

    writers = Writer


class PreparesNothing(Broken):
    """prepare leaves a part without rows."""

    class Writer(SqliteWriter):
        def prepare(self) -> Committable | None:
            if self.rows:
                return super().prepare()
            self.rows = [(0, "")]
            committable = super().prepare()
            assert committable is not None
            return replace(committable, rows=0)

    writers = Writer


class SameNameForAttempts(Broken):
    """The name of prepared work has no attempt in it."""

    class Writer(SqliteWriter):
        def __init__(self, sink: SqliteSink, task: TaskId) -> None:
            super().__init__(sink, replace(task, attempt=type(task.attempt)(int=0)))

        def prepare(self) -> Committable | None:
            try:
                return super().prepare()
            except sqlite3.IntegrityError:
                task, sink = self.task, self.sink
                handle = f"{sink.name}/{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}"
                return Committable(sink.name, SinkKind.TWO_PHASE, handle, task.generation, task.epoch, len(self.rows))

    writers = Writer


class WriterAbortsTheTask(Broken):
    """The writer's abort removes all that the epoch has prepared."""

    class Writer(SqliteWriter):
        def abort(self) -> None:
            with transaction(self.sink.path) as db:
                db.execute("DELETE FROM onefold_work WHERE epoch = ?", (self.task.epoch,))

    writers = Writer


class CommitsTwice(Broken):
    """commit copies what is staged, however often it is asked, and leaves the stage to record."""

    class Committer(SqliteCommitter):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            with transaction(self.sink.path) as db:
                is_whole = all(self._was_committed(db, work) for work in committables)
            if not is_whole:
                super().commit(decided, committables)
            for work in committables:
                with transaction(self.sink.path) as db:
                    copy = f"INSERT INTO {self.sink.table} SELECT id, name FROM onefold_stage WHERE handle = ?"
                    db.execute(copy, (work.handle,))
                    db.execute("UPDATE onefold_work SET is_committed = 1 WHERE handle = ?", (work.handle,))

        def _record(self, db: sqlite3.Connection, entry: LedgerEntry) -> None:
            done = "SELECT handle FROM onefold_work WHERE (pipeline, sink) = (?, ?) AND is_committed"
            db.execute(f"DELETE FROM onefold_stage WHERE handle IN ({done})", self.mine)
            super()._record(db, entry)

    committers = Committer


class CommitsInTwoSteps(Broken):
    """commit moves the rows in one transaction, and writes down that it did in another."""

    class Committer(SqliteCommitter):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            gone = []
            for work in committables:
                with transaction(self.sink.path) as db:
                    if not self._was_committed(db, work):
                        gone.append(work.handle)
                        continue
                    if not self._is_prepared(db, work):
                        continue
                    copy = f"INSERT INTO {self.sink.table} SELECT id, name FROM onefold_stage WHERE handle = ?"
                    db.execute(copy, (work.handle,))
                with transaction(self.sink.path) as db:
                    db.execute("DELETE FROM onefold_stage WHERE handle = ?", (work.handle,))
                    db.execute("UPDATE onefold_work SET is_committed = 1 WHERE handle = ?", (work.handle,))
            if gone:
                raise Damaged("decided-work-gone", f"{gone} are gone")

        def _is_prepared(self, db: sqlite3.Connection, work: Committable) -> bool:
            query = "SELECT 1 FROM onefold_work WHERE handle = ? AND NOT is_committed"
            return db.execute(query, (work.handle,)).fetchone() is not None

    committers = Committer


class CommitsAndTidiesUp(Broken):
    """commit removes whatever else the pipeline has prepared."""

    class Committer(SqliteCommitter):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            super().commit(decided, committables)
            self.abort(self.leftovers(2**31))

    committers = Committer


class CommitsWhatIsThere(Broken):
    """commit passes over what is gone."""

    class Committer(SqliteCommitter):
        def _was_committed(self, db: sqlite3.Connection, work: Committable) -> bool:
            return True

    committers = Committer


class StopsAtDamage(Broken):
    """commit leaves what comes after a part that is gone."""

    class Committer(SqliteCommitter):
        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            for work in committables:
                super().commit(decided, [work])

    committers = Committer


class AbortsAll(Broken):
    """abort removes whatever the pipeline has prepared."""

    class Committer(SqliteCommitter):
        def abort(self, committables: Sequence[Committable]) -> None:
            super().abort(self.leftovers(2**31) if committables else [])

    committers = Committer


class AbortsOnce(Broken):
    """abort raises if there is nothing to abort."""

    class Committer(SqliteCommitter):
        def abort(self, committables: Sequence[Committable]) -> None:
            there = {work.handle for work in self.leftovers(2**31)}
            if any(work.handle not in there for work in committables):
                raise KeyError("no such work")
            super().abort(committables)

    committers = Committer


class ForgetsThePipeline(Broken):
    """leftovers lists every pipeline's work."""

    class Committer(SqliteCommitter):
        def leftovers(self, up_to_generation: int) -> list[Committable]:
            query = "SELECT handle, generation, epoch FROM onefold_work WHERE generation <= ? AND NOT is_committed"
            with transaction(self.sink.path) as db:
                found = db.execute(query, (up_to_generation,)).fetchall()
            return [Committable(self.sink.name, SinkKind.TWO_PHASE, h, g, e, 0) for h, g, e in found]

    committers = Committer


class ForgetsTheGeneration(Broken):
    """leftovers lists newer generations' work too."""

    class Committer(SqliteCommitter):
        def leftovers(self, up_to_generation: int) -> list[Committable]:
            return super().leftovers(2**31)

    committers = Committer


class VerifiesNothing(Broken):
    """verify believes."""

    class Committer(SqliteCommitter):
        def verify(self, committables: Sequence[Committable]) -> None:
            return

    committers = Committer


class LedgerGoesBack(Broken):
    """record writes whatever it is given."""

    class Committer(SqliteCommitter):
        def _record(self, db: sqlite3.Connection, entry: LedgerEntry) -> None:
            db.execute("DELETE FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)", self.mine)
            super()._record(db, entry)

    committers = Committer


class LedgerInTwoSteps(Broken):
    """record removes the old row in one transaction, and writes the new one in another."""

    class Committer(SqliteCommitter):
        def write_ledger(self, entry: LedgerEntry) -> None:
            with transaction(self.sink.path) as db:
                self._record(db, entry)
                db.execute("DELETE FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)", self.mine)
            with transaction(self.sink.path) as db:
                self._record(db, entry)

    committers = Committer


class HidesMembers(Broken):
    """ledger shows its row only."""

    class Committer(SqliteCommitter):
        def ledger(self) -> LedgerEntry | None:
            entry = super().ledger()
            return replace(entry, members=()) if entry is not None and (entry.epoch or entry.store_id) else None

    committers = Committer


class BindsAnybody(Broken):
    """bind takes the row from whichever store has it."""

    class Committer(SqliteCommitter):
        def bind(self, binding: Binding) -> None:
            super().bind(replace(binding, takes_over=True))

    committers = Committer


class BindsForNothing(Broken):
    """record asks for the epoch alone."""

    class Committer(SqliteCommitter):
        def _record(self, db: sqlite3.Connection, entry: LedgerEntry) -> None:
            row = self._row(db)
            check_forward(replace(row, generation=0, store_id="") if row.epoch < entry.epoch else row, entry, "rows")
            self._write(db, entry)

    committers = Committer


class BindsInTwoSteps(Broken):
    """bind writes the generation in one transaction, and whose it is in another."""

    class Committer(SqliteCommitter):
        def bind(self, binding: Binding) -> None:
            with transaction(self.sink.path) as db:
                row = bound(self._row(db), binding, self.sink.name)
                self._write(db, replace(row, store_id=self._row(db).store_id))
            with transaction(self.sink.path) as db:
                self._write(db, row)

    committers = Committer


class KeepsALock(Broken):
    """Something in it does not pickle."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.lock = threading.Lock()


class SaysAtomic(Broken):
    """It promises whole epochs to readers, and commits part by part."""

    def guarantee(self) -> Guarantee:
        return replace(super().guarantee(), atomic_epoch=True)


class ChangesItsMind(Broken):
    """guarantee says something else once the sink is open."""

    is_open = False

    def guarantee(self) -> Guarantee:
        return replace(super().guarantee(), mode="open" if self.is_open else "closed")

    def open(self, pipeline: str, schema: pa.Schema) -> Any:
        self.is_open = True
        return super().open(pipeline, schema)


class BrokenStaged(SqliteStagedSink):
    committers: type[SqliteStagedCommitter] = SqliteStagedCommitter

    def recover(self, pipeline: str) -> SqliteStagedCommitter:
        super().recover(pipeline)
        return self.committers(self, pipeline)


class MergesWhatIsThere(BrokenStaged):
    """merge ignores the counts."""

    class Committer(SqliteStagedCommitter):
        def merge(self, connection: Any, record: Any, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
            for work in manifest:
                query = "SELECT count(*) FROM onefold_stage WHERE handle = ?"
                (there,) = connection.execute(query, (work.handle,)).fetchone()
                super().merge(connection, record, [replace(work, rows=there)], entry)
            self._record(connection, entry)

    committers = Committer


class MergesForItself(BrokenStaged):
    """merge commits, as if the transaction were its own."""

    class Committer(SqliteStagedCommitter):
        def merge(self, connection: Any, record: Any, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
            super().merge(connection, record, manifest, entry)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")

    committers = Committer


class MergesInCommit(BrokenStaged):
    """merge only counts, and commit moves the rows."""

    class Committer(SqliteStagedCommitter):
        def merge(self, connection: Any, record: Any, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
            connection.execute("SAVEPOINT counting")
            super().merge(connection, record, manifest, entry)
            connection.execute("ROLLBACK TO counting")
            self._record(connection, entry)

        def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
            SqliteCommitter.commit(self, decided, committables)

    committers = Committer


class MergesWithoutTheLedger(BrokenStaged):
    """merge leaves the ledger's row for later."""

    class Committer(SqliteStagedCommitter):
        def merge(self, connection: Any, record: Any, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
            before = connection.execute(
                "SELECT * FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)", self.mine
            ).fetchone()
            super().merge(connection, record, manifest, entry)
            connection.execute("DELETE FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)", self.mine)
            if before is not None:
                connection.execute("INSERT INTO onefold_ledger VALUES (?, ?, ?, ?, ?, ?, ?)", before)

    committers = Committer


class MergesWhenFenced(BrokenStaged):
    """merge moves the ledger back."""

    class Committer(SqliteStagedCommitter):
        def merge(self, connection: Any, record: Any, manifest: Sequence[Committable], entry: LedgerEntry) -> None:
            connection.execute("DELETE FROM onefold_ledger WHERE (pipeline, sink) = (?, ?)", self.mine)
            super().merge(connection, record, manifest, entry)

    committers = Committer


class SharesAnyStore(BrokenStaged):
    """shares_store says yes."""

    class Committer(SqliteStagedCommitter):
        def shares_store(self, store_id: str) -> bool:
            return bool(store_id)

    committers = Committer
