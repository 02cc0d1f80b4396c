"""Where a program runs: on subtasks of the engine with one of its backends, on Spark's tables, and on plain dicts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from harness.state_law.samples import REFUSED, Sample

from onefold.core.errors import ConfigError
from onefold.engine.key_groups import group_of, key_groups_of_subtask, subtask_of
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.handles import KeyedHandle
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow import Ttl
from onefold.spark.flows.state import SparkTables

__all__ = ["BACKENDS", "GROUPS", "Engine", "Model", "OnSpark", "States", "World"]

GROUPS = 8
Make = Callable[[Storage, int, str], StateBackend]


class States:
    """What a processor has asked for. `shared` ones, of no key, are not on Spark."""

    def __init__(
        self, backend: Any, key_schema: str, schema: str, ttl: Ttl | None, shared: tuple[int, int] | None
    ) -> None:
        self.expiry = Expiry("law", backend)
        index, subtasks = shared or (0, 1)
        self.handle = handle = KeyedHandle("law", backend, self.expiry, subtask=index, subtasks=subtasks)
        self.value = handle.getValueState("value", schema, ttl=ttl)
        self.list = handle.getListState("list", schema, ttl=ttl)
        self.map = handle.getMapState("map", key_schema, schema, ttl=ttl)
        self.bytes = handle.getBytesState("bytes", ttl=ttl)
        if shared:
            self.items = handle.getOperatorListState("items", schema)
            self.rules = handle.getBroadcastState("rules", key_schema, schema)


class World(Protocol):
    def take(self, sample: Sample) -> Any:
        """A sample, as the processor gives it."""
        ...

    def at(self, key: Any) -> States:
        """The states, of that key."""
        ...

    def everyone(self) -> list[States]: ...

    def fire(self, up_to_ms: int) -> list[Any]:
        """The timers that have expired, of all keys."""
        ...

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        """An epoch begins, for states with a time to live."""
        ...

    def cut(self) -> None:
        """An epoch ends, and is decided."""
        ...

    def restart(self, subtasks: int, ttl: Ttl | None = None) -> None:
        """From the last cut, with states that live so long."""
        ...

    def close(self) -> None: ...


def of_memory(storage: Storage, generation: int, folder: str) -> StateBackend:
    del folder
    return MemoryBackend(storage, generation, GROUPS, copies_max=5, logged_min=6)


def of_rocks(storage: Storage, generation: int, folder: str) -> StateBackend:
    return RocksBackend(storage, generation, GROUPS, folder=folder, changes_max=4)


BACKENDS: dict[str, Make] = {"memory": of_memory, "rocksdb": of_rocks}


class Engine:
    """Implements World."""

    def __init__(self, make: Make, folder: Path, schemas: tuple[str, str]) -> None:
        self._make, self._folder, self._schemas = make, str(folder), schemas
        self._storage = Storage(str(folder / "checkpoints"), "law")
        self._epoch, self._generation, self._handles = 0, 0, list[str]()
        self._backends: list[StateBackend] = []
        self.restart(1)

    def take(self, sample: Sample) -> Any:
        return copy.deepcopy(sample.given)

    def at(self, key: Any) -> States:
        states = self._states[subtask_of(group_of(key, GROUPS), len(self._states), GROUPS)]
        states.handle.key = key
        return states

    def everyone(self) -> list[States]:
        return self._states

    def fire(self, up_to_ms: int) -> list[Any]:
        return [fired for states in self._states for fired in states.handle.timers.pop_expired(up_to_ms)]

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        for states in self._states:
            states.expiry.begin(now_ms, watermark_ms)

    def cut(self) -> None:
        for states in self._states:
            states.expiry.sweep()
        self._epoch += 1
        self._handles = [backend.freeze(self._epoch).store() for backend in self._backends]

    def restart(self, subtasks: int, ttl: Ttl | None = None) -> None:
        self.close()
        self._generation += 1
        for index in range(subtasks):
            backend = self._make(self._storage, self._generation, self._folder)
            backend.restore(self._handles, key_groups_of_subtask(index, subtasks, GROUPS))
            self._backends.append(backend)
        self._states = [
            States(backend, *self._schemas, ttl, (index, subtasks)) for index, backend in enumerate(self._backends)
        ]
        for states in self._states:
            states.expiry.restored()

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
        self._backends = []


class OnSpark:
    """Implements World: Spark gives the state of one group at a time, and keeps what a turn has stored."""

    def __init__(self, schemas: tuple[str, str]) -> None:
        self._schemas = schemas
        self._clocks: tuple[int, int | None] = 0, None
        self._kept: dict[tuple[str, int], dict[Any, Any]] = {}  # of Spark's map states, by name and group
        self._decided: dict[tuple[str, int], dict[Any, Any]] = {}
        self._group: int | None = None
        self.restart(1)

    def take(self, sample: Sample) -> Any:
        return copy.deepcopy(sample.given)

    def at(self, key: Any) -> States:
        self._turn(group_of(key, GROUPS))
        self._states.handle.key = key
        return self._states

    def everyone(self) -> list[States]:
        return []

    def fire(self, up_to_ms: int) -> list[Any]:
        found = []
        for group in range(GROUPS):
            self._turn(group)
            found += self._states.handle.timers.pop_expired(up_to_ms)
        return found

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        self._turn(None)
        self._clocks = now_ms, watermark_ms

    def cut(self) -> None:
        for group in range(GROUPS):
            self._turn(group)
            self._states.expiry.sweep()
        self._turn(None)
        self._decided = copy.deepcopy(self._kept)

    def restart(self, subtasks: int, ttl: Ttl | None = None) -> None:
        del subtasks
        self._kept, self._group, self._clocks = copy.deepcopy(self._decided), None, (0, None)
        self._tables = SparkTables(self)  # type: ignore[arg-type]  # of a handle it asks for maps alone
        self._states = States(self._tables, *self._schemas, ttl, None)

    def close(self) -> None:
        return

    def _turn(self, group: int | None) -> None:
        if group != self._group:
            if self._group is not None:
                self._tables.store()
            self._group = group
            if group is not None:
                self._tables.begin()
                self._states.handle.restored()
                self._states.expiry.restored()
                self._states.expiry.begin(*self._clocks)

    # of Spark's handle

    def getMapState(self, name: str, key_schema: str, schema: str) -> Any:  # noqa: N802
        del key_schema, schema
        return _SparkMap(lambda: self._kept.setdefault((name, self._group or 0), {}))


class _SparkMap:
    """What Spark's MapState does: what goes in and comes out is pickled on its way."""

    def __init__(self, entries: Callable[[], dict[Any, Any]]) -> None:
        self._entries = entries

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return copy.deepcopy(self._entries().get(key))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self._entries()[copy.deepcopy(key)] = copy.deepcopy(value)

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self._entries().pop(key, None)

    def exists(self) -> bool:
        return bool(self._entries())

    def iterator(self) -> Iterator[Any]:
        return iter(copy.deepcopy([*self._entries().items()]))


class Model:
    """Implements World: dicts of the values' forms, which are copied wherever they go in or come out."""

    def __init__(self) -> None:
        self._now: dict[str, dict[Any, Any]] = {}
        self._decided: dict[str, dict[Any, Any]] = {}
        self.key: Any = None
        self._states = _ModelStates(self)

    def take(self, sample: Sample) -> Any:
        if sample.form is REFUSED:
            raise ConfigError("state-value-type", "refused")
        return copy.deepcopy(sample.form)

    def at(self, key: Any) -> Any:
        self.key = key
        return self._states

    def everyone(self) -> list[Any]:
        return [self._states]

    def fire(self, up_to_ms: int) -> list[Any]:
        timers = self.of("timers")
        fired = [(at_ms, key) for key, times in timers.items() for at_ms in times if at_ms <= up_to_ms]
        for at_ms, key in fired:
            timers[key].discard(at_ms)
        return fired

    def cut(self) -> None:
        self._decided = copy.deepcopy(self._now)

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        del now_ms, watermark_ms

    def restart(self, subtasks: int, ttl: Ttl | None = None) -> None:
        del subtasks, ttl
        self._now = copy.deepcopy(self._decided)

    def close(self) -> None:
        return

    def of(self, state: str) -> dict[Any, Any]:
        return self._now.setdefault(state, {})


class _ModelStates:
    def __init__(self, model: Model) -> None:
        self.handle = _ModelTimers(model)
        self.value, self.bytes = _ModelValue(model, "value"), _ModelValue(model, "bytes")
        self.list, self.items = _ModelList(model, "list", False), _ModelList(model, "items", True)
        self.map, self.rules = _ModelMap(model, "map", False), _ModelMap(model, "rules", True)


class _ModelState:
    def __init__(self, model: Model, name: str, is_shared: bool = False) -> None:
        self._model, self._name, self._is_shared = model, name, is_shared

    @property
    def _key(self) -> Any:
        return None if self._is_shared else self._model.key

    @property
    def _all(self) -> dict[Any, Any]:
        return self._model.of(self._name)

    def exists(self) -> bool:
        return bool(self._all.get(self._key))

    def clear(self) -> None:
        self._all.pop(self._key, None)


class _ModelValue(_ModelState):
    def get(self) -> Any:
        return copy.deepcopy(self._all.get(self._key))

    def update(self, value: Any) -> None:
        self._all[self._key] = copy.deepcopy(value)

    def exists(self) -> bool:
        return self._key in self._all


class _ModelList(_ModelState):
    def get(self) -> Iterator[Any]:
        return iter(copy.deepcopy(self._all.get(self._key, [])))

    def put(self, values: list[Any]) -> None:
        self._all[self._key] = copy.deepcopy(values)

    def appendValue(self, value: Any) -> None:  # noqa: N802
        self._all.setdefault(self._key, []).append(copy.deepcopy(value))

    def appendList(self, values: list[Any]) -> None:  # noqa: N802
        self._all.setdefault(self._key, []).extend(copy.deepcopy(values))


class _ModelMap(_ModelState):
    @property
    def _mine(self) -> dict[Any, Any]:
        mine: dict[Any, Any] = self._all.setdefault(self._key, {})
        return mine

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return copy.deepcopy(self._mine.get(key))

    def containsKey(self, key: Any) -> bool:  # noqa: N802
        return key in self._mine

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self._mine[key] = copy.deepcopy(value)

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self._mine.pop(key, None)

    def iterator(self) -> Iterator[Any]:
        return iter(copy.deepcopy([*self._mine.items()]))


class _ModelTimers:
    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def _mine(self) -> set[int]:
        times: set[int] = self._model.of("timers").setdefault(self._model.key, set())
        return times

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        self._mine.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:  # noqa: N802
        self._mine.discard(at_ms)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return iter(sorted(self._mine))
