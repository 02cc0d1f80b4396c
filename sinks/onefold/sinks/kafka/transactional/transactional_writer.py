"""The transactional writer of a task: sends one attempt's rows into a transaction, and prepares it."""

from __future__ import annotations

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import SinkKind, TaskId
from onefold.core.failpoints import failpoint
from onefold.sinks.columns import check_columns
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.transactional.transactions import OpenTransaction
from onefold.sinks.sink_writer import AttemptWriter

__all__ = ["TransactionalWriter"]


class TransactionalWriter(AttemptWriter):
    """Writes one attempt of one task. It begins a transaction with the first row; an empty task begins none."""

    def __init__(self, settings: KafkaSinkConfig, schema: pa.Schema, task: TaskId) -> None:
        super().__init__(settings.name, SinkKind.TWO_PHASE, task)
        self._settings, self._schema = settings, schema
        self._attempt: OpenTransaction | None = None

    def _add(self, batch: pa.RecordBatch) -> None:
        check_columns(batch, self._schema, self._where)
        if self._attempt is None:
            self._attempt = OpenTransaction(self._settings, self._task)
            self._attempt.begin()
            failpoint("kafka:begun")
        for records in self._settings.encoding.records(batch):
            self._attempt.send(records)
            self._bytes += records.bytes

    def _prepare(self) -> str:
        attempt = present(self._attempt, "rows came, and no transaction that has them")
        return str(attempt.prepare(self._rows))

    def _undo(self) -> None:
        if self._attempt is not None:
            self._attempt.abort()
