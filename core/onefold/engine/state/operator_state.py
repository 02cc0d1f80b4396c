"""State of an operator in a subtask, of no key: lists, and maps that all subtasks have alike.

It is stored whole with every snapshot, so it is for what is small: offsets, rules, a sketch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.values.exact import Mismatch, canonical
from onefold.core.values.tuples import Form, copied, has_containers, hashable, with_shortcut
from onefold.engine.state.sharded_tables import by_sub
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, StateTables, Value
from onefold.flow.processing.declaring import as_key_schema, as_schema
from onefold.flow.processing.processor import Redistribution, Schema


class Shape:
    """Of the state `name` of the operator `uid`: `checked` gives tuples the one form that the schema has for them,
    which every backend keeps. A key's has a hash. Raises ConfigError for what is none of the schema's."""

    __slots__ = ("_convert", "_is_key", "_width", "checked", "has_containers", "name", "uid")

    def __init__(self, uid: str, name: str, schema: Schema, *, is_key: bool = False) -> None:
        as_one = as_key_schema if is_key else as_schema
        of = as_one(schema, f"the state {name!r} of {uid!r}")
        self.uid, self.name = uid, name
        self.has_containers = has_containers(of)  # what is given out is then a copy
        self._is_key, self._width = is_key, len(of)
        self._convert = canonical(pa.struct(list(of)))
        self.checked: Form = with_shortcut(of, self._exact)

    def _exact(self, value: Any) -> Value:
        if not isinstance(value, tuple) or len(value) != self._width:
            raise ConfigError(
                "state-value-shape",
                f"the state {self.name!r} of {self.uid!r} gets {value!r:.200}: its schema asks for a tuple of"
                f" {self._width} values",
            )
        try:
            found = tuple(self._convert(tuple(value)).values())
        except Mismatch as error:
            raise ConfigError(
                "state-value-type",
                f"the state {self.name!r} of {self.uid!r} gets a {'key' if self._is_key else 'value'} that is none of"
                f" its schema, {error}. Convert it in the processor, or declare another type",
            ) from error
        return hashable(found) if self._is_key else found


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
        return iter(copied(tuple(self._items)) if self._shape.has_containers else tuple(self._items))

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
        value = self._entries.get(self._key_shape.checked(key))
        return copied(value) if self._shape.has_containers else value

    def containsKey(self, key: Key) -> bool:
        return self._key_shape.checked(key) in self._entries

    def updateValue(self, key: Key, value: Value) -> None:
        self._entries[self._key_shape.checked(key)] = self._shape.checked(value)

    def iterator(self) -> Iterator[tuple[Key, Value]]:
        return iter([(key, copied(value)) for key, value in by_sub(self._entries.items())])

    def removeKey(self, key: Key) -> None:
        self._entries.pop(self._key_shape.checked(key), None)

    def clear(self) -> None:
        self._entries.clear()
