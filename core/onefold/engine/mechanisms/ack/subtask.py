"""A subtask whose batches come with the edges that they are on: nothing is aligned, and no state is stored."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, TaskId, Upserting
from onefold.core.source import Part, Source, Split
from onefold.engine.dataflow.chain_operators import Emitted
from onefold.engine.dataflow.items import Acknowledge, Effect, Item, Send
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.mechanisms.ack.tracking import Told
from onefold.engine.state.memory import MemoryBackend
from onefold.flow.graph import Writing

__all__ = ["AckReader", "AckSubtask", "Edge", "Edges", "UnkeptBackend"]


@dataclass(frozen=True, slots=True)
class Edge:
    """On a channel before each batch: of which root that is, and its own id."""

    root: int
    id: int
    nbytes: ClassVar[int] = 0


class Edges:
    """Of one worker: new ids, and what is to be told of the roots."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self.xors, self.ended = defaultdict[int, int](int), defaultdict[int, int](int)
        self.flushed = self.waiting = 0

    def begin(self, root: int) -> Any:
        edge = Edge(root, self._new_id())
        self.xors[root] ^= edge.id
        return edge

    def take(self) -> Told:
        """What was not told yet."""
        told = Told({**self.xors}, {**self.ended}, self.flushed, self.waiting > 0)
        self.xors.clear()
        self.ended.clear()
        self.flushed = 0
        return told


class UnkeptBackend(MemoryBackend):
    """State of which there are no snapshots."""

    def forget_changes(self) -> None:
        """What a snapshot would need."""
        for table in self._tables.values():
            if table.changes:
                table.take()


class AckSubtask(Subtask):
    """The edges are its worker's, whose index it has. A sink writes nothing until it is to prepare."""

    edges: Edges

    def begin(self, edges: Edges, task: TaskId) -> None:
        """Before the first batch. Until the first flush the time is that of the task."""
        self.edges, self._on = edges, dict[int, Edge]()
        head = self.chain.head.operator
        self._writing = head if isinstance(head, Writing) else None
        self._waiting: list[tuple[Edge, pa.RecordBatch]] = []
        if self._writing is None:
            self._operators.begin(task)

    @property
    def is_ready(self) -> bool:
        return self.inbound.has_ready or self._run in self._tasks

    def step(self) -> Iterator[Effect]:
        if (taken := self.inbound.take()) is not None:
            yield from self._took(*taken)
        elif (task := self._tasks.pop(self._run, None)) is not None:
            self._operators.begin(task)
            yield from self._sunk(task) if self._writing is not None else self._flushed(task)

    def acknowledged(self) -> None:
        """Nothing is stored beside the stream."""

    def _took(self, channel: int, item: Any) -> Iterator[Effect]:
        """A batch is acknowledged together with all that came of it; the state that has it is nowhere but here."""
        if isinstance(item, Edge):
            self._on[channel] = item
        elif self._writing is not None:
            self._waiting.append((self._on.pop(channel), item))
            self.edges.waiting += 1
        else:
            edge = self._on.pop(channel)
            yield from self._edged(edge.root, self._operators.take(item, self.channels[channel].port))
            self.edges.xors[edge.root] ^= edge.id

    def _flushed(self, task: TaskId) -> Iterator[Effect]:
        """What operators emit once an epoch is of no record's root."""
        for send in self._edged(-self._run, self._operators.flush(task)):
            self.edges.flushed += 1
            yield send
        if self._state is not None and isinstance(self._state.backend, UnkeptBackend):
            self._state.backend.forget_changes()
        yield self._done(task)

    def _sunk(self, task: TaskId) -> Iterator[Effect]:
        """Edges that end in a sink are acknowledged when the epoch is committed."""
        waiting, self._waiting = self._waiting, []
        for edge, _ in waiting:
            self.edges.ended[edge.root] ^= edge.id
        self.edges.waiting -= len(waiting)
        for batch in self._newest([batch for _, batch in waiting]):
            yield from self._sent(self._operators.take(batch, 0))
        yield from self._sent(self._operators.flush(task))
        yield self._done(task, *self._operators.prepare())

    def _done(self, task: TaskId, *prepared: Committable) -> Acknowledge:
        self._run += 1
        bad, timer_ms = self._operators.bad_of_epoch(), self.timer_ms
        return Acknowledge(self._run - 1, prepared, bad, timer_ms, epoch=task.epoch)

    def _newest(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The last row of each key, where their epoch alone tells rows apart: one may have rows of two flushes."""
        if len(batches) < 2 or self._writing is None or not self._writing.is_numbered:
            return batches
        key = list(present(cast("Upserting", self._writing.sink).upsert(), "numbered rows are upserted").key)
        rows = pa.Table.from_batches(batches)
        counted = rows.select(key).append_column("at", pa.array(range(len(rows)), pa.int64()))
        newest: list[pa.RecordBatch] = rows.take(
            counted.group_by(key).aggregate([("at", "max")])["at_max"]
        ).to_batches()
        return newest

    def _edged(self, root: int, emitted: Iterable[Emitted]) -> Iterator[Send]:
        for each in emitted:
            for send in self._outbound.batch(*each):
                yield Send(send.exchange, send.to, self.edges.begin(root))
                yield send


class AckReader:
    """As `Reader`: its orders are roots, of a split each."""

    def __init__(self, source: Source, guarded: bool, subtask: AckSubtask, index: int) -> None:
        self._source, self._guarded, self._subtask, self._index = source, guarded, subtask, index
        self._orders = deque[tuple[int, Split]]()
        self._parts: Iterator[Part] | None = None

    def begin(self, run: int, splits: Sequence[Split], end: object = None) -> None:
        del end
        self._orders.extend((run, split) for split in splits)

    @property
    def has_orders(self) -> bool:
        return bool(self._orders)

    def read(self) -> Item | None:
        """The next part of the first root. With the last one the root's first edge ends."""
        root, split = self._orders[0]
        if self._parts is None:
            self._parts = iter(self._source.read(split, guarded=self._guarded))
        if (part := next(self._parts, None)) is None:
            self._parts = None
            self._orders.popleft()
            self._subtask.edges.xors[root] ^= root
        else:
            self._subtask.put(None, self._index, self._subtask.edges.begin(root))
        return part
