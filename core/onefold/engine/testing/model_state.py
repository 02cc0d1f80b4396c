"""A state backend in memory, whose snapshots outlive processes as long as the participant `state` keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Committable, SinkKind, TaskId
from onefold.core.testing.simulator.models import ModelTwoPhaseSink, PreparedRows
from onefold.engine.dataflow.items import EpochInFlight
from onefold.engine.dataflow.subtask import Kept
from onefold.engine.key_groups import group_of
from onefold.engine.state import FLIGHT, STATE
from onefold.engine.state.columns.keyed_rows import KeyedRows
from onefold.engine.state.state_backend import (
    NO_MIGRATIONS,
    BlockId,
    BlockTable,
    Frozen,
    Key,
    Migrations,
    RowTable,
    StateKind,
    StateSize,
    StateSpec,
    Value,
)
from onefold.flow.processing.rows import values_of

Entries = dict[tuple[Key, Key], Value]
Flight = Sequence[EpochInFlight]
Lists = tuple[Collection[int], Mapping[StateSpec, Sequence[Value]]]  # of a subtask of these key groups
MAX_PARALLELISM = 4


@dataclass
class ModelSnapshots:
    """All snapshots there are: `sink` is the participant that verifies, commits and aborts them."""

    sink: ModelTwoPhaseSink
    contents: dict[str, dict[StateSpec, Entries]] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)
    flights: dict[str, tuple[str, int, Flight]] = field(default_factory=dict)  # of which head, in which subtask

    def keep(self, task: TaskId, frozen: Frozen) -> ModelStoring:
        return ModelStoring(self, task, frozen)

    def keep_flight(self, head: str, index: int, task: TaskId, flight: Flight) -> ModelStoring:
        return ModelStoring(self, task, ModelFlight(self, (head, index, flight), task.epoch))

    def read(self, handle: str) -> dict[StateSpec, Entries]:
        """Raises KeyError for a snapshot that no decided epoch names."""
        self.sink.committed[handle]
        return self.contents[handle]


class ModelStoring(Future[Kept]):
    """It is stored where `land` is called, whatever has become of its worker by then."""

    def __init__(self, snapshots: ModelSnapshots, task: TaskId, frozen: Frozen) -> None:
        super().__init__()
        self.snapshots, self.task, self.frozen = snapshots, task, frozen

    def land(self) -> None:
        handle = self.frozen.store()
        kept = Committable(STATE, SinkKind.TWO_PHASE, handle, self.task.generation, self.task.epoch, 0)
        self.snapshots.sink.keep(PreparedRows(kept, ()), self.task.timestamp_ms)
        self.set_result((kept, 0.0))


@dataclass
class ModelTable:
    """Implements StateTable."""

    share_min: ClassVar[float] = 0.0
    entries: Entries = field(default_factory=dict)

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        return self.entries.get((key, sub))

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        self.entries[key, sub] = value

    put_time = put

    def delete(self, key: Key, sub: Key = ()) -> None:
        self.entries.pop((key, sub), None)

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        return iter(sorted((sub, value) for (of, sub), value in self.entries.items() if of == key))

    def last(self, key: Key) -> Key | None:
        return max((sub for of, sub in self.entries if of == key), default=None)

    def clear(self, key: Key) -> None:
        for sub, _ in self.items(key):
            self.delete(key, sub)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        return [self.get(key) for key in keys]

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def scan(self) -> Iterator[tuple[Key, Key, Value]]:
        return iter([(key, sub, value) for (key, sub), value in self.entries.items()])

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Key, Key, Value]], Any]]:
        del place, share
        yield [*self.scan()], None


@dataclass
class ModelBlocks:
    """Implements BlockTable: each row is an entry by its key, so that it is restored where that is."""

    table: ModelTable
    schema: pa.Schema
    width: int

    def ids(self) -> list[BlockId]:
        return sorted({(slice_, number) for _, (slice_, number, _) in self.table.entries})

    def get(self, at: BlockId) -> pa.RecordBatch:
        rows = [(*key, *value) for (key, sub), value in self.table.entries.items() if sub[:2] == at]
        arrays = [pa.array(of, field.type) for of, field in zip(zip(*rows, strict=True), self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        for place, row in enumerate(values_of(block)):
            self.table.put(row[: self.width], row[self.width :], (*at, place))

    def delete(self, at: BlockId) -> None:
        for key, sub in [each for each in self.table.entries if each[1][:2] == at]:
            self.table.delete(key, sub)


@dataclass
class ModelBackend:
    """Implements StateBackend."""

    snapshots: ModelSnapshots
    uid: str
    tables: dict[StateSpec, ModelTable] = field(default_factory=dict)
    lists: dict[StateSpec, Callable[[], Sequence[Value]]] = field(default_factory=dict)
    restored: list[Lists] = field(default_factory=list)
    groups: Collection[int] = range(MAX_PARALLELISM)

    def restore(
        self, handles: Sequence[str], key_groups: Collection[int], migrations: Migrations = NO_MIGRATIONS
    ) -> None:
        require(not migrations, "a model's flow does not change")
        self.restored, self.groups = [self.snapshots.lists[handle] for handle in handles], key_groups
        for handle in handles:
            for spec, entries in self.snapshots.read(handle).items():
                if spec.uid != self.uid:
                    continue
                mine = {of: value for of, value in entries.items() if group_of(of[0], MAX_PARALLELISM) in key_groups}
                self.table(spec).entries.update(mine)

    def table(self, spec: StateSpec) -> ModelTable:
        return self.tables.setdefault(spec, ModelTable())

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        return ModelBlocks(self.table(StateSpec(uid, name, StateKind.BLOCKS)), schema, width)

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> RowTable:
        return KeyedRows(self.table(StateSpec(uid, name, StateKind.VALUE)), schema, width)

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        self.lists[spec] = content

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        return [
            list(of[spec])
            for groups, of in self.restored
            if spec in of and (spec.kind is not StateKind.CLOCKS or self.is_own(groups))
        ]

    def is_own(self, groups: Collection[int]) -> bool:
        """Whether a subtask of these was this one, or has an equal part in it."""
        return min(self.groups) in groups

    def freeze(self, epoch: int) -> ModelFrozen:
        lists = {spec: list(content()) for spec, content in self.lists.items()}
        return ModelFrozen(self, {spec: dict(table.entries) for spec, table in self.tables.items()}, lists, epoch)

    def size(self) -> StateSize:
        return StateSize(sum(len(table.entries) for table in self.tables.values()), 0)

    def close(self) -> None:
        self.tables.clear()


@dataclass
class ModelFrozen:
    """Implements Frozen."""

    backend: ModelBackend
    content: dict[StateSpec, Any]
    lists: Mapping[StateSpec, Sequence[Value]]
    epoch: int

    def store(self) -> str:
        contents = self.backend.snapshots.contents
        handle = f"{self.epoch}-{len(contents)}"
        contents[handle] = self.content
        self.backend.snapshots.lists[handle] = self.backend.groups, self.lists
        return handle

    def release(self) -> None:
        return


@dataclass
class ModelFlight:
    """Implements Frozen, as `FlightFile` does."""

    snapshots: ModelSnapshots
    flight: tuple[str, int, Flight]
    epoch: int

    def store(self) -> str:
        handle = f"{self.epoch}-{len(self.snapshots.flights)}{FLIGHT}"
        self.snapshots.flights[handle] = self.flight
        return handle

    def release(self) -> None:
        return
