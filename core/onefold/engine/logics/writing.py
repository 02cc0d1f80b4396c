"""Writes the rows of an epoch to a sink, in one writer a subtask."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, Sink
from onefold.core.writing.arrangement import EPOCH_COLUMN, needed_by
from onefold.core.writing.attempt import Attempt
from onefold.core.writing.dead_letters import letters
from onefold.engine.logics.logic import Input, Output, Stateless

__all__ = ["WritingLogic"]


class WritingLogic(Attempt, Stateless):
    """Where the sink needs an order, the epoch's rows are kept and sorted. `is_letters` and `is_numbered` as `Writing`
    has them."""

    def __init__(self, sink: Sink, is_letters: bool = False, is_numbered: bool = False) -> None:
        super().__init__(sink)
        self._is_letters, self._is_numbered = is_letters, is_numbered
        need = needed_by(sink)
        self._order = tuple(dict.fromkeys((*need.partition_by, *need.order_by))) if need.order_by else ()
        self._kept: list[pa.RecordBatch] = []

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        task = present(self._task, "an epoch has begun")
        if self._is_letters:
            batch = letters(batch, task)
        elif self._is_numbered:
            batch = batch.append_column(EPOCH_COLUMN, pa.repeat(pa.scalar(task.epoch, pa.int64()), batch.num_rows))
        if self._order:
            self._kept.append(batch)
        else:
            self.write(batch)
        return ()

    def prepare(self) -> list[Committable]:
        if self._kept:
            table = pa.Table.from_batches(self._kept).sort_by([(name, "ascending") for name in self._order])
            self._kept = []
            for batch in table.to_batches():
                self.write(batch)
        return super().prepare()
