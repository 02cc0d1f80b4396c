"""State of an operator in a subtask, of no key: lists, broadcast maps, raw bytes.

It is stored whole with every snapshot, so it is for what is small: offsets, rules, a sketch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, ItemsView

from onefold.core.checks import require
from onefold.engine.state.backend import Key, StateBackend, StateKind, StateSpec, Value

__all__ = ["BroadcastState", "OperatorState", "Redistribution"]


class Redistribution(enum.Enum):
    """What each subtask gets after a restart of the lists that there were."""

    EVEN = "even"  # an equal share of all elements, in order; each goes to one subtask
    UNION = "union"  # all elements, each in every subtask


class OperatorState:
    """The operators' states of one subtask, number `subtask` of `subtasks`; for after the backend's restore."""

    def __init__(self, backend: StateBackend, subtask: int, subtasks: int) -> None:
        require(0 <= subtask < subtasks, (subtask, subtasks))
        self._backend = backend
        self._subtask = subtask
        self._subtasks = subtasks

    def listed(self, uid: str, name: str, redistribution: Redistribution = Redistribution.EVEN) -> list[Value]:
        """A list of tuples, to be changed in place."""
        spec = StateSpec(uid, name, StateKind.OPERATOR)
        items = [item for part in self._backend.earlier(spec) for item in part]
        if redistribution is Redistribution.EVEN:
            first, end = (len(items) * number // self._subtasks for number in (self._subtask, self._subtask + 1))
            items = items[first:end]
        self._backend.operator(spec, lambda: items)
        return items

    def broadcast(self, uid: str, name: str) -> BroadcastState:
        """A map that every subtask has: all are given the same elements to put, in the same order."""
        spec = StateSpec(uid, name, StateKind.OPERATOR)
        parts = self._backend.earlier(spec)
        state = BroadcastState(dict(parts[0]) if parts else {})
        self._backend.operator(spec, lambda: list(state.entries.items()))
        return state

    def raw(self, uid: str, name: str, content: Callable[[], bytes]) -> list[bytes]:
        """Bytes of the operator's own format, which `content` gives at every snapshot. The answer is what all subtasks
        that there were had stored; to share it out is the operator's own matter."""
        spec = StateSpec(uid, name, StateKind.OPERATOR)
        self._backend.operator(spec, lambda: [(content(),)])
        return [part[0][0] for part in self._backend.earlier(spec)]


class BroadcastState:
    """A map of tuples to tuples; an operator changes it only by what the broadcast stream brings."""

    def __init__(self, entries: dict[Key, Value]) -> None:
        self.entries = entries

    def get(self, key: Key) -> Value | None:
        return self.entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        self.entries[key] = value

    def remove(self, key: Key) -> None:
        self.entries.pop(key, None)

    def items(self) -> ItemsView[Key, Value]:
        return self.entries.items()
