"""Executors: one attempt's rows into the stage, in one transaction of the sink's own database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onefold.core.checks import present, require
from onefold.core.contract import SinkKind, TaskId
from onefold.core.errors import BadRecord, InDoubt, OnefoldError, OutOfResources, Retriable, SchemaMismatch
from onefold.core.values.plain import plain
from onefold.sinks.sink_writer import AttemptWriter, check_names
from onefold.sinks.sql.adapters.adapter import driver_of
from onefold.sinks.sql.adapters.sql_kinds import values_of
from onefold.sinks.sql.bookkeeping import staged
from onefold.sinks.sql.databases import adapter_of, database_of, dialect_of
from onefold.sinks.sql.naming import ATTEMPT, DELETED, ROW
from onefold.sinks.sql.sink_plan import SqlPlan
from onefold.sinks.staged.attempts import attempt_number, handle
from onefold.sinks.staged.table_options import SqlSinkConfig

ROWS_MAX = 50_000  # that are encoded at once


class _Spool:
    """Rows of one schema that wait outside of the database, in a file without a name, which goes with the process."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # `close` ends it
        self._stream = pa.ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Once, after the last `write`."""
        self._stream.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        with suppress(OSError):  # what is left to be written, where there is no room for it
            self._file.close()


class SqlWriter(AttemptWriter):
    """One attempt of one task, in one transaction."""

    def __init__(self, settings: SqlSinkConfig, plan: SqlPlan, task: TaskId) -> None:
        require(task.pipeline == plan.pipeline, f"a task of pipeline {task.pipeline!r} and a plan of {plan.pipeline!r}")
        super().__init__(settings.name, SinkKind.LAST_RESOURCE, task)
        self._plan = plan
        self._database = database_of(settings, task.pipeline)
        self._adapter = adapter_of(dialect_of(self._database.url))
        self._attempt = attempt_number(task.attempt)
        self._transaction: AbstractContextManager[sa.Connection] | None = None
        self._connection: sa.Connection | None = None
        self._spool: _Spool | None = None

    def _add(self, batch: pa.RecordBatch) -> None:
        rows = self._brought(batch)
        if self._adapter.holds_back:
            self._spool = self._spool or _Spool(rows.schema)
            self._spool.write(rows)
        else:
            self._load(rows)
        self._bytes += batch.nbytes

    def _prepare(self) -> str:
        task, plan = self._task, self._plan
        for rows in self._spool.read() if self._spool else ():
            self._load(rows)
        connection = present(self._connection, "rows came, and no connection that took them")
        listed = {"generation": task.generation, "epoch": task.epoch, "rows": self._rows}
        named = {"stage": plan.stage, "attempt": self._attempt, "pipeline": plan.pipeline, "sink": self._sink}
        connection.execute(staged.insert().values(**named, **listed))
        transaction = present(self._taken(), "rows came, and no transaction that has them")
        transaction.__exit__(None, None, None)
        self._undo()
        return handle(plan.stage, self._attempt)

    def _undo(self) -> None:
        if self._spool is not None:
            self._spool.close()
        transaction = self._taken()
        if transaction is not None:
            with suppress(OnefoldError):
                transaction.__exit__(OnefoldError, OnefoldError("task-aborted", "the task was aborted"), None)

    def _taken(self) -> AbstractContextManager[sa.Connection] | None:
        """The transaction, which whoever takes it ends."""
        transaction, self._transaction, self._connection = self._transaction, None, None
        return transaction

    def _load(self, rows: pa.RecordBatch) -> None:
        if self._connection is None:
            transaction = self._database.connected()
            self._connection = transaction.__enter__()
            self._transaction = transaction
            self._database.backend.let_idle(driver_of(self._connection))  # rows may take a while to come
        for start in range(0, rows.num_rows, ROWS_MAX):
            self._adapter.load(self._connection, self._plan.stage_table(), rows.slice(start, ROWS_MAX))

    def _translated(self, error: Exception, doing: str) -> Exception:
        match error:
            case _ if isinstance(error, (sa.exc.SQLAlchemyError, self._database.backend.error)):
                return self._ended_by(error)
            case InDoubt():
                return Retriable("database-unavailable", f"{self._where}: {error.message}")
            case SchemaMismatch():
                return error.reworded(f"{self._where}, {doing}: {error.message}")
            case ValueError():  # pa.ArrowInvalid is one
                name = self._database.backend.name
                return BadRecord(
                    "value-not-storable", f"{self._where}: a value that {name} cannot hold: {plain(str(error))}"
                )
            case OSError():  # drivers have errors of their own
                return OutOfResources(
                    "spool-full",
                    f"{self._where}: rows wait in a file in {tempfile.gettempdir()} until their task prepares, and it"
                    f" takes no more: {error}. Make room there, or set TMPDIR for whatever runs the tasks",
                )
            case _:
                return error

    def _brought(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the stage takes them: each column of its kind, and whose attempt's they are."""
        plan = self._plan
        check_names(batch.schema.names, plan.names)
        if plan.changes is not None:
            plan.changes.check_values(batch)
        arrays = {}
        for column in plan.columns:
            try:
                arrays[column.name] = values_of(column.kind, batch.column(column.name))
            except ValueError as error:
                raise ValueError(f"column {column.name}: {error}") from error
        one = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        arrays[ATTEMPT] = pa.repeat(pa.scalar(self._attempt, pa.int64()), batch.num_rows)
        arrays[ROW] = pc.cumulative_sum(one, start=pa.scalar(self._rows, pa.int64()))
        if plan.changes is not None and plan.changes.deletes:
            arrays[DELETED] = plan.changes.deleted(batch)
        return pa.RecordBatch.from_pydict(arrays)

    def _ended_by(self, error: Exception) -> OnefoldError:
        """What the transaction makes of an error that ends it."""
        transaction = present(self._taken(), "rows came, and no transaction that has them")
        try:
            transaction.__exit__(type(error), error, error.__traceback__)
        except OnefoldError as translated:
            return translated.reworded(f"{self._where}: {translated.message}")
        raise AssertionError("a transaction does not swallow what ended it")
