"""Executors: one attempt's rows into Postgres, up to where a crash of this process loses nothing."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pyarrow as pa

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import literal
from onefold.clients.sql.database_backend import Answer
from onefold.core.checks import present, require
from onefold.core.contract import SinkKind, TaskId
from onefold.core.errors import BadRecord, Retriable, SchemaMismatch
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.copy.encoding import Encoding
from onefold.sinks.postgres.copy.loading import BisectingLoad, Load, StreamingLoad
from onefold.sinks.postgres.dead_letters import DeadLetter, LetterOrigin, TooManyRefused
from onefold.sinks.postgres.merge import direct
from onefold.sinks.postgres.merge.merge import merge_attempts
from onefold.sinks.postgres.naming import Gid, gid_prefix
from onefold.sinks.postgres.schema.target import asking_types
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import ATTEMPT, PostgresPlan
from onefold.sinks.sink_writer import AttemptWriter
from onefold.sinks.staged.attempts import attempt_number, handle


class PostgresWriter(AttemptWriter):
    """One attempt of one task, in one transaction, or in none where its rows go to the driver."""

    def __init__(self, settings: PostgresSinkConfig, plan: PostgresPlan, task: TaskId) -> None:
        require(task.pipeline == plan.pipeline, f"a task of pipeline {task.pipeline!r} and a plan of {plan.pipeline!r}")
        is_staged = plan.delivery is not Delivery.TWO_PHASE
        super().__init__(settings.name, SinkKind.LAST_RESOURCE if is_staged else SinkKind.TWO_PHASE, task)
        self._settings, self._plan = settings, plan
        self._books = settings.bookkeeping(task.pipeline)
        self._conninfo = settings.conninfo(task.pipeline)
        self._attempt = attempt_number(task.attempt)
        self._encoding = Encoding(plan, self._attempt)
        self._connection: pool.Connection | None = None
        self._load: Load | None = None
        # What may go to the driver; None once it goes to the stage.
        self._kept: list[pa.RecordBatch] | None = [] if plan.delivery is Delivery.DIRECT else None
        self._kept_bytes, self._kept_bytes_max = 0, plan.direct_bytes_max // task.writers

    def _add(self, batch: pa.RecordBatch) -> None:
        self._encoding.check(batch.schema)
        if self._kept is None:
            self._send(batch)
            return
        self._kept.append(batch)
        self._kept_bytes += batch.nbytes
        if self._kept_bytes > self._kept_bytes_max:
            self._send_kept()

    def _send(self, batch: pa.RecordBatch) -> None:
        if self._load is None:
            self._load = self._begin()
        self._load.add(batch)

    def _send_kept(self) -> None:
        kept, self._kept = self._kept or [], None
        for batch in kept:
            self._send(batch)

    def _prepare(self) -> str:
        if self._kept is not None:
            payload = direct.encoded(self._plan, self._attempt, self._kept)
            if len(payload) <= self._kept_bytes_max:
                self._payload, self._bytes, self._kept = payload, len(payload), []
                return handle(direct.WITHOUT_STAGE, self._attempt)
            self._send_kept()
        connection = present(self._connection, "rows came, and there is no connection that has them")
        load = present(self._load, "rows came, and no COPY that has them")
        load.finish()
        self._bytes = load.bytes
        left = self._finish(connection, load)
        pool.give_back(self._conninfo, connection)
        self._connection = None
        return left

    def _undo(self) -> None:
        self._kept = None
        if self._connection is None:
            return
        if self._load is not None:
            self._load.cancel()
        # Closing the session rolls back whatever state it is in.
        self._connection.close()
        self._connection = None

    def _begin(self) -> Load:
        connection = self._connection = pool.take(self._conninfo)
        is_durable, asked = self._plan.delivery is Delivery.TWO_PHASE, self._asking_types()
        self._check_types(connection.begin(self._settings.lock_timeout_s, is_durable=is_durable, first=asked))
        if self._plan.rejects is None:
            return StreamingLoad(connection, self._encoding)
        position = tuple(column.name for column in self._plan.position)
        return BisectingLoad(connection, self._encoding, position, self._settings.rejects_max)

    def _asking_types(self) -> list[Statement]:
        """COPY takes bytes for whatever type the column has by now: of the same width, it would take them in silence.

        Before COPY this says so early; after it, the table is locked and stays as it was found.
        """
        plan = self._plan
        return [] if plan.stage_table is not None else [asking_types(plan.target, list(plan.types))]

    def _check_types(self, answers: list[Answer]) -> None:
        plan = self._plan
        if answers and (found := dict(answers[0].rows)) != plan.types:
            changed = ", ".join(name for name in plan.types if found.get(name) != plan.types[name])
            raise Retriable(
                "table-altered",
                f"column {changed} is not of the type that it had, or the table is UNLOGGED now. The table was altered"
                " since the sink was opened: start the pipeline again",
            )

    def _finish(self, connection: pool.Connection, load: Load) -> str:
        """Leave the rows so that another process can finish them; returns their handle."""
        task, books = self._task, self._books
        dead = list(load.dead)
        if self._plan.delivery is not Delivery.TWO_PHASE:
            stage, attempt = self._plan.stage, self._attempt
            listed = (
                f"INSERT INTO {books.table('staged')} (stage, attempt, pipeline, sink, generation, epoch, rows) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s)"
            )
            values = (stage, attempt, books.pipeline, books.sink, task.generation, task.epoch, self._rows)
            connection.together((listed, values), then="" if dead else "COMMIT")
            if dead:
                dead_letters.stage(connection, books, stage, attempt, dead)
                connection.execute("COMMIT")
            return handle(stage, attempt)
        if self._plan.stage_table is not None:
            dead += self._merge_own(connection, len(dead))
        if dead:
            table = present(self._plan.rejects, "rejected rows without a table for them")
            origin = LetterOrigin(books.pipeline, books.sink, task.epoch, task.generation, task.timestamp_ms)
            dead_letters.insert(connection, table, origin, dead)
        prefix = gid_prefix(task.pipeline, self._settings.name, self._settings.ledger)
        gid = str(Gid(prefix, task.generation, task.epoch, task.attempt))
        part = (
            f"INSERT INTO {books.table('parts')} (pipeline, sink, epoch, generation, timestamp_ms, gid, rows) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)"
        )
        mine = (books.pipeline, books.sink, task.epoch, task.generation, task.timestamp_ms, gid, self._rows)
        ending = f"PREPARE TRANSACTION {literal(gid)}"
        try:
            self._check_types(connection.together((part, mine), *self._asking_types(), then=ending)[1:])
        except Retriable:
            with suppress(psycopg.Error):  # else the next start does
                connection.outside(f"ROLLBACK PREPARED {literal(gid)}".encode())
            raise
        return gid

    def _merge_own(self, connection: pool.Connection, dead: int) -> list[DeadLetter]:
        """Two-phase upserts: this attempt's rows into the target, in its own transaction, and out of the stage."""
        remaining = self._settings.rejects_max - dead
        _, letters = merge_attempts(connection, self._plan, [self._attempt], self._task.timestamp_ms, remaining)
        connection.execute(f"DELETE FROM {self._plan.stage_table} WHERE {ATTEMPT} = {self._attempt}".encode())
        return letters

    def _translated(self, error: Exception, doing: str) -> Exception:
        if self._load is not None:
            self._load.cancel()
        match error:
            case psycopg.Error():
                return driver_errors.translate(error, f"{self._where}, {doing}", self._connection)
            case SchemaMismatch() | Retriable():
                return error.reworded(f"{self._where}, {doing}: {error.message}")
            case TooManyRefused():
                return BadRecord(
                    "too-many-rejects", f"{self._where}: {dead_letters.too_many(self._settings.rejects_max, error)}"
                )
            case ValueError() | pa.ArrowException():
                return BadRecord("value-not-storable", f"{self._where}: a value that Postgres cannot hold: {error}")
            case _:
                return error
