"""A task's rows through COPY: in one stream, or in pieces of which the rows that Postgres refuses are left out."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Protocol

import psycopg
import pyarrow as pa

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres.sessions import Connection
from onefold.core.values.plain import plain
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.copy.encoding import Encoding
from onefold.sinks.postgres.dead_letters import DeadLetter, PartRefused, isolate

PIECE_ROWS = 20_000


class Load(Protocol):
    """Takes rows inside the task's transaction. ValueError is for values that have no form in Postgres."""

    bytes: int
    dead: list[DeadLetter]

    def add(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> None: ...

    def cancel(self) -> None:
        """Let go of the connection, whatever state it is in; it is of no use afterwards."""
        ...


class _Copying:
    def __init__(self, connection: Connection, encoding: Encoding) -> None:
        self._encoder = encoding.encoder()
        self._stack = ExitStack()
        self._copy = self._stack.enter_context(connection.cursor().copy(encoding.statement.encode()))
        self.bytes = 0
        self._send(self._encoder.write_header())

    def add(self, wire: pa.RecordBatch) -> None:
        self._send(self._encoder.write_batch(wire))

    def finish(self) -> None:
        self._send(self._encoder.finish())
        try:
            self._stack.close()
        except ValueError as error:
            # psycopg expects one result, and a pooler adds an error of its own when a backend ends.
            raise psycopg.OperationalError("the session ended in the middle of COPY") from error

    def cancel(self) -> None:
        with suppress(psycopg.Error, ValueError, _Cancelled):
            self._stack.__exit__(_Cancelled, _Cancelled("the task was aborted"), None)

    def _send(self, data: bytes) -> None:
        if data:  # pgpq collects about a megabyte before it hands any out
            self._copy.write(data)
            self.bytes += len(data)


class StreamingLoad(_Copying):
    """Everything in one COPY: the fast way, which the first bad row ends."""

    def __init__(self, connection: Connection, encoding: Encoding) -> None:
        super().__init__(connection, encoding)
        self._encoding = encoding
        self.dead: list[DeadLetter] = []

    def add(self, batch: pa.RecordBatch) -> None:
        super().add(self._encoding.wire(batch))


class BisectingLoad:
    """A COPY for every few thousand rows, each in a savepoint; what is refused becomes a dead letter.

    Raises TooManyRefused beyond `refused_max`.
    """

    def __init__(self, connection: Connection, encoding: Encoding, position: tuple[str, ...], refused_max: int) -> None:
        self._connection, self._encoding = connection, encoding
        self._position, self._refused_max = position, refused_max
        self._pieces: list[pa.RecordBatch] = []
        self._waiting = 0
        self.bytes = 0
        self.dead: list[DeadLetter] = []
        # Constraints that would be checked at PREPARE or COMMIT are checked while a row can still be left out.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def add(self, batch: pa.RecordBatch) -> None:
        self._pieces.append(batch)
        self._waiting += batch.num_rows
        if self._waiting >= PIECE_ROWS:
            self._flush()

    def finish(self) -> None:
        self._flush()

    def cancel(self) -> None:
        """Nothing is in flight between two pieces."""

    def _flush(self) -> None:
        if not self._pieces:
            return
        piece = pa.Table.from_batches(self._pieces)
        self._pieces, self._waiting = [], 0
        _, refused = isolate(piece, self._attempt, self._refused_max - len(self.dead), pa.concat_tables)
        for row, why in refused:
            self.dead += dead_letters.of_batch(_batch(row), self._position, why)

    def _attempt(self, piece: pa.Table) -> PartRefused | None:
        try:
            wire = [self._encoding.wire(batch) for batch in piece.to_batches()]
        except (ValueError, pa.ArrowException) as error:
            return PartRefused(plain(str(error)))
        try:
            with self._connection.transaction():
                copying = _Copying(self._connection, self._encoding)
                try:
                    for batch in wire:
                        copying.add(batch)
                    copying.finish()
                except BaseException:
                    copying.cancel()
                    raise
        except psycopg.Error as error:
            if not driver_errors.is_refusal(error):
                raise
            return PartRefused(driver_errors.said(error), error.sqlstate, driver_errors.copied_row(error))
        except (ValueError, pa.ArrowException) as error:  # pgpq's own
            return PartRefused(plain(str(error)))
        self.bytes += copying.bytes
        return None


def _batch(table: pa.Table) -> Any:
    (batch,) = table.combine_chunks().to_batches()
    return batch


class _Cancelled(Exception):
    pass
