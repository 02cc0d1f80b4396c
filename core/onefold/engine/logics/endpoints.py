"""The ends of a flow in a subtask: the head of a chain that reads a source, and what writes to a sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from onefold.core.checks import present, require
from onefold.core.contract import Committable, Sink, TaskId
from onefold.core.source import Part
from onefold.core.values.batches import repeated
from onefold.core.writing.arrangement import EPOCH_COLUMN, needed_by
from onefold.core.writing.attempt import Attempt
from onefold.core.writing.dead_letters import Policy, letters
from onefold.engine.logics.logic import BaseLogic, Input, Output
from onefold.flow.time.watermarks import INGESTED_AT

BAD = "bad"  # the side output of what could not be read


class ReadingLogic(BaseLogic):
    """Gives the rows of what a worker has read of a source, and bad records to the side output. `policy` is None where
    the first bad one ends the flow: its reader does that."""

    def __init__(self, policy: Policy | None) -> None:
        self._policy = policy
        self._bad = 0

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        require(isinstance(batch, Part) and port == 0, "a source gives parts")
        if batch.bad.num_rows:
            self._bad += batch.bad.num_rows
            yield BAD, batch.bad
        yield None, batch.rows

    def flush(self, task: TaskId) -> Iterator[Output]:
        """Raises BadRecord where this subtask alone has too many."""
        if self._policy is not None:
            self._policy.refuse(task, self._bad)
        return iter(())

    def bad_of_epoch(self) -> int:
        """How many records of the epoch could not be read; counts anew from here."""
        bad, self._bad = self._bad, 0
        return bad


class StampingLogic(ReadingLogic):
    """Implements Clocked, so that what is read waits for its epoch: rows get that one's time."""

    def restored(self) -> None:
        return

    def begin(self, task: TaskId) -> None:
        self._now_us = task.timestamp_ms * 1_000

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        for output, rows in super().take(batch, port):
            at = None if output == BAD else repeated(self._now_us, len(rows)).view(INGESTED_AT.type)
            yield output, rows if at is None else rows.append_column(INGESTED_AT, at)

    def timer_ms(self) -> int | None:
        return None


class WritingLogic(Attempt, BaseLogic):
    """One writer a subtask. Where the sink needs an order, the epoch's rows are kept and sorted. `is_letters` and
    `is_numbered` as `Writing` has them."""

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
