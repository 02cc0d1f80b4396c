"""Where a subtask keeps an operator's keyed state: tables of entries by key, in memory or in RocksDB."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

Key = tuple[Any, ...]
Value = tuple[Any, ...]
BlockId = tuple[int, int]  # a slice and a number in it
TIMES = "$expires_ms"  # the column, behind the key, of rows that expire
EXPIRY = "$ttl"  # the list of `Expiry`: each state that expires, its clock, and how far its walk is


class StateKind(enum.Enum):
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMERS = "timers"  # of one clock: entries (key, time in ms); `Timers` has them in order of time
    OPERATOR = "operator"  # a list of the subtask, of no key
    CLOCKS = "clocks"  # lists of the subtasks that had the key groups: what `Clocks` and `Expiry` remember of time
    BLOCKS = "blocks"  # record batches of rows of many keys
    ROWS = "rows"  # a row of columns a key


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of one operator: `uid` is the operator's, `name` is unique in it."""

    uid: str
    name: str
    kind: StateKind


@dataclass(frozen=True, slots=True)
class StateSize:
    """Of a subtask, about: the keyed entries that it has, and the bytes of its last snapshot."""

    entries: int
    bytes: int


class Migration(Protocol):
    """What becomes of a state's entries at a restore: of `target` then, or gone where that is None. `before` are the
    columns of their values; keys, and a map's own, stay as they are. Raises DataLoss for what is none of `before`."""

    @property
    def target(self) -> StateSpec | None: ...

    @property
    def before(self) -> pa.Schema: ...

    def values(self, tuples: Sequence[Value | None]) -> list[Value | None]:
        """None stays None."""
        ...

    def rows(self, batch: pa.RecordBatch, width: int = 0) -> pa.RecordBatch:
        """Of rows whose first `width` columns are the key."""
        ...

    def listed(self, items: Sequence[Value]) -> list[Value]:
        """Of an operator's list, or of the pairs of a broadcast state."""
        ...


Migrations: TypeAlias = Mapping[StateSpec, Migration]
NO_MIGRATIONS: Migrations = MappingProxyType({})


class TimedEntries(Protocol):
    """Entries whose values begin with a time, as `StateTable` has them: what a walk needs of them."""

    @property
    def share_min(self) -> float:
        """The smallest share of them that `walk` can give."""
        ...

    def put_time(self, key: Key, value: Value, sub: Key = ()) -> None:
        """Give an entry another time, or none any more: the rest of its value is as it was."""
        ...

    def delete(self, key: Key, sub: Key = ()) -> None: ...

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Key, Key, Value]], Any]]:
        """About that share of all entries, and at least 1,000 of them: those from a place on, None being the first,
        some at a time, with the place after them, a plain value, None after the last. In between entries may be
        changed."""
        ...


class StateTable(TimedEntries, Protocol):
    """The entries of one state in one subtask. `sub` is empty for a value, a number for a list's elements, a map's own
    key for a map. Keys, subs and values are tuples of plain Python values; keys and subs hold no floats."""

    def get(self, key: Key, sub: Key = ()) -> Value | None: ...

    def put(self, key: Key, value: Value, sub: Key = ()) -> None: ...

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        """All entries of one key, in the order of `sub`: the same in every backend, and after a restore. What the
        caller changes meanwhile is not seen."""
        ...

    def last(self, key: Key) -> Key | None:
        """Of a LIST state: the highest `sub` of the key; None where it has no entry."""
        ...

    def clear(self, key: Key) -> None: ...

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """Of a VALUE state."""
        ...

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Of a VALUE state."""
        ...

    def scan(self) -> Iterator[tuple[Key, Key, Value]]:
        """All entries: key, sub, value. The caller changes nothing meanwhile."""
        ...


class BlockTable(Protocol):
    """Record batches of one state in one subtask, each written, read and deleted whole. The first columns of their rows
    are the key: so a restore by other subtasks gives each of them the rows of its key groups, under the same ids or,
    in their order, under others."""

    def ids(self) -> list[BlockId]:
        """Ascending."""
        ...

    def get(self, at: BlockId) -> pa.RecordBatch: ...

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        """A block has rows."""
        ...

    def delete(self, at: BlockId) -> None:
        """One that is there."""
        ...


class Folding(Protocol):
    """How rows of a key become one: each batch is lifted to states, states are merged, and results are made of them. A
    state is a row, whose first columns are the key."""

    def states(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of a batch's rows: one state of each key in it."""
        ...

    def merged(self, states: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One state of each key that the states have, in any order. What is before the states' columns is their key."""
        ...

    def results(self, states: pa.RecordBatch) -> pa.RecordBatch: ...


class RowTable(Protocol):
    """One state of a folding for each key, in one subtask."""

    @property
    def entries(self) -> TimedEntries:
        """Its rows, where their schema has the column TIMES: the values of these entries begin with that."""
        ...

    def reopened(self, schema: pa.Schema) -> None:
        """The schema has the column TIMES no more."""
        ...

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The states of these keys, of those that have one."""
        ...

    def some(self, count: int) -> pa.RecordBatch:
        """The keys of at most so many states."""
        ...

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        """Merge states, one of each key, into those of the same keys that are kept. Gives what is kept of them now."""
        ...


class WholeRowTable(RowTable, Protocol):
    """One that is read and written whole, as for a savepoint."""

    def put_rows(self, states: pa.RecordBatch) -> None:
        """Keep states, one of each key, in the place of those of the same keys."""
        ...

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All states. The caller changes nothing meanwhile."""
        ...


class Frozen(Protocol):
    """A backend's state as it was at a barrier, while the backend goes on. Taking it is quick; `store` is not, and may
    run in a thread of its own. Snapshots are stored in the order in which they were frozen."""

    def store(self) -> str:
        """Write what is not yet in the storage, durably, and return the handle by which `restore` finds it. After an
        error it may be called again."""
        ...

    def release(self) -> None:
        """It is not needed any more; stored or not. What it holds and was not stored goes into the next one."""
        ...


class StateTables(Protocol):
    """The states of all operators of one subtask: the keyed ones, of its key groups, and those of the operators."""

    def table(self, spec: StateSpec) -> StateTable: ...

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        """Of batches of that schema, whose first `width` columns are the key."""
        ...

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> RowTable:
        """Of states of that schema, whose first `width` columns are the key."""
        ...

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        """An operator's list: `freeze` asks for its content."""
        ...

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        """The operator's lists that were restored, in the order of the subtasks there were; empty ones are left out."""
        ...


class StateBackend(StateTables, Protocol):
    """States that are kept as snapshots.

    A snapshot names files of the ones before it. So after an epoch that was given up the backend is not used on: a new
    one restores the last decided epoch.
    """

    def restore(
        self, handles: Sequence[str], key_groups: Collection[int], migrations: Migrations = NO_MIGRATIONS
    ) -> None:
        """Before any table is used, also where there is no handle yet: the entries of these contiguous key groups, from
        the snapshots of all subtasks there were. Those of states in `migrations` as they are from then on: then the
        next snapshot is written whole."""
        ...

    def freeze(self, epoch: int) -> Frozen: ...

    def size(self) -> StateSize:
        """Which takes no time to find out."""
        ...

    def close(self) -> None: ...
