"""Whether and when a flow whose workers failed starts again, from the last decided epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onefold.core.errors import InDoubt, OnefoldError, OutOfResources, Retriable, WorkLost
from onefold.core.waiting import Wait

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NeedsStart",
    "Restarts",
    "Tracker",
    "WorkerFailed",
    "judged",
]

LOOK_S = 0.1
# A process of the worker's own has failed, or a function of the flow: no server.
_WITHIN = frozenset({"parser-died", "parser-timeout", "operator-failed"})


class WorkerFailed(Retriable):
    """A worker is lost, or a function of the flow has raised: restarts are for these. A server that is down is waited
    for instead, as long as there is patience."""


class NeedsStart(OnefoldError):
    """To run the epoch again is of no use before the driver has started again, which opens the sinks anew."""

    exit_code = Retriable.exit_code


_CHANGED = frozenset({"table-altered", "topic-disappeared"})


def judged(error: OnefoldError) -> OnefoldError:
    """What a worker's error is to the driver: WorkerFailed is counted by the restarts, OutOfResources is waited for,
    NeedsStart has the driver start again, and any other ends the flow."""
    if error.code in _WITHIN or isinstance(error, WorkLost):
        return error.retyped(WorkerFailed)
    if error.code in _CHANGED:
        return error.retyped(NeedsStart)
    if isinstance(error, Retriable | InDoubt) and not isinstance(error, WorkerFailed):
        return error.retyped(OutOfResources)  # in doubt is only what a worker prepared, and no manifest will name
    return error


class Restarts(Protocol):
    """A restart strategy."""

    def delay_s(self, failed_s: Sequence[float], in_a_row: int) -> float | None:
        """How long to wait before the next start; None where there is none. `failed_s` are the times of the last
        failures on the monotonic clock, the newest last; `in_a_row` of them are since the last complete epoch."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts in a row, each after `delay_s` seconds. An epoch that completes begins a new row."""

    attempts: int = 3
    delay_s_each: float = 1.0

    def delay_s(self, failed_s: Sequence[float], in_a_row: int) -> float | None:
        del failed_s
        return self.delay_s_each if in_a_row <= self.attempts else None


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Restarts without end; the delay doubles from `first_s` to `max_s`, and is `first_s` again after an epoch that
    completes."""

    first_s: float = 0.1
    max_s: float = 60.0

    def delay_s(self, failed_s: Sequence[float], in_a_row: int) -> float | None:
        del failed_s
        return float(min(self.first_s * 2.0 ** min(in_a_row - 1, 30), self.max_s))


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts after `delay_s` seconds, as long as no more than `failures_max` failures fall in `within_s` seconds."""

    failures_max: int = 10
    within_s: float = 300.0
    delay_s_each: float = 1.0

    def delay_s(self, failed_s: Sequence[float], in_a_row: int) -> float | None:
        del in_a_row
        recent = [at for at in failed_s if at > failed_s[-1] - self.within_s]
        return self.delay_s_each if len(recent) <= self.failures_max else None


class Tracker:
    """The failures of one run of a flow."""

    KEPT = 1000

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts
        self._failed_s: list[float] = []
        self._in_a_row = 0
        self._has_ended = False

    def end(self) -> None:
        """Also from a signal's handler: nothing is started again any more."""
        self._has_ended = True

    def hold(self, delay_s: float) -> bool:
        """Wait before the next start. False where there is none."""
        wait = Wait(delay_s, LOOK_S, LOOK_S)
        while not self._has_ended and wait.left_s > 0.0:
            wait.pause()
        return not self._has_ended

    def failed(self) -> float | None:
        """How long to wait before the next start; None where there is none."""
        self._failed_s = [*self._failed_s, time.monotonic()][-self.KEPT :]
        self._in_a_row += 1
        return self._restarts.delay_s(self._failed_s, self._in_a_row)

    def completed(self) -> None:
        self._in_a_row = 0
