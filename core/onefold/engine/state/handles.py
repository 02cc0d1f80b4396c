"""What a processor sees of its state: value, list and map states and timers of the key that is being handled.

The names and the behaviour are those of Spark's `StatefulProcessorHandle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.engine.state.backend import Key, StateBackend, StateKind, StateSpec, StateTable, Value
from onefold.engine.state.timers import Timers
from onefold.flow.processor import Schema

__all__ = ["KeyedHandle"]

TIMERS = "$timers"  # a name that no user's state has


class KeyedHandle:
    """Implements ProcessorHandle for the operator `uid`. The runtime sets `key` before each call of the processor, and
    `is_open` to False once `init` has returned. `timers` is None where the flow gave the operator no clock."""

    def __init__(self, uid: str, backend: StateBackend, *, has_timers: bool = True) -> None:
        self.key: Key = ()
        self.is_open = True
        self._uid = uid
        self._backend = backend
        self._kinds: dict[str, StateKind] = {}
        self.timers: Timers | None = None
        if has_timers:
            self.timers = Timers(backend.table(StateSpec(uid, TIMERS, StateKind.TIMERS)))

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> KeyedValue:
        return KeyedValue(self, *self._table(stateName, StateKind.VALUE, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> KeyedList:
        return KeyedList(self, *self._table(stateName, StateKind.LIST, schema, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> KeyedMap:
        table, width, name = self._table(stateName, StateKind.MAP, valueSchema, ttlDurationMs)
        return KeyedMap(self, table, width, name, _width(userKeySchema))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._clock().register(self.key, expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._clock().delete(self.key, expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return self._clock().of(self.key)

    def deleteIfExists(self, stateName: str) -> None:
        """Removes a state of earlier code, of all keys of this subtask."""
        self._kinds.pop(stateName, None)
        for kind in (StateKind.VALUE, StateKind.LIST, StateKind.MAP):
            table = self._backend.table(StateSpec(self._uid, stateName, kind))
            for key in {key for key, _, _ in table.scan()}:
                table.clear(key)

    def _clock(self) -> Timers:
        if self.timers is None:
            raise ConfigError(
                "timers-without-clock",
                f"the processor {self._uid!r} uses timers, and the flow gave it no clock: set"
                " timers='event' or 'processing' at process(...)",
            )
        return self.timers

    def _table(self, name: str, kind: StateKind, schema: Schema, ttl_ms: int | None) -> tuple[StateTable, int, str]:
        if ttl_ms is not None:
            raise ConfigError(
                "state-ttl-unsupported",
                f"the state {name!r} of {self._uid!r} has a TTL, which the engine does not have yet: leave it out, or"
                " register a timer and clear the state when it expires",
            )
        if not self.is_open or not name or name.startswith("$") or self._kinds.get(name, kind) is not kind:
            raise ConfigError(
                "state-name",
                f"the processor {self._uid!r} asks for a {kind.value} state {name!r}: states are asked for in init,"
                " under names of their own that do not begin with a dollar sign",
            )
        self._kinds[name] = kind
        return self._backend.table(StateSpec(self._uid, name, kind)), _width(schema), f"{name!r} of {self._uid!r}"


class _Keyed:
    def __init__(self, handle: KeyedHandle, table: StateTable, width: int, name: str) -> None:
        self._handle = handle
        self._table = table
        self._width = width
        self._name = name

    def exists(self) -> bool:
        return next(self._table.items(self._handle.key), None) is not None

    def clear(self) -> None:
        self._table.clear(self._handle.key)

    def _checked(self, value: Any) -> Value:
        return _row(value, self._width, self._name)


class KeyedValue(_Keyed):
    """Implements ValueState."""

    def get(self) -> Value | None:
        return self._table.get(self._handle.key)

    def update(self, newValue: Value) -> None:
        self._table.put(self._handle.key, self._checked(newValue))


class KeyedList(_Keyed):
    """Implements ListState."""

    def get(self) -> Iterator[Value]:
        return (value for _, value in self._table.items(self._handle.key))

    def put(self, newState: list[Value]) -> None:
        rows = [self._checked(value) for value in newState]
        self.clear()
        self._append(0, rows)

    def appendValue(self, newState: Value) -> None:
        self.appendList([newState])

    def appendList(self, newState: list[Value]) -> None:
        last = self._table.last(self._handle.key)
        self._append(last[0] + 1 if last else 0, [self._checked(value) for value in newState])

    def _append(self, first: int, rows: list[Value]) -> None:
        for number, row in enumerate(rows, first):
            self._table.put(self._handle.key, row, (number,))


class KeyedMap(_Keyed):
    """Implements MapState. Entries come in the order of their keys, which no restart changes."""

    def __init__(self, handle: KeyedHandle, table: StateTable, width: int, name: str, key_width: int) -> None:
        super().__init__(handle, table, width, name)
        self._key_width = key_width

    def getValue(self, key: Key) -> Value | None:
        return self._table.get(self._handle.key, key)

    def containsKey(self, key: Key) -> bool:
        return self.getValue(key) is not None

    def updateValue(self, key: Key, value: Value) -> None:
        if any(type(part) is float for part in key):
            raise ConfigError(
                "map-key-float",
                f"the map state {self._name} gets the key {key!r}: floats are no keys, since some are equal and differ",
            )
        self._table.put(self._handle.key, self._checked(value), _row(key, self._key_width, self._name))

    def iterator(self) -> Iterator[tuple[Key, Value]]:
        return self._table.items(self._handle.key)

    def keys(self) -> Iterator[Key]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Value]:
        return (value for _, value in self.iterator())

    def removeKey(self, key: Key) -> None:
        self._table.delete(self._handle.key, key)


def _row(value: Any, width: int, name: str) -> Value:
    if not isinstance(value, tuple) or len(value) != width:
        raise ConfigError(
            "state-value-shape", f"the state {name} gets {value!r}: its schema asks for a tuple of {width} values"
        )
    return value if type(value) is tuple else tuple(value)


def _width(schema: Schema) -> int:
    """How many columns the schema has."""
    if isinstance(schema, pa.Schema):
        return len(schema)
    depth = columns = 0
    for letter in schema:
        depth += (letter in "(<") - (letter in ")>")
        columns += letter == "," and depth == 0
    return columns + 1 if schema.strip() else 0
