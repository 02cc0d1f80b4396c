"""The life cycle of one attempt of one task, for all modes: its states, failpoints and result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Committable, TaskId
from onefold.core.errors import BadRecord
from onefold.core.failpoints import failpoint
from onefold.sinks.columns import check_columns
from onefold.sinks.hbase.plan import Plan

__all__ = ["HBaseWriter"]


class HBaseWriter(ABC):
    """`abort` drops rows that are not written yet. Written rows stay: the epoch is written again over them."""

    def __init__(self, plan: Plan, task: TaskId) -> None:
        self._plan, self._task = plan, task
        self._where = plan.where(task)
        self._rows = self._bytes = 0
        self._is_over = False

    def write(self, batch: pa.RecordBatch) -> None:
        require(not self._is_over, "a writer takes no rows after prepare or abort")
        check_columns(batch, self._plan.schema, self._where)
        if batch.num_rows == 0:
            return
        with self._saying_where():
            self._take(batch)
        self._rows += batch.num_rows

    def prepare(self) -> Committable | None:
        require(not self._is_over, "a writer prepares once")
        self._is_over = True
        if not self._rows:
            return None
        failpoint("before:prepare")
        with self._saying_where():
            self._finish()
        failpoint("after:prepare")
        return self._plan.committable(self._task, self._rows, self._bytes)

    def abort(self) -> None:
        self._drop()
        self._is_over = True

    @abstractmethod
    def _take(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of at least one row, of the schema that the sink was opened for."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes what is left: all rows have come, and readers see them afterwards."""

    @abstractmethod
    def _drop(self) -> None:
        """Drops the rows that are not written yet."""

    @contextmanager
    def _saying_where(self) -> Iterator[None]:
        try:
            yield
        except BadRecord as error:
            raise error.reworded(f"{self._where}: {error.message}") from error
