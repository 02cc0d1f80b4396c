"""Whether and when a flow whose workers failed starts again, from the last decided epoch."""

from __future__ import annotations

import time

from onefold.core.errors import InDoubt, OnefoldError, OutOfResources, Retriable, WorkLost
from onefold.core.restart import Restarts
from onefold.core.waiting import Wait
from onefold.store.epoch_figures import GaveUp

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


class Tracker(Restarts):
    """The failures of one run of a flow. `restarts` counts those after which it went on, `given_up` the runs of epochs
    that they ended, of which `gave_up` is the last."""

    _has_ended = False
    restarts = given_up = 0
    gave_up: GaveUp | None = None

    def end(self) -> None:
        """Also from a signal's handler: nothing is started again any more."""
        self._has_ended = True

    def hold(self, delay_s: float) -> bool:
        """Wait before the next start. False where there is none."""
        wait = Wait(delay_s, LOOK_S, LOOK_S)
        while not self._has_ended and wait.left_s > 0.0:
            wait.pause()
        return not self._has_ended

    def give_up(self, epoch: int, error: OnefoldError) -> float | None:
        """A run of the epoch has failed. Returns as `failed` does."""
        self.given_up += 1
        self.gave_up = GaveUp(epoch, time.time(), f"{error.message} ({error.code})")
        return self.failed()

    def failed(self) -> float | None:
        """How long to wait before the next start; None where there is none."""
        delay_s = self.delay_s(0.0, time.monotonic())
        self.restarts += delay_s is not None
        return delay_s
