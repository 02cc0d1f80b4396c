"""Sinks of the three kinds in memory, for tests of the protocol and of drivers.

They keep what they acknowledged, whatever happens to the drivers that talk to them. `reached` is told of each step
inside a call, so that a test can crash between two of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import (
    Announcement,
    Binding,
    Committable,
    CommittedPart,
    Decided,
    EpochRecord,
    EpochState,
    Guarantee,
    LedgerEntry,
    SinkKind,
    TaskId,
)
from onefold.core.errors import CheckpointMismatch, Damaged, WorkLost
from onefold.core.moves import Repeats
from onefold.core.protocol.binding import UNBOUND, bound, check_forward

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
class PreparedRows:
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
        sink.keep(PreparedRows(committable, tuple(self.rows)), task.timestamp_ms)
        return committable

    def abort(self) -> None:
        self.rows.clear()


class ModelSink(ABC):
    """A destination, with its driver's hand: sink and committer in one. Rows are the first column's values."""

    kind: SinkKind
    KEPT: ClassVar[tuple[str, ...]] = ("prepared", "committed", "times_ms", "entry")

    def __init__(self, name: str, reached: Reached = _nobody) -> None:
        self.name = name
        self.reached = reached
        self.prepared: dict[str, PreparedRows] = {}
        self.committed: dict[str, PreparedRows] = {}
        self.times_ms: dict[str, int] = {}
        self.entry: LedgerEntry | None = None

    def keep(self, work: PreparedRows, timestamp_ms: int) -> None:
        """What a writer's prepare leaves here."""
        self.prepared[work.committable.handle] = work
        self.times_ms[work.committable.handle] = timestamp_ms

    def backup(self) -> dict[str, Any]:
        """All that a copy of the destination holds."""
        return {name: copy(getattr(self, name)) for name in self.KEPT}

    def restore(self, backup: dict[str, Any]) -> None:
        for name, value in backup.items():
            setattr(self, name, copy(value))

    def guarantee(self) -> Guarantee:
        atomic = self.kind is SinkKind.LAST_RESOURCE
        return Guarantee(mode="model", kind=self.kind, atomic_epoch=atomic, conditions=("this process lives",))

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> ModelSink:
        require(pipeline, "a sink without its pipeline")
        return self

    def open(self, pipeline: str, schema: pa.Schema) -> ModelSink:
        require(pipeline and len(schema) == 1, "a model sink has one column")
        return self

    def repeats(self, pipeline: str) -> Repeats:
        require(pipeline, "a sink without its pipeline")
        return Repeats.DOUBLED if self.shown() else Repeats.NEW

    def empty(self) -> None:
        """As TRUNCATE does: the rows go; the bookkeeping and what is prepared stay."""
        self.committed = {handle: replace(work, rows=()) for handle, work in self.committed.items()}

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> ModelWriter:
        return ModelWriter(self, task)

    def verify(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            work = self.prepared.get(committable.handle)
            if work is None or len(work.rows) != committable.rows:
                raise WorkLost(
                    "prepared-work-gone", f"{self.name} lost {committable.handle}: the epoch's writers must run again"
                )

    def abort(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            self.prepared.pop(committable.handle, None)
            self.reached("inside:Abort")

    @abstractmethod
    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """Each kind of sink makes its work visible in its own way."""

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        return [
            replace(work.committable, rows=0, bytes=0)
            for work in self.prepared.values()
            if work.committable.generation <= up_to_generation
        ]

    def ledger(self) -> LedgerEntry | None:
        return self.entry

    def bind(self, binding: Binding) -> None:
        self.entry = bound(self.entry, binding, self.name)

    def write_ledger(self, entry: LedgerEntry) -> None:
        check_forward(self.entry, entry, self.name)
        self.entry = entry

    def close(self) -> None:
        return

    def lose_prepared(self, *handles: str) -> None:
        """As Postgres's crash recovery does with an UNLOGGED stage, or Kafka with a transaction past its timeout: all,
        or these."""
        for handle in handles or tuple(self.prepared):
            del self.prepared[handle]

    def shown(self) -> Counter[Hashable]:
        """How many times a reader sees each row."""
        return Counter(row for work in self.committed.values() for row in work.rows)


class ModelTwoPhaseSink(ModelSink):
    """Prepared work stays until it is committed, once, or aborted. Members become visible one by one."""

    kind = SinkKind.TWO_PHASE

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        gone = []
        for committable in committables:
            work = self.prepared.pop(committable.handle, None)
            if work is not None:
                self.committed[committable.handle] = work
            elif committable.handle not in self.committed:
                gone.append(committable.handle)
            self.reached("inside:Commit")
        if gone:
            raise Damaged(
                "decided-work-gone", f"{self.name}: {', '.join(gone)} of epoch {decided.record.epoch} is gone"
            )

    def ledger(self) -> LedgerEntry | None:
        """Its row, and the members beyond it."""
        row = self.entry or UNBOUND
        work = [w.committable for w in self.committed.values() if w.committable.epoch > row.epoch]
        keys = sorted({(c.epoch, c.generation, self.times_ms[c.handle]) for c in work})
        members = tuple(CommittedPart(*key) for key in keys)
        return replace(row, members=members) if self.entry or members else None


class ModelLastResourceSink(ModelSink):
    """Its stage may be emptied by a crash of the server; a merge moves rows in the decision's own transaction."""

    kind = SinkKind.LAST_RESOURCE

    def shares_store(self, store_id: str) -> bool:
        return bool(store_id)

    def merge(
        self,
        connection: Any,
        record: EpochRecord,
        manifest: Sequence[Committable],
        entry: LedgerEntry,
    ) -> None:
        require(record.state is EpochState.OPEN, record)
        before = (self.prepared, self.committed, self.entry)
        connection.on_rollback(lambda: self._restore(*before))
        self.verify(manifest)
        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest:
            committed[committable.handle] = prepared.pop(committable.handle)
        self.write_ledger(entry)
        self.prepared, self.committed = prepared, committed
        self.reached("inside:Merge")

    def _restore(
        self, prepared: dict[str, PreparedRows], committed: dict[str, PreparedRows], entry: LedgerEntry | None
    ) -> None:
        self.prepared, self.committed, self.entry = prepared, committed, entry

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision committed it: only look."""
        gone = [c.handle for c in committables if c.handle not in self.committed]
        if gone:
            raise Damaged(
                "decided-work-gone",
                f"{self.name}: {gone} of epoch {decided.record.epoch} were decided, and are not there",
            )


class ModelWriteThroughSink(ModelSink):
    """Rows show as they are written, each under its epoch's T: the same T twice is once, another T is another time."""

    kind = SinkKind.WRITE_THROUGH
    KEPT: ClassVar[tuple[str, ...]] = ("cells", "announced", "entry")

    def __init__(self, name: str, reached: Reached = _nobody) -> None:
        super().__init__(name, reached)
        self.cells: dict[Hashable, frozenset[int]] = {}
        self.announced: Announcement | None = None

    def keep(self, work: PreparedRows, timestamp_ms: int) -> None:
        for row in work.rows:
            self.cells = {**self.cells, row: self.cells.get(row, frozenset()) | {timestamp_ms}}
            self.reached("inside:RunAttempt")

    def announce(self, record: EpochRecord) -> None:
        new = Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)
        old = self.announced
        for there in (self.entry, old):
            check_forward(there, new, self.name)
        if old is not None and old.epoch == new.epoch:
            if (old.timestamp_ms, old.range) != (new.timestamp_ms, new.range):
                raise CheckpointMismatch(
                    "epoch-begun-otherwise", f"{self.name} has begun epoch {new.epoch} otherwise: {old}"
                )
            new = replace(new, is_written=old.is_written)
        self.announced = new

    def seal(self, committables: Sequence[Committable]) -> None:
        """All writers are done: from here on a copy without this note lacks rows."""
        told = self.announced
        for committable in committables:
            if told is None or told.epoch < committable.epoch:
                raise WorkLost(
                    "announcement-lost", f"{self.name} was never told of epoch {committable.epoch}: it is another copy"
                )
            if told.epoch == committable.epoch:
                self.announced = replace(told, is_written=True)

    def abort(self, committables: Sequence[Committable]) -> None:
        require(not committables, "nothing can be taken back")

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """Everything shows: only look that this destination is the one that was written."""
        mine, told = decided.record, self.announced
        if told is not None and told.epoch > mine.epoch:
            return
        if told is None or (told.epoch, told.timestamp_ms) != (mine.epoch, mine.timestamp_ms):
            raise Damaged("epoch-notes-lost", f"{self.name} was never told of epoch {mine.epoch}: it is another copy")
        if committables and not told.is_written:
            raise Damaged(
                "epoch-notes-lost",
                f"{self.name} does not know that epoch {mine.epoch} was written: it is an older copy",
            )

    def ledger(self) -> LedgerEntry | None:
        if self.entry is None and self.announced is None:
            return None
        return replace(self.entry or UNBOUND, announced=self.announced)

    def empty(self) -> None:
        self.cells = {}

    def shown(self) -> Counter[Hashable]:
        """How many times each row was written by another epoch's account."""
        return Counter({row: len(times) for row, times in self.cells.items()})


MODELS: Mapping[SinkKind, type[ModelSink]] = {
    SinkKind.TWO_PHASE: ModelTwoPhaseSink,
    SinkKind.LAST_RESOURCE: ModelLastResourceSink,
    SinkKind.WRITE_THROUGH: ModelWriteThroughSink,
}
