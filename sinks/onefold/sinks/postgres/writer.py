"""Executors: one attempt's rows into Postgres, up to where a crash of this process loses nothing."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders

from onefold.core.contract import Committable, SinkKind, TaskId
from onefold.core.errors import BadRecord, OnefoldError, SchemaMismatch
from onefold.core.failpoints import failpoint
from onefold.sinks.postgres import connection as pool
from onefold.sinks.postgres import errors
from onefold.sinks.postgres.naming import Gid, attempt_number, gid_prefix, identifier, literal
from onefold.sinks.postgres.plan import Delivery, Plan, Settings, stage_sql
from onefold.sinks.postgres.types import builder, to_wire

__all__ = ["PostgresWriter"]

_ATTEMPT_COLUMN = "onefold_attempt"


class PostgresWriter:
    """One attempt of one task. Connects when the first row arrives; an empty task never does."""

    def __init__(self, settings: Settings, plan: Plan, task: TaskId) -> None:
        assert task.pipeline == plan.pipeline, (task.pipeline, plan.pipeline)
        self._settings, self._plan, self._task = settings, plan, task
        self._conninfo = settings.conninfo(task.pipeline)
        self._connection: pool.Connection | None = None
        self._copying = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._schema: pa.Schema | None = None  # of the last batch: checked once, not for each batch
        self._rows = self._bytes = 0
        self._is_over = False

        pairs = {column.name: builder(column) for column in plan.columns}
        if plan.delivery is Delivery.STAGED:
            field = pa.field(_ATTEMPT_COLUMN, pa.int64())
            pairs[_ATTEMPT_COLUMN] = (field, encoders.Int64EncoderBuilder(field))
        self._wire_schema = pa.schema([field for field, _ in pairs.values()])
        self._encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(
            self._wire_schema, {name: encoder for name, (_, encoder) in pairs.items()}
        )

    def write(self, batch: pa.RecordBatch) -> None:
        assert not self._is_over, "a writer takes no rows after prepare or abort"
        if batch.num_rows == 0:
            return
        if self._schema is None or not self._schema.equals(batch.schema):
            self._check(batch.schema)
        try:
            wire = self._wire(batch)
            if self._copy is None:
                self._begin()
            self._send(self._encoder.write_batch(wire))
        except psycopg.Error as error:
            raise self._failed(error, "writing rows") from error
        except (ValueError, pa.ArrowException) as error:
            self.abort()
            raise BadRecord(f"{self._where()}: a value that Postgres cannot hold: {error}") from error
        self._rows += batch.num_rows

    def prepare(self) -> Committable | None:
        assert not self._is_over, "a writer prepares once"
        if self._connection is None:
            self._is_over = True
            return None
        failpoint("before:prepare")
        try:
            self._send(self._encoder.finish())
            self._copying.close()
            handle = self._finish(self._connection)
        except psycopg.Error as error:
            raise self._failed(error, "preparing") from error
        failpoint("after:prepare")
        self._is_over = True
        pool.give_back(self._conninfo, self._connection)
        self._connection = None
        is_staged = self._plan.delivery is Delivery.STAGED
        return Committable(
            sink=self._settings.name,
            kind=SinkKind.LAST_RESOURCE if is_staged else SinkKind.TWO_PHASE,
            handle=handle,
            generation=self._task.generation,
            epoch=self._task.epoch,
            rows=self._rows,
            bytes=self._bytes,
        )

    def abort(self) -> None:
        """Undo an attempt that did not prepare; after prepare, and a second time, it does nothing."""
        self._is_over = True
        if self._connection is None:
            return
        with suppress(psycopg.Error, _Aborted):
            aborted = _Aborted("the task was aborted")
            self._copying.__exit__(_Aborted, aborted, None)
        # Closing the session rolls back whatever state it is in.
        pool.discard(self._connection)
        self._connection = None

    def _check(self, schema: pa.Schema) -> None:
        planned = {column.name: column.source for column in self._plan.columns}
        if set(schema.names) != planned.keys() or len(schema.names) != len(planned):
            self.abort()
            raise SchemaMismatch(
                f"{self._where()}: the rows have columns {', '.join(schema.names)}, and the sink was opened with "
                f"{', '.join(planned)}: open it with the schema that the writers deliver"
            )
        self._schema = schema

    def _wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[Any] = []
        for column in self._plan.columns:
            values = batch.column(column.name)
            try:
                if values.type != column.source:
                    values = values.cast(column.source)
                arrays.append(to_wire(column, values))
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"column {column.name}: {error}") from error
        if self._plan.delivery is Delivery.STAGED:
            arrays.append(pa.repeat(pa.scalar(attempt_number(self._task.attempt), pa.int64()), batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._wire_schema)

    def _begin(self) -> None:
        connection = self._connection = pool.take(self._conninfo)
        connection.execute(pool.begin(self._settings.lock_timeout_s))
        into, columns = self._plan.target, self._plan.column_list
        if self._plan.delivery is Delivery.STAGED:
            into = stage_sql(self._settings.bookkeeping_schema, self._plan.stage)
            columns += f", {identifier(_ATTEMPT_COLUMN)}"
        statement = f"COPY {into} ({columns}) FROM STDIN (FORMAT BINARY)"
        self._copy = self._copying.enter_context(connection.cursor().copy(statement.encode()))
        self._send(self._encoder.write_header())

    def _send(self, data: bytes) -> None:
        if data:  # pgpq collects about a megabyte before it hands any out
            assert self._copy is not None
            self._copy.write(data)
            self._bytes += len(data)

    def _finish(self, connection: pool.Connection) -> str:
        """Leave the rows so that another process can finish them; returns their handle."""
        task, books = self._task, self._settings.bookkeeping(self._task.pipeline)
        match self._plan.delivery:
            case Delivery.TWO_PHASE:
                prefix = gid_prefix(task.pipeline, self._settings.name)
                gid = str(Gid(prefix, task.generation, task.epoch, task.attempt))
                connection.execute(
                    f"INSERT INTO {books.table('parts')} (pipeline, sink, epoch, generation, timestamp_ms, gid, rows) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                    (books.pipeline, books.sink, task.epoch, task.generation, task.timestamp_ms, gid, self._rows),
                )
                connection.execute(f"PREPARE TRANSACTION {literal(gid)}")
                return gid
            case Delivery.STAGED:
                attempt = attempt_number(task.attempt)
                connection.execute(
                    f"INSERT INTO {books.table('staged')} (stage, attempt, pipeline, sink, generation, epoch, rows) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                    (self._plan.stage, attempt, books.pipeline, books.sink, task.generation, task.epoch, self._rows),
                )
                connection.execute("COMMIT")
                return f"{self._plan.stage}/{attempt}"
            case Delivery.AT_LEAST_ONCE:
                connection.execute("COMMIT")
                return f"committed/{task.attempt.hex}"

    def _where(self) -> str:
        return f"sink {self._settings.name!r} of pipeline {self._task.pipeline!r}, epoch {self._task.epoch}"

    def _failed(self, error: psycopg.Error, doing: str) -> OnefoldError:
        """Nothing that a task does is in doubt: what it may have left has no place in any manifest."""
        with suppress(psycopg.Error, _Aborted):
            self._copying.__exit__(_Aborted, _Aborted(), None)
        translated = errors.translate(error, f"{self._where()}, {doing}", self._connection)
        self.abort()
        return translated


class _Aborted(Exception):
    pass
