"""How long the steps of an epoch take, as the process that drives it measures them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from typing import TypeVar

from onefold.core.errors import OnefoldError
from onefold.core.protocol.effects import (
    Commit,
    Decide,
    Effect,
    Pause,
    Protocol,
    ReadLedger,
    RunWriters,
    Verify,
    WriteLedger,
)
from onefold.core.protocol.epoch import Outcome
from onefold.store.epoch_figures import EpochSteps, RunningEpoch

T = TypeVar("T")
_STEPS: dict[type[Effect], str] = {
    RunWriters: "run_s",
    Verify: "decide_s",
    ReadLedger: "decide_s",
    Decide: "decide_s",
    Commit: "commit_s",
    WriteLedger: "commit_s",
}


class StepClock:
    """Measures what one driver does. `last` is of the epoch that has ended last, `running` the one that runs: None
    between epochs, and before it writes."""

    def __init__(self) -> None:
        self.last: EpochSteps | None = None
        self.running: RunningEpoch | None = None
        self._took_s = defaultdict[str, float](float)
        self._since_s = time.monotonic()

    def begin(self) -> None:
        """What was done by now is no epoch's."""
        self.running = None
        self._took_s.clear()
        self._since_s = time.monotonic()

    def timed(self, protocol: Protocol[T]) -> Protocol[T]:
        """The same protocol, whose effects are measured on the way."""
        try:
            effect = next(protocol)
            while True:
                began_s, step = time.monotonic(), _step(effect)
                if self.running is None and isinstance(effect, RunWriters):
                    self.running = RunningEpoch(effect.record.epoch, time.time(), "run")
                if self.running is not None:
                    self.running = replace(self.running, step=step.removesuffix("_s"))
                try:
                    answer = yield effect
                except OnefoldError as error:
                    self._took_s[step] += time.monotonic() - began_s
                    effect = protocol.throw(error)
                else:
                    self._took_s[step] += time.monotonic() - began_s
                    effect = protocol.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            if isinstance(result, Outcome):
                self._end()
            return result

    def _end(self) -> None:
        took = self._took_s
        self.last = EpochSteps(
            wait_s=max(0.0, time.monotonic() - self._since_s - sum(took.values())),
            open_s=took["open_s"],
            run_s=took["run_s"],
            prepare_s=None,
            decide_s=took["decide_s"],
            commit_s=took["commit_s"],
        )
        self.begin()


def _step(effect: Effect) -> str:
    return _STEPS.get(type(effect.waiting_for if isinstance(effect, Pause) else effect), "open_s")
