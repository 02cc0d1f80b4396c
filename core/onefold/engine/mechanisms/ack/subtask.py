"""A subtask whose batches come with the edges that they are on: nothing is aligned, and no state is stored."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, cast

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, TaskId, Upserting
from onefold.core.source import Split
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.engine.dataflow.chain_operators import Emitted
from onefold.engine.dataflow.items import Acknowledge, Barrier, Effect, Item, Send
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.mechanisms.ack.tracking import ROOT, Told
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.workers.worker import Reader
from onefold.flow.graph.operators import Writing

Prepared = Generator[Effect, None, tuple[Committable, ...]]


@dataclass(frozen=True, slots=True)
class Edge:
    """On a channel before each batch: of which root that is, and its own id."""

    root: int
    id: int
    nbytes: ClassVar[int] = 0


class AckSubtask(Subtask):
    """A sink writes nothing until it is to prepare."""

    def begin(self, told: Told, chance: Random, task: TaskId) -> None:
        """Before the first batch. `told` is the worker's; until the first flush the time is that of the task."""
        self.told, self._chance = told, chance
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
        edge = Edge(root, self._chance.getrandbits(64))
        self.told.xors[root] ^= edge.id
        return edge

    def _took(self, channel: int, item: Any) -> Iterator[Effect]:
        """A batch is acknowledged together with all that came of it; the state that has it is nowhere but here."""
        if isinstance(item, Edge):
            self._on[channel] = item
        elif self._writing is not None:
            self._waiting.append((self._on.pop(channel), item))
            self.told.waiting += 1
        else:
            edge = self._on.pop(channel)
            yield from self._edged(edge.root, self._operators.take(item, self.channels[channel].port))
            self.told.xors[edge.root] ^= edge.id

    def _flushed(self, task: TaskId) -> Prepared:
        """What operators emit once an epoch is of no record's root."""
        for send in self._edged(-self._run, self._operators.flush(task)):
            self.told.flushed += 1
            yield send
        if self._state is not None and isinstance(self._state.backend, MemoryBackend):
            self._state.backend.forget_changes()
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
        upsert = present(cast("Upserting", self._writing.sink).upsert(), "numbered rows are upserted")
        if {*upsert.order} != {EPOCH_COLUMN} or upsert.within_epoch:
            return batches
        key, rows = list(upsert.key), pa.Table.from_batches(batches)
        counted = rows.select(key).append_column("at", pa.array(range(len(rows)), pa.int64()))
        last = counted.group_by(key).aggregate([("at", "max")])["at_max"]
        newest: list[pa.RecordBatch] = rows.take(last).to_batches()
        return newest

    def _edged(self, root: int, emitted: Iterable[Emitted]) -> Iterator[Effect]:
        for send in self._sent(emitted):
            if isinstance(send, Send):
                yield Send(send.exchange, send.to, self.edge(root))
            yield send


class AckReader(Reader):
    """Reads for its subtask, whose only channel that is. Its runs are roots."""

    subtask: AckSubtask

    def begin(self, run: int, splits: Sequence[Split], end: object = None) -> None:
        del end
        if splits and run >= ROOT:  # the records of an epoch were handed out before
            super().begin(run, splits)

    def read(self) -> Item | None:
        """With its last part the root's first edge ends."""
        (root, _, _), item = self._runs[0], super().read()
        if isinstance(item, Barrier):
            self.subtask.told.xors[root] ^= root
            return None
        if item is not None:
            self.subtask.inbound.put(0, self.subtask.edge(root))
        return item


def begun(subtasks: Sequence[Any], readers: Mapping[int, Any], task: TaskId, chance: Random) -> Told:
    """All of a worker, before the first batch. Returns what it is to tell. `readers` by the numbers of chains."""
    told = Told()
    for subtask in subtasks:
        subtask.begin(told, chance, task)
    for chain, reader in readers.items():
        reader.subtask = subtasks[chain]
    return told
