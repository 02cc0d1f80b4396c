"""The transactional writer of a task: sends one attempt's rows into a transaction, and prepares it."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Committable, SinkKind, TaskId
from onefold.core.errors import BadRecord, OnefoldError
from onefold.core.failpoints import failpoint
from onefold.sinks.columns import check_columns
from onefold.sinks.kafka.config import KafkaSinkConfig
from onefold.sinks.kafka.transactional.transactions import Attempt

__all__ = ["TransactionalWriter"]


class TransactionalWriter:
    """Writes one attempt of one task. It begins a transaction with the first row; an empty task begins none."""

    def __init__(self, settings: KafkaSinkConfig, schema: pa.Schema, task: TaskId) -> None:
        self._settings, self._schema, self._task = settings, schema, task
        self._attempt: Attempt | None = None
        self._rows = self._bytes = 0
        self._is_over = False

    def write(self, batch: pa.RecordBatch) -> None:
        require(not self._is_over, "a writer takes no rows after prepare or abort")
        if batch.num_rows == 0:
            return
        check_columns(batch, self._schema, self._where())
        try:
            if self._attempt is None:
                self._attempt = Attempt(self._settings, self._task)
                self._attempt.begin()
                failpoint("kafka:begun")
            for records in self._settings.encoding.records(batch):
                self._attempt.send(records)
                self._rows += len(records.values)
                self._bytes += records.bytes
        except BadRecord as error:
            self._give_up()
            raise error.reworded(f"{self._where()}: {error.message}") from error
        except OnefoldError:
            self._give_up()
            raise

    def prepare(self) -> Committable | None:
        require(not self._is_over, "a writer prepares once")
        self._is_over = True
        if self._attempt is None:
            return None
        failpoint("before:prepare")
        try:
            handle = self._attempt.prepare(self._rows)
        except OnefoldError:
            self._give_up()
            raise
        failpoint("after:prepare")
        task = self._task
        return Committable(
            sink=self._settings.name,
            kind=SinkKind.TWO_PHASE,
            handle=str(handle),
            generation=task.generation,
            epoch=task.epoch,
            rows=self._rows,
            bytes=self._bytes,
        )

    def abort(self) -> None:
        """Undo an attempt that did not prepare; after prepare, and a second time, it does nothing."""
        if not self._is_over and self._attempt is not None:
            self._attempt.abort()
        self._is_over = True

    def _give_up(self) -> None:
        """The first error is the one to report; a transaction that cannot be aborted now is left to the sweep."""
        self._is_over = True
        if self._attempt is not None:
            with suppress(OnefoldError):
                self._attempt.abort()

    def _where(self) -> str:
        return f"{self._settings.where(self._task.pipeline)}, epoch {self._task.epoch}"
