"""Stateful processors, with the interface of Spark's own: one class runs on Spark and on the embedded engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

__all__ = [
    "ExpiredTimer",
    "ListState",
    "MapState",
    "ProcessorHandle",
    "StatefulProcessor",
    "TimerValues",
    "ValueState",
]

Schema = pa.Schema | str  # a DDL text, `total decimal(18,2), orders long`, as Spark takes it


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


class TimerValues(Protocol):
    """The clocks of a call, in milliseconds since 1970; -1 where there is no watermark."""

    def getCurrentProcessingTimeInMs(self) -> int: ...

    def getCurrentWatermarkInMs(self) -> int: ...


class ExpiredTimer(Protocol):
    """The timer of a call, in milliseconds since 1970."""

    def getExpiryTimeInMs(self) -> int: ...


class ProcessorHandle(Protocol):
    """What `init` is given: states by name, and timers of the key that is being handled."""

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState: ...

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState: ...

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> MapState: ...

    def registerTimer(self, expiryTimestampMs: int) -> None: ...

    def deleteTimer(self, expiryTimestampMs: int) -> None: ...

    def listTimers(self) -> Iterator[int]: ...

    def deleteIfExists(self, stateName: str) -> None: ...


class StatefulProcessor(ABC):
    """Subclass it as Spark's `StatefulProcessor`. Keys are tuples; rows have their columns as attributes, by index and
    by name; what the methods yield are tuples (or dicts) of the columns that `process(..., schema=...)` names."""

    @abstractmethod
    def init(self, handle: ProcessorHandle) -> None: ...

    @abstractmethod
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]: ...

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimer) -> Iterable[Any]:
        """Nothing, unless a subclass says otherwise."""
        del key, timerValues, expiredTimerInfo
        return ()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Nothing, unless a subclass says otherwise."""

    def close(self) -> None:
        """Nothing, unless a subclass says otherwise."""
