"""The same as a last-resource sink: an epoch's rows move in the transaction of the decision, all at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pyarrow as pa
from sqlite_sink import SqliteCommitter, SqliteSink, transaction

from onefold.core import Committable, Damaged, Decided, EpochRecord, Guarantee, LedgerEntry, SinkKind, WorkLost


class SqliteStagedSink(SqliteSink):
    """The checkpoint store has to live in the same file: `store_url` says where."""

    def guarantee(self) -> Guarantee:
        return Guarantee("staged", SinkKind.LAST_RESOURCE, atomic_epoch=True, conditions=("the store in this file",))

    def recover(self, pipeline: str) -> SqliteStagedCommitter:
        super().recover(pipeline)
        return SqliteStagedCommitter(self, pipeline)

    def open(self, pipeline: str, schema: pa.Schema) -> SqliteStagedCommitter:
        super().open(pipeline, schema)
        return self.recover(pipeline)


class SqliteStagedCommitter(SqliteCommitter):
    def shares_store(self, store_id: str) -> bool:
        with transaction(self.sink.path) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'onefold_store'").fetchone():
                return False
            return db.execute("SELECT 1 FROM onefold_store WHERE store_id = ?", (store_id,)).fetchone() is not None

    def merge(
        self, connection: sqlite3.Connection, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry
    ) -> None:
        """In the store's transaction, on its connection: not ours to end."""
        for work in manifest:
            copy = f"INSERT INTO {self.sink.table} SELECT id, name FROM onefold_stage WHERE handle = ?"
            moved = connection.execute(copy, (work.handle,)).rowcount
            if moved != work.rows:
                raise WorkLost(
                    "stage-rows-missing",
                    f"{self.sink.path}: {work.handle} has {moved} rows, and the manifest says {work.rows}",
                )
            connection.execute("DELETE FROM onefold_stage WHERE handle = ?", (work.handle,))
            connection.execute("UPDATE onefold_work SET is_committed = 1 WHERE handle = ?", (work.handle,))
        self._record(connection, entry)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision has done it already: only look."""
        with transaction(self.sink.path) as db:
            for work in committables:
                if not self._was_committed(db, work):
                    raise Damaged(
                        "decided-work-gone",
                        f"{self.sink.path}: epoch {work.epoch} was decided, and {work.handle} is gone",
                    )
