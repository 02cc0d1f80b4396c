"""The handle of a processor on the engine: what Spark's has, and raw bytes, lists of a subtask and broadcast maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onefold.engine.state.backend import Key, StateBackend, Value
from onefold.engine.state.handles import KeyedHandle, KeyedValue
from onefold.engine.state.operators import BroadcastState, OperatorState, Redistribution
from onefold.flow.processor import Schema

__all__ = ["Handle"]


class Handle(KeyedHandle):
    """The `ProcessorHandle` of operator `uid` in subtask `index` of `parallelism`."""

    def __init__(self, uid: str, backend: StateBackend, index: int, parallelism: int) -> None:
        super().__init__(uid, backend)
        self._operator = OperatorState(backend, index, parallelism)

    def getBytesState(self, stateName: str, ttlDurationMs: int | None = None) -> _Bytes:
        return _Bytes(self.getValueState(stateName, "value binary", ttlDurationMs))

    def getOperatorListState(self, stateName: str, schema: Schema, redistribution: str = "split") -> _Listed:
        del schema
        how = Redistribution.UNION if redistribution == "union" else Redistribution.EVEN
        return _Listed(self._operator.listed(self._uid, stateName, how))

    def getBroadcastState(self, stateName: str, keySchema: Schema, valueSchema: Schema) -> _Broadcast:
        del keySchema, valueSchema
        return _Broadcast(self._operator.broadcast(self._uid, stateName))


class _Bytes:
    """`BytesState`."""

    def __init__(self, state: KeyedValue) -> None:
        self._state = state
        self.exists, self.clear = state.exists, state.clear

    def get(self) -> bytes | None:
        value = self._state.get()
        return None if value is None else value[0]

    def update(self, newValue: bytes) -> None:
        self._state.update((bytes(newValue),))


class _Listed:
    """`OperatorListState`, of the backend's own list."""

    def __init__(self, items: list[Value]) -> None:
        self._items = items

    def get(self) -> Iterator[Value]:
        return iter([*self._items])

    def put(self, newState: list[Value]) -> None:
        self._items[:] = map(tuple, newState)

    def appendValue(self, newState: Value) -> None:
        self._items.append(tuple(newState))

    def clear(self) -> None:
        self._items.clear()


class _Broadcast:
    """`BroadcastState` of the flow, under its names."""

    def __init__(self, state: BroadcastState) -> None:
        self._state = state

    def getValue(self, key: Key) -> Value | None:
        return self._state.get(tuple(key))

    def containsKey(self, key: Key) -> bool:
        return tuple(key) in self._state.entries

    def updateValue(self, key: Key, value: Value) -> None:
        self._state.put(tuple(key), tuple(value))

    def iterator(self) -> Iterator[tuple[Key, Any]]:
        return iter([*self._state.items()])

    def removeKey(self, key: Key) -> None:
        self._state.remove(tuple(key))

    def clear(self) -> None:
        self._state.entries.clear()
