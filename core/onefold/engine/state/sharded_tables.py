"""The memory backend's tables: dicts, in shards that a base snapshot copies a few at a time.

A shard is chosen by Python's own hash, which differs from process to process: no file depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.engine.state.arrow_entries import Entries, from_ipc, to_ipc
from onefold.engine.state.codec import encode
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import Key, Migration, Value

SHARDS = 256
ROWS_MAX = 1 << 14  # of one part of a snapshot
WALKED_MIN = 1_000  # entries
T = TypeVar("T")
Entry = tuple[Key, Key, Value]
_MASK = SHARDS - 1


def by_sub(entries: Iterable[tuple[Key, Value]]) -> list[tuple[Key, Value]]:
    """In the order of the subs; the same in every backend, and after a restore."""
    listed = list(entries)
    try:
        listed.sort(key=lambda entry: entry[0])
    except TypeError:  # None beside text, or other types that have no order
        listed.sort(key=lambda entry: encode(entry[0]))
    return listed


class FlatTable:
    """Of a VALUE state: one value a key. `changes` are the entries since the last `take`; None says that it is gone."""

    copy_cost = 1
    share_min = 0.0

    def __init__(self) -> None:
        self.shards: list[dict[Key, Value]] = [{} for _ in range(SHARDS)]
        self.changes: dict[Key, Value | None] = {}

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        if sub:
            _refuse(sub)
        return self.shards[hash(key) & _MASK].get(key)

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        if sub:
            _refuse(sub)
        self.shards[hash(key) & _MASK][key] = value
        self.changes[key] = value

    put_time = put

    def delete(self, key: Key, sub: Key = ()) -> None:
        if sub:
            _refuse(sub)
        if self.shards[hash(key) & _MASK].pop(key, None) is not None:
            self.changes[key] = None

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        value = self.get(key)
        return iter(() if value is None else [((), value)])

    def last(self, key: Key) -> Key | None:
        return None if self.get(key) is None else ()

    def clear(self, key: Key) -> None:
        self.delete(key)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        shards = self.shards
        return [shards[hash(key) & _MASK].get(key) for key in keys]

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        shards = self.shards
        for key, value in zip(keys, values, strict=True):
            shards[hash(key) & _MASK][key] = value
        self.changes.update(zip(keys, values, strict=True))

    def scan(self) -> Iterator[Entry]:
        return chain.from_iterable(map(self._of_shard, range(SHARDS)))

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[Entry], Any]]:
        return walked(self._of_shard, share * len(self), place)

    def _of_shard(self, shard: int) -> Iterator[Entry]:
        return ((key, (), value) for key, value in self.shards[shard].items())

    def take(self) -> dict[Key, Value | None]:
        changes, self.changes = self.changes, {}
        return changes

    def copy(self, shard: int) -> dict[Key, Value]:
        return self.shards[shard].copy()

    count = staticmethod(len)

    @staticmethod
    def changed(changes: dict[Key, Value | None]) -> Iterator[tuple[int, pa.Buffer]]:
        return FlatTable.copied([changes])

    @staticmethod
    def copied(shards: Sequence[dict[Key, Any]]) -> Iterator[tuple[int, pa.Buffer]]:
        for rows in _some(chain.from_iterable(shard.items() for shard in shards)):
            keys, values = zip(*rows, strict=True)
            yield len(rows), to_ipc(Entries(keys, [()] * len(rows), values))

    def load(self, data: bytes, wanted: Wanted, migration: Migration | None = None) -> int:
        entries, shards = _entries(data, wanted, migration), self.shards
        for key, value in zip(entries.keys, entries.values, strict=True):
            if value is None:
                shards[hash(key) & _MASK].pop(key, None)
            else:
                shards[hash(key) & _MASK][key] = value
        return len(entries.keys)

    def loaded(self) -> None:
        """All entries are loaded."""


class NestedTable:
    """Of a LIST, MAP or TIMERS state: entries by key and sub."""

    copy_cost = 8  # dicts in a dict, each copied by itself
    share_min = 0.0

    def __init__(self) -> None:
        self.shards: list[dict[Key, dict[Key, Value]]] = [{} for _ in range(SHARDS)]
        self.changes: dict[tuple[Key, Key], Value | None] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        return self._of(key).get(sub)

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        entries = self.shards[hash(key) & _MASK].setdefault(key, {})
        self._size -= len(entries)
        entries[sub] = value
        self._size += len(entries)
        self.changes[key, sub] = value

    put_time = put

    def delete(self, key: Key, sub: Key = ()) -> None:
        if self._of(key).pop(sub, None) is not None:
            self._gone(key, sub)
            if not self._of(key):
                self.shards[hash(key) & _MASK].pop(key, None)

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        return iter(by_sub(self._of(key).items()))

    def last(self, key: Key) -> Key | None:
        return next(reversed(self._of(key)), None)

    def clear(self, key: Key) -> None:
        for sub in self.shards[hash(key) & _MASK].pop(key, {}):
            self._gone(key, sub)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        return [self.get(key) for key in keys]

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def scan(self) -> Iterator[Entry]:
        return chain.from_iterable(map(self._of_shard, range(SHARDS)))

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[Entry], Any]]:
        return walked(self._of_shard, share * len(self), place)

    def _of_shard(self, shard: int) -> Iterator[Entry]:
        return ((key, sub, value) for key, entries in self.shards[shard].items() for sub, value in entries.items())

    def take(self) -> dict[tuple[Key, Key], Value | None]:
        changes, self.changes = self.changes, {}
        return changes

    def copy(self, shard: int) -> dict[Key, dict[Key, Value]]:
        return {key: entries.copy() for key, entries in self.shards[shard].items()}

    count = staticmethod(len)

    @staticmethod
    def changed(changes: dict[tuple[Key, Key], Value | None]) -> Iterator[tuple[int, pa.Buffer]]:
        return _nested((key, sub, value) for (key, sub), value in changes.items())

    @staticmethod
    def copied(shards: Sequence[dict[Key, dict[Key, Value]]]) -> Iterator[tuple[int, pa.Buffer]]:
        return _nested(
            (key, sub, value) for shard in shards for key, entries in shard.items() for sub, value in entries.items()
        )

    def load(self, data: bytes, wanted: Wanted, migration: Migration | None = None) -> int:
        entries = _entries(data, wanted, migration)
        for key, sub, value in zip(entries.keys, entries.subs, entries.values, strict=True):
            shard = self.shards[hash(key) & _MASK]
            if value is not None:
                shard.setdefault(key, {})[sub] = value
            elif key in shard:
                shard[key].pop(sub, None)
                if not shard[key]:
                    del shard[key]
        return len(entries.keys)

    def loaded(self) -> None:
        """All entries are loaded. `last` needs those of a key in order, which a base and a later log need not have."""
        for shard in self.shards:
            for key, entries in shard.items():
                shard[key] = dict(by_sub(entries.items()))
        self._size = sum(len(entries) for shard in self.shards for entries in shard.values())

    def _of(self, key: Key) -> dict[Key, Value]:
        return self.shards[hash(key) & _MASK].get(key, _NOTHING)

    def _gone(self, key: Key, sub: Key) -> None:
        self._size -= 1
        self.changes[key, sub] = None


_NOTHING: dict[Any, Any] = {}


def walked(of_shard: Callable[[int], Iterable[Entry]], most: float, place: Any) -> Iterator[tuple[list[Entry], Any]]:
    """Entries of the shards from a place on, shard by shard until they are enough; and the place after each."""
    left = max(WALKED_MIN, most)
    for shard in range(place or 0, SHARDS):
        if left <= 0:
            return
        found = [*of_shard(shard)]
        left -= len(found)
        yield found, shard + 1 if shard + 1 < SHARDS else None


def _nested(rows: Iterator[tuple[Key, Key, Value | None]]) -> Iterator[tuple[int, pa.Buffer]]:
    for some in _some(rows):
        keys, subs, values = zip(*some, strict=True)
        yield len(some), to_ipc(Entries(keys, subs, values))


def _entries(data: bytes, wanted: Wanted, migration: Migration | None) -> Entries:
    entries = from_ipc(data, None if wanted.is_whole else wanted.groups, wanted.max_parallelism)
    return entries if migration is None else replace(entries, values=migration.values(entries.values))


def _some(rows: Iterator[T]) -> Iterator[list[T]]:
    """Few enough at a time that no step of storing them keeps the thread waiting that handles records."""
    while some := list(islice(rows, ROWS_MAX)):
        yield some


def _refuse(sub: Key) -> None:
    require(not sub, f"a VALUE state has one entry a key, and none of {sub}")
