"""A subtask whose batches come with the edges that they are on: nothing is aligned, and no state is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, TaskId, Upserting
from onefold.core.source import Part, Source, Split
from onefold.engine.dataflow.chain_operators import Emitted
from onefold.engine.dataflow.items import Acknowledge, Effect, Send
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.mechanisms.ack.tracking import Told
from onefold.engine.state.memory import MemoryBackend
from onefold.flow.graph import Writing

__all__ = ["AckReader", "AckSubtask", "Edge", "UnkeptBackend"]

Prepared = Generator[Effect, None, tuple[Committable, ...]]


@dataclass(frozen=True, slots=True)
class Edge:
    """On a channel before each batch: of which root that is, and its own id."""

    root: int
    id: int
    nbytes: ClassVar[int] = 0


class UnkeptBackend(MemoryBackend):
    """State of which there are no snapshots."""

    def forget_changes(self) -> None:
        """What a snapshot would need."""
        for table in self._tables.values():
            if table.changes:
                table.take()


class AckSubtask(Subtask):
    """A sink writes nothing until it is to prepare."""

    def begin(self, told: Told, new_id: Callable[[], int], task: TaskId) -> None:
        """Before the first batch. `told` is the worker's; until the first flush the time is that of the task."""
        self.told, self._new_id = told, new_id
        self._on: dict[int, Edge] = {}  # of the next batch, by the channel
        self._waiting: list[tuple[Edge, pa.RecordBatch]] = []
        head = self.chain.head.operator
        self._writing = head if isinstance(head, Writing) else None
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
            prepared = yield from self._flushed(task) if self._writing is None else self._sunk()
            self._run += 1
            bad = self._operators.bad_of_epoch()
            yield Acknowledge(self._run - 1, prepared, bad, self.timer_ms, epoch=task.epoch)

    def edge(self, root: int) -> Any:
        """A new one, on which something is sent."""
        edge = Edge(root, self._new_id())
        self.told.xors[root] ^= edge.id
        return edge

    def _took(self, channel: int, item: Any) -> Iterator[Effect]:
        """A batch is acknowledged together with all that came of it; the state that has it is nowhere but here."""
        if isinstance(item, Edge):
            self._on[channel] = item
            return
        edge = self._on.pop(channel)
        if self._writing is not None:
            self._waiting.append((edge, item))
            self.told.waiting += 1
            return
        yield from self._edged(edge.root, self._operators.take(item, self.channels[channel].port))
        self.told.xors[edge.root] ^= edge.id

    def _flushed(self, task: TaskId) -> Prepared:
        """What operators emit once an epoch is of no record's root."""
        for send in self._edged(-self._run, self._operators.flush(task)):
            self.told.flushed += 1
            yield send
        if self._state is not None:
            cast("UnkeptBackend", self._state.backend).forget_changes()
        return ()

    def _sunk(self) -> Prepared:
        """Edges that end in a sink are acknowledged when the epoch is committed."""
        waiting, self._waiting = self._waiting, []
        for edge, _ in waiting:
            self.told.ended[edge.root] ^= edge.id
        self.told.waiting -= len(waiting)
        for batch in self._newest([batch for _, batch in waiting]):
            yield from self._sent(self._operators.take(batch, 0))
        return tuple(self._operators.prepare())

    def _newest(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The last row of each key, where their epoch alone tells rows apart: one may have rows of two flushes."""
        if len(batches) < 2 or self._writing is None or not self._writing.is_numbered:
            return batches
        key = list(present(cast("Upserting", self._writing.sink).upsert(), "numbered rows are upserted").key)
        rows = pa.Table.from_batches(batches)
        counted = rows.select(key).append_column("at", pa.array(range(len(rows)), pa.int64()))
        last = counted.group_by(key).aggregate([("at", "max")])["at_max"]
        newest: list[pa.RecordBatch] = rows.take(last).to_batches()
        return newest

    def _edged(self, root: int, emitted: Iterable[Emitted]) -> Iterator[Send]:
        for send in self._sent(emitted):
            assert isinstance(send, Send)
            yield Send(send.exchange, send.to, self.edge(root))
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

    def read(self) -> Part | None:
        """The next part of the first root. With the last one the root's first edge ends."""
        root, split = self._orders[0]
        if self._parts is None:
            self._parts = iter(self._source.read(split, guarded=self._guarded))
        if (part := next(self._parts, None)) is None:
            self._parts = None
            self._orders.popleft()
            self._subtask.told.xors[root] ^= root
        else:
            self._subtask.put(None, self._index, self._subtask.edge(root))
        return part
