"""Where a subtask keeps an operator's keyed state: tables of entries by key, in memory or in RocksDB."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Frozen", "StateBackend", "StateKind", "StateSpec", "StateTable"]

Key = tuple[Any, ...]
Value = tuple[Any, ...]


class StateKind(enum.Enum):
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMERS = "timers"  # of one clock: entries (key, time in ms), also in order of time


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of one operator: `uid` is the operator's, `name` is unique in it."""

    uid: str
    name: str
    kind: StateKind


class StateTable(Protocol):
    """The entries of one state in one subtask. `sub` is empty for a value, a number for a list's elements, a map's own
    key for a map. Values are tuples of plain Python values."""

    def get(self, key: Key, sub: Key = ()) -> Value | None: ...

    def put(self, key: Key, value: Value, sub: Key = ()) -> None: ...

    def delete(self, key: Key, sub: Key = ()) -> None: ...

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        """All entries of one key, by `sub` in order of insertion for a map, of numbers for a list."""
        ...

    def clear(self, key: Key) -> None: ...

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """Of a VALUE state."""
        ...

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Of a VALUE state."""
        ...

    def scan(self) -> Iterator[tuple[Key, Key, Value]]:
        """All entries: key, sub, value."""
        ...


class Frozen(Protocol):
    """A backend's state as it was at a barrier, while the backend goes on. Taking it is quick; `store` is not."""

    def store(self) -> str:
        """Write what is not yet in the storage, durably, and return the handle by which `restore` finds it."""
        ...

    def release(self) -> None:
        """It is not needed any more; stored or not."""
        ...


class StateBackend(Protocol):
    """The keyed states of all operators of one subtask, for its key groups."""

    def table(self, spec: StateSpec) -> StateTable: ...

    def freeze(self, epoch: int) -> Frozen: ...

    def restore(self, handles: Sequence[str], key_groups: Collection[int]) -> None:
        """Before any table is used: the entries of these key groups, from the snapshots of all subtasks there were."""
        ...

    def close(self) -> None: ...
