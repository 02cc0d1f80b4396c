"""Stateful processors, with the interface of Spark's own: one class runs on Spark and on the embedded engine.

Operator and broadcast state are for the embedded engine alone: a flow that asks for them is refused on Spark when it
starts. Bytes are more than Spark's own handle has, and are there on both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from onefold.flow.time.ttl import Ttl

Redistribution = Literal["split", "union"]
Schema: TypeAlias = "pa.Schema | str"  # a DDL text, `total decimal(18,2), orders long`, as Spark takes it


class ValueState(Protocol):
    """One tuple a key."""

    def exists(self) -> bool: ...

    def get(self) -> tuple[Any, ...] | None: ...

    def update(self, newValue: tuple[Any, ...]) -> None: ...

    def clear(self) -> None: ...


class ListState(Protocol):
    """A list of tuples a key."""

    def exists(self) -> bool: ...

    def get(self) -> Iterator[tuple[Any, ...]]: ...

    def put(self, newState: list[tuple[Any, ...]]) -> None: ...

    def appendValue(self, newState: tuple[Any, ...]) -> None: ...

    def appendList(self, newState: list[tuple[Any, ...]]) -> None: ...

    def clear(self) -> None: ...


class MapState(Protocol):
    """A map of tuples to tuples a key."""

    def exists(self) -> bool: ...

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...

    def containsKey(self, key: tuple[Any, ...]) -> bool: ...

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]: ...

    def keys(self) -> Iterator[tuple[Any, ...]]: ...

    def values(self) -> Iterator[tuple[Any, ...]]: ...

    def removeKey(self, key: tuple[Any, ...]) -> None: ...

    def clear(self) -> None: ...


class BytesState(Protocol):
    """Raw bytes a key, which the processor encodes itself."""

    def exists(self) -> bool: ...

    def get(self) -> bytes | None: ...

    def update(self, newValue: bytes) -> None: ...

    def clear(self) -> None: ...


class OperatorListState(Protocol):
    """A list of tuples a subtask, of no key. With other workers at the next start, `split` shares the elements of all
    subtasks out evenly, `union` gives all of them to every subtask."""

    def get(self) -> Iterator[tuple[Any, ...]]: ...

    def put(self, newState: list[tuple[Any, ...]]) -> None: ...

    def appendValue(self, newState: tuple[Any, ...]) -> None: ...

    def clear(self) -> None: ...


class BroadcastState(Protocol):
    """A map of tuples to tuples, of no key, and the same in every subtask: only `handleBroadcastRows` changes it."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...

    def containsKey(self, key: tuple[Any, ...]) -> bool: ...

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]: ...

    def removeKey(self, key: tuple[Any, ...]) -> None: ...

    def clear(self) -> None: ...


class TimerValues(Protocol):
    """The clocks of a call, in milliseconds since 1970. The watermark is below all times while it is not known, and -1
    where timers are of processing time. Rows see the one at the end of the epoch before."""

    def getCurrentProcessingTimeInMs(self) -> int: ...

    def getCurrentWatermarkInMs(self) -> int: ...


class ExpiredTimer(Protocol):
    """The timer of a call, in milliseconds since 1970."""

    def getExpiryTimeInMs(self) -> int: ...


class ProcessorHandle(Protocol):
    """What `init` is given: states by name, and timers of the key that is being handled. `ttlDurationMs` is Spark's own
    word for `ttl=Ttl(...)` of so many milliseconds."""

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> ValueState: ...

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> ListState: ...

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
        ttl: Ttl | None = None,
    ) -> MapState: ...

    def registerTimer(self, expiryTimestampMs: int) -> None: ...

    def deleteTimer(self, expiryTimestampMs: int) -> None: ...

    def listTimers(self) -> Iterator[int]: ...

    def deleteIfExists(self, stateName: str) -> None: ...

    def getBytesState(self, stateName: str, ttlDurationMs: int | None = None, ttl: Ttl | None = None) -> BytesState: ...

    # not on Spark

    def getOperatorListState(
        self, stateName: str, schema: Schema, redistribution: Redistribution = "split"
    ) -> OperatorListState: ...

    def getBroadcastState(self, stateName: str, keySchema: Schema, valueSchema: Schema) -> BroadcastState:
        """Only of a `BroadcastProcessor`."""
        ...


class StatefulProcessor(ABC):
    """Subclass it as Spark's `StatefulProcessor`. Keys are tuples; rows have their columns as attributes, by index and
    by name; what the methods yield are tuples (or dicts) of the columns that `process(..., schema=...)` names, and
    `Side("late", row)` for a side output. `init` only asks for states: it also runs where the flow is built, to learn
    which there are."""

    @abstractmethod
    def init(self, handle: ProcessorHandle) -> None: ...

    @abstractmethod
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]: ...

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimer) -> Iterable[Any]:
        """Nothing, unless a subclass says otherwise."""
        del key, timerValues, expiredTimerInfo
        return ()

    def onSnapshot(self) -> None:  # noqa: B027
        """At the end of each epoch, behind its rows and timers and before its snapshot: put what the processor holds by
        itself into its operator lists, which the next start has again. No key is being handled, so there are no other
        states and no timers, and nothing is emitted. Not on Spark: a flow with it is refused there when it starts."""

    def close(self) -> None:  # noqa: B027
        """Nothing, unless a subclass says otherwise."""


class BroadcastProcessor(StatefulProcessor):
    """A processor of a keyed stream that is connected with a broadcast stream, of rules for one. The rows of the first
    go to `handleInputRows`."""

    @abstractmethod
    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: TimerValues) -> None:
        """Put rows of the broadcast stream into the broadcast state. Every subtask gets all of them, so it emits
        nothing and keeps to what the rows say; no key is being handled, so it has no other state and no timers."""
