"""What every check works with: a pipeline of its own in the destination, rows that nobody else wrote, and a look."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, Committer, EpochRecord, LedgerEntry, Sink, TaskId
from onefold.core.errors import InDoubt, Retriable, WorkLost
from onefold.core.positions import Positions
from onefold.core.testing.conformance.calls import MakeSink
from onefold.core.testing.conformance.promises import Book, CheckedPromise, Promise
from onefold.core.testing.conformance.strikes import Striker
from onefold.core.waiting import Wait, retry

MakeBatch = Callable[[Sequence[int]], pa.RecordBatch]
T = TypeVar("T")
LOOK_AGAIN_S = 0.02
ROWS = 3


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A sink, and what its author gave to look at its destination."""

    make_sink: MakeSink
    rows: Callable[[], Iterable[int]]
    prepared: Callable[[], int] | None
    make_batch: MakeBatch
    make_sibling: MakeSink | None
    patience_s: float
    book: Book
    striker: Striker


@dataclass(frozen=True, slots=True)
class Work:
    """What one attempt prepared: its committable, and the ids of the rows in it."""

    committable: Committable
    ids: tuple[int, ...]


def answer_of(call: Callable[[], T], within_s: float) -> T:
    """The answer of `call`, repeated as the protocol does while nothing, or nothing known, took effect."""
    return retry(call, within_s, on=(Retriable, InDoubt), never=(WorkLost,))


def looking(within_s: float) -> Wait:
    """The wait between two looks at a destination."""
    return Wait(within_s, pause_s=LOOK_AGAIN_S, pause_max_s=LOOK_AGAIN_S)


def entry_of(record: EpochRecord, store_id: str, generation: int | None = None) -> LedgerEntry:
    """The ledger row of a completed epoch."""
    return LedgerEntry(
        epoch=record.epoch,
        generation=record.generation if generation is None else generation,
        timestamp_ms=record.timestamp_ms,
        positions=record.range.end,
        store_id=store_id,
    )


def positions(offset: int) -> Positions:
    """Positions with names and offsets of every sort that a source may have."""
    offsets: dict[str, int | str] = {"orders/0": offset, "größe/1": 0, "#1/log": f"at '{offset}' \"%s\""}
    return Positions.of(offsets)


@dataclass(slots=True)
class Workbench:
    """One pipeline, opened in this process. `wanted` are the ids that a reader must see from now on."""

    target: SinkTarget
    pipeline: str = field(default_factory=lambda: f"check_{uuid.uuid4().hex[:12]}")
    generation: int = 1
    wanted: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    baseline: int = 0
    closing: list[Callable[[], None]] = field(default_factory=list)
    sink: Sink = field(init=False)
    committer: Committer = field(init=False)
    _next_id: int = field(default_factory=lambda: uuid.uuid4().int & (2**46 - 1))

    def __post_init__(self) -> None:
        self.sink = self.target.make_sink()
        self.committer = self.sink.open(self.pipeline, self.schema)

    @property
    def schema(self) -> pa.Schema:
        return self.target.make_batch([0]).schema

    def another_pipeline(self, name: str) -> Workbench:
        return Workbench(self.target, pipeline=name)

    def close(self) -> None:
        for close in (self.committer.close, *self.closing):
            close()

    def elsewhere(self) -> Committer:
        """The committer of another life of the driver: nothing carried over but the pipeline's name."""
        return self.retry(lambda: self.target.make_sink().recover(self.pipeline))

    def retry(self, call: Callable[[], T]) -> T:
        return answer_of(call, self.target.patience_s)

    # writing

    def task(self, epoch: int, generation: int | None = None) -> TaskId:
        number = self.generation if generation is None else generation
        return TaskId(self.pipeline, number, epoch, 1_700_000_000_000 + epoch, uuid.uuid4())

    def batch(self, rows: int = ROWS) -> tuple[tuple[int, ...], pa.RecordBatch]:
        """Rows whose ids were never used before."""
        ids = tuple(range(self._next_id, self._next_id + rows))
        self._next_id += rows
        self.written.update(ids)
        return ids, self.target.make_batch(ids)

    def prepare(self, task: TaskId, sink: Sink | None = None) -> Work:
        """One attempt, written and prepared in this process."""
        ids, batch = self.batch()
        writer = (sink or self.sink).writer(task)
        writer.write(batch)
        committable = present(writer.prepare(), "prepare returned None though rows were written")
        return Work(committable, ids)

    def lose(self, work: Work) -> Committable:
        """Abort it; returns what a manifest would name of it, without rows that it came with."""
        self.committer.abort([work.committable])
        return replace(work.committable, payload=b"")

    # looking

    def look(
        self,
        held: CheckedPromise,
        visible: Collection[int] = (),
        possible: Collection[int] = (),
        stray: Promise = Promise.UNDECIDED_UNSEEN,
    ) -> Counter[int]:
        """A reader sees every wanted and `visible` row once, each `possible` one at most once, and no other.

        What is missing may take a moment to show. What must not be seen never may: that breaks the promise `stray`.
        """
        must = self.wanted.union(visible)
        wait = looking(self.target.patience_s)
        while True:
            shown = Counter(i for i in self.target.rows() if i in self.written)
            with self.target.book.holding(stray, held.call, held.crash) as unseen:
                never = sorted(shown.keys() - must - set(possible))
                seen = f"{len(never)} of them are visible, among them id {never[0]}" if never else ""
                unseen.expect(not never, "rows that no decision names stay unseen", seen)
            twice = sorted(i for i, times in shown.items() if times > 1)
            seen = f"{len(twice)} rows are there more than once: id {twice[0]} {shown[twice[0]]} times" if twice else ""
            held.expect(not twice, "every row at most once", seen)
            missing = sorted(must - shown.keys())
            if not missing:
                return shown
            seen = f"{len(missing)} rows are missing after {self.target.patience_s} s, the first is id {missing[0]}"
            held.expect(wait.again(), f"all {len(must)} decided rows visible", seen)

    def mark(self) -> None:
        """What the destination holds now is where it has to come back to."""
        self.baseline = self._held()

    def sweep(self, call: str, crash: str = "", generation: int | None = None, keep: Iterable[Work] = ()) -> None:
        """Abort what leftovers lists but for `keep`, until nothing is left. What a killed client's server finishes
        late may still come in meanwhile; what was aborted once may not come back."""
        kept = {work.committable.handle for work in keep}
        upto = self.generation if generation is None else generation
        aborted: set[str] = set()
        wait = looking(self.target.patience_s)
        committer = self.elsewhere()
        with self.target.book.holding(Promise.SWEPT, call, crash) as held:
            while True:
                listed = [c for c in self.retry(lambda: committer.leftovers(upto)) if c.handle not in kept]
                again = [c.handle for c in listed if c.handle in aborted]
                held.expect(not again, "what was aborted is no longer listed", f"leftovers lists {again[:1]} again")
                if listed:
                    self.retry(partial(committer.abort, listed))
                    aborted.update(c.handle for c in listed)
                    continue
                there = self._held()
                if there == self.baseline:
                    break
                seen = f"prepared() finds {there} where it found {self.baseline} before the call"
                held.expect(wait.again(), "nothing left in the destination that leftovers doesn't list", seen)
        committer.close()

    def _held(self) -> int:
        return self.target.prepared() if self.target.prepared is not None else 0
