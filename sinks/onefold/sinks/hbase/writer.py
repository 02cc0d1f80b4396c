"""The writer of one attempt of one task, in every mode."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from onefold.core.contract import SinkKind, TaskId
from onefold.sinks.columns import check_columns
from onefold.sinks.hbase.sink_plan import HBasePlan
from onefold.sinks.sink_writer import AttemptWriter
from onefold.sinks.write_through import written

__all__ = ["HBaseWriter"]


class HBaseWriter(AttemptWriter):
    """`abort` drops rows that are not written yet. Written rows stay: the epoch is written again over them."""

    def __init__(self, plan: HBasePlan, task: TaskId) -> None:
        super().__init__(plan.settings.name, SinkKind.WRITE_THROUGH, task)
        self._plan = plan

    def _add(self, batch: pa.RecordBatch) -> None:
        check_columns(batch, self._plan.schema, self._where)
        self._take(batch)

    def _prepare(self) -> str:
        self._finish()
        return written(self._task)

    @abstractmethod
    def _take(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of at least one row, of the schema that the sink was opened for."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes what is left: all rows have come, and readers see them afterwards."""
