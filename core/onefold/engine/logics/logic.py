"""What every operator is in a subtask: takes batches, and gives back batches for its outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from onefold.core.contract import TaskId
from onefold.core.source import Part
from onefold.flow.time.clocks import ClockStatus, Times

Output: TypeAlias = "tuple[str | None, pa.RecordBatch]"  # of the main output, or of the side output of that name
Input: TypeAlias = "pa.RecordBatch | Part"


class Logic(Protocol):
    """One operator in one subtask. All calls of one epoch come before the first of the next."""

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        """A batch of the input numbered `port`."""
        ...

    def flush(self, task: TaskId) -> Iterable[Output]:
        """All batches of the epoch have been taken: what is emitted once an epoch. Before the state is frozen."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Clocked(Logic, Protocol):
    """One whose clock is the epoch's time, so that an epoch that runs again has the same one."""

    def restored(self) -> None:
        """Its states have other entries now, of other key groups: its timers, too."""
        ...

    def begin(self, task: TaskId) -> None:
        """Before the epoch's first batch."""
        ...

    def timer_ms(self) -> int | None:
        """When the next timer is due, in milliseconds since 1970."""
        ...


@runtime_checkable
class EventTimed(Protocol):
    """One that may go by event time."""

    def advance(self, times: Times, task: TaskId) -> None:
        """Before `flush`: all that the epoch says of event time."""
        ...

    def clock(self) -> ClockStatus | None:
        """None where it does not go by event time."""
        ...


class BaseLogic:
    """What most logics have in common: nothing to flush, and nothing to close."""

    def flush(self, task: TaskId) -> Iterable[Output]:
        del task
        return ()

    def close(self) -> None:
        return
