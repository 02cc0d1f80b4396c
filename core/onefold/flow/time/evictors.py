"""Which rows a window keeps when it fires, as users write it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.flow.time.triggers import difference


class Evictor(ABC):
    """An evictor of one's own: subclass it. What it does not keep is gone for later firings too.

    after  it looks at the rows after the function has had them, and not before
    """

    after: bool = False

    @abstractmethod
    def keeps(self, rows: pa.RecordBatch, times_us: pa.Int64Array) -> pa.BooleanArray:
        """Which rows stay. They are in the order in which they came, at least one; with their times in microseconds."""


@dataclass(frozen=True)
class KeepLast(Evictor):
    """The last rows by their arrival, so many."""

    count: int
    after: bool = False

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise ConfigError("option-value", f"KeepLast({self.count!r:.100}): give a number of rows")

    def keeps(self, rows: pa.RecordBatch, times_us: pa.Int64Array) -> pa.BooleanArray:
        del rows
        gone = max(len(times_us) - self.count, 0)
        return pa.array([False] * gone + [True] * (len(times_us) - gone), pa.bool_())


@dataclass(frozen=True)
class KeepTime(Evictor):
    """The rows whose time is less than the duration before the newest one's."""

    duration: str
    after: bool = False

    def __post_init__(self) -> None:
        if duration_us(self.duration, "KeepTime(duration)") < 1:
            raise ConfigError("option-value", "KeepTime(duration) is longer than nothing")

    def keeps(self, rows: pa.RecordBatch, times_us: pa.Int64Array) -> pa.BooleanArray:
        del rows
        newest: Any = pc.max(times_us)
        return pc.greater(times_us, newest.as_py() - duration_us(self.duration, "duration"))


@dataclass(frozen=True)
class KeepDelta(Evictor):
    """The rows whose value in `column` is less than `threshold` from the last row's. Without a value, or with NaN,
    there is none. Both are as `OnDelta` has them."""

    column: str
    threshold: Any
    after: bool = False

    def keeps(self, rows: pa.RecordBatch, times_us: pa.Int64Array) -> pa.BooleanArray:
        del times_us
        values = rows.column(self.column).to_pylist()
        apart = [difference(value, values[-1]) for value in values]
        return pa.array([each is not None and each < self.threshold for each in apart], pa.bool_())
