"""What a processor sees of its state and its timers. The names and the behaviour are those of Spark's
`StatefulProcessorHandle`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Never

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.tuples import copied
from onefold.engine.state.codec import encode
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.operator_state import Shape, SubtaskBroadcast, SubtaskList
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, StateTable, StateTables, Value
from onefold.flow.processing.processor import Redistribution, Schema
from onefold.flow.time.ttl import Ttl, check_ttl

TIMERS = "$timers"  # a name that no user's state has
_BYTES = pa.schema({"bytes": pa.binary()})


class KeyedHandle:
    """Implements ProcessorHandle for the operator `uid` in subtask number `subtask` of `subtasks`, after the backend's
    restore. The runtime sets `key` before each call of the processor that is of one and leaves it before each that is
    of none, and sets `is_open` to False once `init` has returned.
    """

    key: Key

    def __init__(
        self, uid: str, backend: StateTables, expiry: Expiry | None = None, *, subtask: int = 0, subtasks: int = 1
    ) -> None:
        self.is_open = True
        self._uid = uid
        self._backend = backend
        self._subtask = subtask
        self._subtasks = subtasks
        self._names: dict[str, str] = {}
        self._expiry = expiry or Expiry(uid, backend)
        self.restored()

    def restored(self) -> None:
        """The backend has other entries now, of other key groups."""
        self.timers = Timers(self._backend.table(StateSpec(self._uid, TIMERS, StateKind.TIMERS)))

    def leave_key(self) -> None:
        """No key is being handled: states of a key, and timers, raise ConfigError until the next one."""
        vars(self).pop("key", None)

    def __getattr__(self, name: str) -> Never:  # where there is no key; a property would cost each access
        if name != "key":
            raise AttributeError(name)
        raise ConfigError(
            "state-without-key",
            f"the processor {self._uid!r} uses the state or a timer of a key where none is being handled, which is in"
            " init, handleBroadcastRows and onSnapshot: use operator lists or broadcast state there",
        )

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> KeyedValue:
        return KeyedValue(self, *self._keyed(stateName, StateKind.VALUE, schema, ttlDurationMs, ttl))

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> KeyedList:
        return KeyedList(self, *self._keyed(stateName, StateKind.LIST, schema, ttlDurationMs, ttl))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
        ttl: Ttl | None = None,
    ) -> KeyedMap:
        table, shape = self._keyed(stateName, StateKind.MAP, valueSchema, ttlDurationMs, ttl)
        return KeyedMap(self, table, shape, Shape(self._uid, stateName, userKeySchema, is_key=True))

    def getBytesState(self, stateName: str, ttlDurationMs: int | None = None, ttl: Ttl | None = None) -> KeyedBytes:
        return KeyedBytes(self.getValueState(stateName, _BYTES, ttlDurationMs, ttl))

    def getOperatorListState(
        self, stateName: str, schema: Schema, redistribution: Redistribution = "split"
    ) -> SubtaskList:
        shape = self._shape(stateName, "operator list", schema)
        return SubtaskList(self._backend, shape, redistribution, self._subtask, self._subtasks)

    def getBroadcastState(self, stateName: str, keySchema: Schema, valueSchema: Schema) -> SubtaskBroadcast:
        shape = self._shape(stateName, "broadcast", valueSchema)
        return SubtaskBroadcast(self._backend, shape, Shape(self._uid, stateName, keySchema, is_key=True))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self.timers.register(self.key, expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.timers.delete(self.key, expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return self.timers.of(self.key)

    def deleteIfExists(self, stateName: str) -> None:
        """The restore has left a state of that name out."""
        self._names.pop(stateName, None)

    def _keyed(
        self, name: str, kind: StateKind, schema: Schema, ttl_ms: int | None, ttl: Ttl | None
    ) -> tuple[StateTable, Shape]:
        shape = self._shape(name, kind.value, schema)
        found = check_ttl(f"the state {name!r} of {self._uid!r}", ttl, ttl_ms)
        return self._expiry.table(StateSpec(self._uid, name, kind), found), shape

    def _shape(self, name: str, kind: str, schema: Schema) -> Shape:
        if not self.is_open or not name or name.startswith("$") or self._names.get(name, kind) != kind:
            raise ConfigError(
                "state-name",
                f"the processor {self._uid!r} asks for a {kind} state {name!r}: states are asked for in init, under"
                " names of their own that do not begin with a dollar sign",
            )
        self._names[name] = kind
        return Shape(self._uid, name, schema)


class _Keyed:
    def __init__(self, handle: KeyedHandle, table: StateTable, shape: Shape) -> None:
        self._handle = handle
        self._table = table
        self._shape = shape
        self._copies = shape.has_containers  # what is given out, so that only an update changes the state

    def exists(self) -> bool:
        return next(self._table.items(self._handle.key), None) is not None

    def clear(self) -> None:
        self._table.clear(self._handle.key)


class KeyedValue(_Keyed):
    """Implements ValueState."""

    def __init__(self, handle: KeyedHandle, table: StateTable, shape: Shape) -> None:
        super().__init__(handle, table, shape)
        self._get, self._put, self._checked = table.get, table.put, shape.checked

    def get(self) -> Value | None:
        value = self._get(self._handle.key)
        return copied(value) if self._copies else value

    def update(self, newValue: Value) -> None:
        self._put(self._handle.key, self._checked(newValue))


class KeyedBytes:
    """Implements BytesState."""

    def __init__(self, value: KeyedValue) -> None:
        self._value = value
        self.exists = value.exists
        self.clear = value.clear

    def get(self) -> bytes | None:
        found = self._value.get()
        content: bytes | None = found[0] if found else None
        return content

    def update(self, newValue: bytes) -> None:
        self._value.update((bytes(newValue),))


class KeyedList(_Keyed):
    """Implements ListState."""

    def get(self) -> Iterator[Value]:
        values = (value for _, value in self._table.items(self._handle.key))
        return map(copied, values) if self._copies else values

    def put(self, newState: list[Value]) -> None:
        rows = [self._shape.checked(value) for value in newState]
        self.clear()
        self._append(0, rows)

    def appendValue(self, newState: Value) -> None:
        self.appendList([newState])

    def appendList(self, newState: list[Value]) -> None:
        last = self._table.last(self._handle.key)
        self._append(last[0] + 1 if last else 0, [self._shape.checked(value) for value in newState])

    def _append(self, first: int, rows: list[Value]) -> None:
        for number, row in enumerate(rows, first):
            self._table.put(self._handle.key, row, (number,))


class KeyedMap(_Keyed):
    """Implements MapState. Entries come in the order of their keys, which no restart changes."""

    def __init__(self, handle: KeyedHandle, table: StateTable, shape: Shape, key_shape: Shape) -> None:
        super().__init__(handle, table, shape)
        self._key_shape = key_shape

    def getValue(self, key: Key) -> Value | None:
        value = self._table.get(self._handle.key, self._key_shape.checked(key))
        return copied(value) if self._copies else value

    def containsKey(self, key: Key) -> bool:
        return self._table.get(self._handle.key, self._key_shape.checked(key)) is not None

    def updateValue(self, key: Key, value: Value) -> None:
        self._table.put(self._handle.key, self._shape.checked(value), self._key_shape.checked(key))

    def iterator(self) -> Iterator[tuple[Key, Value]]:
        entries = self._table.items(self._handle.key)
        return ((key, copied(value)) for key, value in entries) if self._copies else entries

    def keys(self) -> Iterator[Key]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Value]:
        return (value for _, value in self.iterator())

    def removeKey(self, key: Key) -> None:
        self._table.delete(self._handle.key, self._key_shape.checked(key))


class Timers:
    """Those of one operator in one subtask and one clock: entries of a TIMERS table, and an index by time. Times are in
    milliseconds since 1970. The index is in memory with every backend; it is built from the table."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._keys: dict[int, set[Key]] = {}
        self._times: list[int] = []  # a heap of the times in `_keys`, and of some that are gone from it
        for key, (at_ms,), _ in table.scan():
            self._note(key, at_ms)

    def register(self, key: Key, at_ms: int) -> None:
        """A timer that is there already stays one."""
        self._table.put(key, (), (at_ms,))
        self._note(key, at_ms)

    def delete(self, key: Key, at_ms: int) -> None:
        self._table.delete(key, (at_ms,))
        keys = self._keys.get(at_ms, set())
        keys.discard(key)
        if not keys:
            self._keys.pop(at_ms, None)

    def of(self, key: Key) -> Iterator[int]:
        """The times of one key, ascending."""
        return (at_ms for (at_ms,), _ in self._table.items(key))

    def next_ms(self) -> int | None:
        while self._times and self._times[0] not in self._keys:
            heapq.heappop(self._times)
        return self._times[0] if self._times else None

    def pop_expired(self, up_to_ms: int) -> list[tuple[int, Key]]:
        """All timers up to that time, and remove them: by time, and at the same time in an order of the keys that a
        restore does not change. What is registered from now on is for the next call, if it is past already."""
        expired: list[tuple[int, Key]] = []
        while (at_ms := self.next_ms()) is not None and at_ms <= up_to_ms:
            keys = self._keys.pop(at_ms)
            expired += [(at_ms, key) for key in (keys if len(keys) == 1 else sorted(keys, key=encode))]
        for at_ms, key in expired:
            self._table.delete(key, (at_ms,))
        return expired

    def _note(self, key: Key, at_ms: int) -> None:
        if at_ms not in self._keys:
            self._keys[at_ms] = set()
            heapq.heappush(self._times, at_ms)
        self._keys[at_ms].add(key)
