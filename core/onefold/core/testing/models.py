"""A checkpoint store and two kinds of sinks in memory, for tests of the protocol and of drivers.

They keep what they acknowledged, whatever happens to the drivers that talk to them. `reached` is told of each step
inside a call, so that a test can crash between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa
import sqlalchemy as sa

from onefold.core.contract import (
    Committable,
    Decided,
    EpochRecord,
    EpochState,
    Guarantee,
    LedgerEntry,
    Member,
    SinkKind,
    TaskId,
)
from onefold.core.errors import Damaged, Fenced, WorkLost

__all__ = ["ModelLastResourceSink", "ModelSink", "ModelTransaction", "ModelTwoPhaseSink", "Reached"]

Reached = Callable[[str], None]
Rows = tuple[Hashable, ...]


def _nobody(_step: str) -> None:
    return


@dataclass
class ModelTransaction:
    """What a model store passes to a merge as its connection: what took part is undone if it does not commit."""

    undos: list[Callable[[], None]] = field(default_factory=list)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self.undos.append(undo)

    def rollback(self) -> None:
        for undo in reversed(self.undos):
            undo()


@dataclass
class Work:
    """Rows that a writer prepared, under their committable."""

    committable: Committable
    rows: Rows


class ModelWriter:
    """One attempt: rows gather in the executor, and are in the destination, unseen, once prepared."""

    def __init__(self, sink: ModelSink, task: TaskId) -> None:
        self.sink = sink
        self.task = task
        self.rows: list[Hashable] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()

    def prepare(self) -> Committable | None:
        if not self.rows:
            return None
        task, sink = self.task, self.sink
        committable = Committable(
            sink=sink.name,
            kind=sink.kind,
            handle=f"{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}",
            generation=task.generation,
            epoch=task.epoch,
            rows=len(self.rows),
        )
        sink.prepared[committable.handle] = Work(committable, tuple(self.rows))
        sink.times_ms[task.epoch, task.generation] = task.timestamp_ms
        return committable

    def abort(self) -> None:
        self.rows.clear()


class ModelSink:
    """A destination, with its driver's hand: sink and committer in one. Rows are the first column's values."""

    kind: SinkKind

    def __init__(self, name: str, reached: Reached = _nobody) -> None:
        self.name = name
        self.reached = reached
        self.prepared: dict[str, Work] = {}
        self.committed: dict[str, Work] = {}
        self.times_ms: dict[tuple[int, int], int] = {}
        self.entry: LedgerEntry | None = None

    def guarantee(self) -> Guarantee:
        atomic = self.kind is SinkKind.LAST_RESOURCE
        return Guarantee(mode="model", kind=self.kind, atomic_epoch=atomic, conditions=("this process lives",))

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> ModelSink:
        assert pipeline
        return self

    def open(self, pipeline: str, schema: pa.Schema) -> ModelSink:
        assert pipeline and len(schema) == 1
        return self

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> ModelWriter:
        return ModelWriter(self, task)

    def verify(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            work = self.prepared.get(committable.handle)
            if work is None or len(work.rows) != committable.rows:
                raise WorkLost(f"{self.name} lost {committable.handle}: the epoch's writers must run again")

    def abort(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            self.prepared.pop(committable.handle, None)
            self.reached("inside:Abort")

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        raise NotImplementedError

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        return [
            replace(work.committable, rows=0, bytes=0)
            for work in self.prepared.values()
            if work.committable.generation <= up_to_generation
        ]

    def ledger(self) -> LedgerEntry | None:
        return self.entry

    def record(self, entry: LedgerEntry) -> None:
        mine = self.entry
        if mine is not None and (mine.epoch, mine.generation) > (entry.epoch, entry.generation):
            raise Fenced(f"{self.name} stands at epoch {mine.epoch} of generation {mine.generation} already: stop")
        self.entry = entry

    def close(self) -> None:
        return

    def lose_prepared(self) -> None:
        """As Postgres's crash recovery does with an UNLOGGED stage, or Kafka with a transaction past its timeout."""
        self.prepared.clear()

    def shown(self) -> Counter[Hashable]:
        """How many times a reader sees each row."""
        return Counter(row for work in self.committed.values() for row in work.rows)


class ModelTwoPhaseSink(ModelSink):
    """Prepared work stays until it is committed, once, or aborted. Members become visible one by one."""

    kind = SinkKind.TWO_PHASE

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        for committable in committables:
            work = self.prepared.pop(committable.handle, None)
            if work is not None:
                self.committed[committable.handle] = work
            elif committable.handle not in self.committed:
                raise Damaged(f"{self.name}: {committable.handle} of epoch {decided.record.epoch} is gone")
            self.reached("inside:Commit")

    def ledger(self) -> LedgerEntry | None:
        """Its row, and the members beyond it."""
        if self.entry is None:
            return None
        keys = sorted({(w.committable.epoch, w.committable.generation) for w in self.committed.values()})
        members = tuple(Member(e, g, self.times_ms[e, g]) for e, g in keys if e > self.entry.epoch)
        return replace(self.entry, members=members)


class ModelLastResourceSink(ModelSink):
    """Its stage may be emptied by a crash of the server; a merge moves rows in the decision's own transaction."""

    kind = SinkKind.LAST_RESOURCE

    def shares_store(self, store_id: str) -> bool:
        return bool(store_id)

    def merge(
        self,
        connection: sa.Connection,
        record: EpochRecord,
        manifest: Sequence[Committable],
        entry: LedgerEntry,
    ) -> None:
        assert record.state is EpochState.OPEN, record
        before = (self.prepared, self.committed, self.entry)
        cast(ModelTransaction, connection).on_rollback(lambda: self._restore(*before))
        self.verify(manifest)
        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest:
            committed[committable.handle] = prepared.pop(committable.handle)
        self.record(entry)
        self.prepared, self.committed = prepared, committed
        self.reached("inside:Merge")

    def _restore(self, prepared: dict[str, Work], committed: dict[str, Work], entry: LedgerEntry | None) -> None:
        self.prepared, self.committed, self.entry = prepared, committed, entry

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision committed it: only look."""
        gone = [c.handle for c in committables if c.handle not in self.committed]
        if gone:
            raise Damaged(f"{self.name}: {gone} of epoch {decided.record.epoch} were decided, and are not there")
