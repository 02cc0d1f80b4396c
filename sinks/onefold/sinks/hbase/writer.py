"""One attempt of one task, whatever the mode: what it may be asked, and when; its failpoints; what it hands over."""

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
    """What it has written stays, for the epoch is written again; what it has not, is dropped by `abort`."""

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
        """Rows, at least one, of the schema that the sink was opened for."""

    @abstractmethod
    def _finish(self) -> None:
        """All rows are there: afterwards all of them show."""

    @abstractmethod
    def _drop(self) -> None:
        """Hold none of them any longer."""

    @contextmanager
    def _saying_where(self) -> Iterator[None]:
        try:
            yield
        except BadRecord as error:
            raise BadRecord(f"{self._where}: {error}") from error
