"""State of an operator in a subtask, of no key: lists, and maps that all subtasks have alike.

It is stored whole with every snapshot, so it is for what is small: offsets, rules, a sketch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.engine.state.backend import Key, StateKind, StateSpec, StateTables, Value
from onefold.engine.state.tables import by_sub
from onefold.flow.declaring import as_schema
from onefold.flow.processor import Redistribution, Schema

__all__ = ["Shape", "SubtaskBroadcast", "SubtaskList"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the state `name` of the operator `uid`: tuples of `width` values."""

    uid: str
    name: str
    width: int

    @classmethod
    def of(cls, uid: str, name: str, schema: Schema) -> Shape:
        return cls(uid, name, len(as_schema(schema, f"the state {name!r} of {uid!r}")))

    def checked(self, value: Any) -> Value:
        if not isinstance(value, tuple) or len(value) != self.width:
            raise ConfigError(
                "state-value-shape",
                f"the state {self.name!r} of {self.uid!r} gets {value!r}: its schema asks for a tuple of {self.width}"
                " values",
            )
        return value if type(value) is tuple else tuple(value)

    def checked_key(self, key: Any) -> Key:
        if float in map(type, key):
            raise ConfigError(
                "map-key-float",
                f"the state {self.name!r} of {self.uid!r} gets the key {key!r}: floats are no keys, since some are"
                " equal and differ",
            )
        return self.checked(key)


class SubtaskList:
    """Implements OperatorListState for subtask number `subtask` of `subtasks`. `split` shares the elements out in their
    order, `union` gives all to all. Made after the backend's restore."""

    def __init__(
        self,
        backend: StateTables,
        shape: Shape,
        redistribution: Redistribution = "split",
        subtask: int = 0,
        subtasks: int = 1,
    ) -> None:
        require(0 <= subtask < subtasks, (subtask, subtasks))
        spec = StateSpec(shape.uid, shape.name, StateKind.OPERATOR)
        items = [item for part in backend.earlier(spec) for item in part]
        if redistribution == "split":
            first, end = (len(items) * number // subtasks for number in (subtask, subtask + 1))
            items = items[first:end]
        self._items = items
        self._shape = shape
        backend.operator(spec, lambda: self._items)

    def get(self) -> Iterator[Value]:
        return iter(tuple(self._items))

    def put(self, newState: list[Value]) -> None:
        self._items = [self._shape.checked(value) for value in newState]

    def appendValue(self, newState: Value) -> None:
        self._items.append(self._shape.checked(newState))

    def clear(self) -> None:
        self._items = []


class SubtaskBroadcast:
    """Implements BroadcastState. Every subtask stores it; of the snapshots any has all of it."""

    def __init__(self, backend: StateTables, shape: Shape, key_shape: Shape) -> None:
        spec = StateSpec(shape.uid, shape.name, StateKind.OPERATOR)
        parts = backend.earlier(spec)
        self._entries: dict[Key, Value] = dict(parts[0]) if parts else {}
        self._shape = shape
        self._key_shape = key_shape
        backend.operator(spec, lambda: list(self._entries.items()))

    def getValue(self, key: Key) -> Value | None:
        return self._entries.get(key)

    def containsKey(self, key: Key) -> bool:
        return key in self._entries

    def updateValue(self, key: Key, value: Value) -> None:
        self._entries[self._key_shape.checked_key(key)] = self._shape.checked(value)

    def iterator(self) -> Iterator[tuple[Key, Value]]:
        return iter(by_sub(self._entries.items()))

    def removeKey(self, key: Key) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()
