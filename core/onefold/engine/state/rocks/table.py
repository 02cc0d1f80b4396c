"""A table of the RocksDB backend: changes in dicts over a column family.

A key in RocksDB is the key group in two bytes, the length of the key and the key, then the sub: so that a key group is
a range, and so are the entries of one key. The sub of a list is eight bytes, in the order of the elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from onefold.engine.key_groups import group_of, groups_of
from onefold.engine.state.arrow_entries import typed_columns
from onefold.engine.state.codec import decode, encode, unreadable
from onefold.engine.state.columns.keyed_rows import migrated_rows
from onefold.engine.state.rocks.layered import Layered
from onefold.engine.state.rocks.scratch import Naming
from onefold.engine.state.sharded_tables import WALKED_MIN, by_sub
from onefold.engine.state.state_backend import Key, Migration, StateKind, StateSpec, Value

Entry = tuple[Key, Key, Value]
Changes = dict[Key, dict[Key, Value | None]]  # by key and sub; None says that it is gone

_HEAD = struct.Struct(">HI")
_NUMBER = struct.Struct(">Q")
WALKED_MAX = _MIGRATED = 10_000  # entries at once
_SINGLE = (StateKind.VALUE, StateKind.ROWS)  # with one entry a key
_UNKNOWN: Any = object()
_NOTHING: dict[Any, Any] = {}


class RocksTable(Layered[Changes]):
    share_min = 0.0

    def __init__(
        self,
        spec: StateSpec,
        family: Any,
        max_parallelism: int,
        spill: Callable[[StateSpec], None],
        changes_max: int,
        naming: Naming,
    ) -> None:
        super().__init__(family, naming, {})
        self._spec = spec
        self._max_parallelism = max_parallelism
        self._spill = spill
        self._changes_max = changes_max
        self._noted = 0

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        value = self._changed(key, sub)
        return self._stored(self._key(key) + self._sub(sub)) if value is _UNKNOWN else value

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        self._note(key, sub, value)

    put_time = put

    def delete(self, key: Key, sub: Key = ()) -> None:
        self._note(key, sub, None)

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        layers = self._layers()
        found: dict[Key, Value | None] = dict(self._stored_items(key))
        for layer in layers:
            found.update(layer.get(key, _NOTHING))
        return iter(by_sub((sub, value) for sub, value in found.items() if value is not None))

    def last(self, key: Key) -> Key | None:
        layers = self._layers()
        changed: dict[Key, Value | None] = {}
        for layer in layers:
            changed.update(layer.get(key, _NOTHING))
        if None in changed.values():
            return max((sub for sub, _ in self.items(key)), default=None)
        return max((*changed, *self._stored_last(key)), default=None)

    def clear(self, key: Key) -> None:
        for sub, _ in self.items(key):
            self._note(key, sub, None)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        values: list[Any] = [self._changed(key, ()) for key in keys]
        unknown = [number for number, value in enumerate(values) if value is _UNKNOWN]
        stored = self._found(self._keys([keys[number] for number in unknown])) if unknown else []
        for number, data in zip(unknown, stored, strict=True):
            values[number] = None if data is None else decode(data)
        return values

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._changes[key] = {(): value}
        self._noted += len(keys)
        if self._noted > self._changes_max:
            self._overflow()

    def scan(self) -> Iterator[Entry]:
        changed = self._all_changes()
        with self._naming:
            for data, value in self._family.items():
                key, sub = self._decoded(data)
                if sub not in changed.get(key, _NOTHING):
                    yield key, sub, decode(value)
        yield from _there(changed)

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[Entry], Any]]:
        """The changes come first: so an entry that is changed on the way does not come again."""
        changed = self._all_changes()
        found = [*_there(changed)] if place is None else []
        most = max(WALKED_MIN, share * self.estimated_entries)
        with self._naming:
            for walked, (data, value) in enumerate(self._family.items(from_key=place)):
                if walked >= most or len(found) >= WALKED_MAX:
                    yield found, data
                    if walked >= most:
                        return
                    found = []
                key, sub = self._decoded(data)
                if sub not in changed.get(key, _NOTHING):
                    found.append((key, sub, decode(value)))
        yield found, None

    # for the backend

    def take(self) -> Changes:
        self._noted = 0
        return super().take()

    def encoded(self, changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
        for head, entries in zip(self._keys(list(changes)), changes.values(), strict=True):
            for sub, value in entries.items():
                yield head + self._sub(sub), None if value is None else encode(value)

    def migrated(self, entries: Iterator[tuple[bytes, bytes]], migration: Migration) -> Iterator[tuple[bytes, bytes]]:
        while some := list(islice(entries, _MIGRATED)):
            values = [decode(value) for _, value in some]
            made = migrated_rows(values, migration) if self._spec.kind is StateKind.ROWS else migration.values(values)
            yield from ((key, encode(value)) for (key, _), value in zip(some, made, strict=True))

    # changes

    def _all_changes(self) -> Changes:
        """Asked for before RocksDB is, as `_layers`."""
        changed: Changes = {}
        for layer in self._layers():
            for key, entries in layer.items():
                changed.setdefault(key, {}).update(entries)
        return changed

    def _changed(self, key: Key, sub: Key) -> Any:
        for layer in reversed(self._layers()):
            value = layer.get(key, _NOTHING).get(sub, _UNKNOWN)
            if value is not _UNKNOWN:
                return value
        return _UNKNOWN

    def _note(self, key: Key, sub: Key, value: Value | None) -> None:
        self._changes.setdefault(key, {})[sub] = value
        self._noted += 1
        if self._noted > self._changes_max:
            self._overflow()

    def _overflow(self) -> None:
        self._noted = 0
        self._spill(self._spec)

    # RocksDB

    def _key(self, key: Key) -> bytes:
        return _head(group_of(key, self._max_parallelism), encode(key))

    def _keys(self, keys: Sequence[Key]) -> list[bytes]:
        columns = typed_columns(keys)
        if columns is None:
            return [self._key(key) for key in keys]
        groups = groups_of(columns, self._max_parallelism).tolist()
        return [_head(group, encode(key)) for group, key in zip(groups, keys, strict=True)]

    def _sub(self, sub: Key) -> bytes:
        if self._spec.kind in _SINGLE:
            return b""
        return _NUMBER.pack(sub[0]) if self._spec.kind is StateKind.LIST else encode(sub)

    def _sub_of(self, data: bytes) -> Key:
        if self._spec.kind in _SINGLE:
            return ()
        sub: Key = _NUMBER.unpack(data) if self._spec.kind is StateKind.LIST else decode(data)
        return sub

    def _decoded(self, data: bytes) -> tuple[Key, Key]:
        """The key and the sub, which have hashes. Raises DataLoss for what was not written as one."""
        try:
            _, size = _HEAD.unpack_from(data)
            end = _HEAD.size + size
            found = decode(data[_HEAD.size : end]), self._sub_of(data[end:])
            hash(found)
        except (struct.error, TypeError) as error:
            raise unreadable() from error
        return found

    def _stored(self, data: bytes) -> Value | None:
        found = self._found(data)
        return None if found is None else decode(found)

    def _found(self, data: Any) -> Any:
        with self._naming:
            return self._family.get(data)

    def _stored_items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        head = self._key(key)
        with self._naming:
            for data, value in self._family.items(from_key=head):
                if not data.startswith(head):
                    return
                yield self._sub_of(data[len(head) :]), decode(value)

    def _stored_last(self, key: Key) -> list[Key]:
        """The highest number in RocksDB, if there is one."""
        head = self._key(key)
        with self._naming:
            for data in self._family.keys(backwards=True, from_key=head + b"\xff" * 9):
                return [self._sub_of(data[len(head) :])] if data.startswith(head) else []
        return []


def _there(changed: Changes) -> Iterator[Entry]:
    for key, entries in changed.items():
        yield from ((key, sub, value) for sub, value in entries.items() if value is not None)


def _head(group: int, key: bytes) -> bytes:
    return _HEAD.pack(group, len(key)) + key
