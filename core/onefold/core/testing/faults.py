"""Where a simulated driver can be struck, and by what."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from onefold.core.driver import Driver, RunWritersHere
from onefold.core.effects import Effect
from onefold.core.errors import InDoubt, Retriable

__all__ = ["Crash", "Fault", "Points", "StruckDriver"]


class Crash(BaseException):
    """The process dies here: nothing in it runs on, and nothing it has not written survives."""


class Fault(enum.Enum):
    CRASH = "crash"
    RETRIABLE = "retriable"  # an error without effect
    IN_DOUBT = "in doubt"  # before: the request was lost; after: the answer was
    TAKEOVER = "takeover"  # another driver starts and works to the end; then this one, now a zombie, goes on
    LOSE_WORK = "lose work"  # a stage table is emptied by its server's crash; undecided prepared work expires
    SWEEP = "sweep"  # the sweep on a timer runs in the same process, or the one that waits goes on to its end
    SWEEP_HALTS = "sweep halts"  # the sweep on a timer starts, and waits after its first effect


def applies(fault: Fault, point: str, last_resource: bool) -> bool:
    """Whether `fault` can happen at `point`."""
    when, _, step = point.partition(":")
    match fault:
        case Fault.RETRIABLE:
            return step not in SPARK_STEPS and (when == "before" or step == "Merge")
        case Fault.IN_DOUBT:
            return step not in SPARK_STEPS and step != "Merge"
        case Fault.TAKEOVER:
            return step != "Merge"  # the open transaction holds the pipeline's row: another driver would wait
        case Fault.LOSE_WORK:
            return (last_resource and step != "Merge") or point == "after:RunWriters"
        case Fault.SWEEP | Fault.SWEEP_HALTS | Fault.CRASH:
            return True


SPARK_STEPS = ("PlanBatch", "CommitBatch")


class Points:
    """Counts the steps of a run, `before:`, `inside:` and `after:`, and strikes at those the plan names."""

    def __init__(self, plan: Mapping[int, Fault], strike: Callable[[Fault, str], None]) -> None:
        self.plan = dict(plan)
        self.strike = strike
        self.names: list[str] = []
        self.struck: Counter[tuple[Fault, str]] = Counter()

    def reached(self, name: str) -> None:
        self.names.append(name)
        fault = self.plan.get(len(self.names))
        if fault is None:
            return
        self.struck[fault, name] += 1
        match fault:
            case Fault.CRASH:
                raise Crash(name)
            case Fault.RETRIABLE:
                raise Retriable(f"refused at {name}")
            case Fault.IN_DOUBT:
                raise InDoubt(f"no answer at {name}")
            case _:
                self.strike(fault, name)


class StruckDriver(Driver):
    """The real driver, told of each step."""

    points: Points

    def _perform(self, effect: Effect, run_writers: RunWritersHere | None) -> Any:
        name = type(effect).__name__
        self.points.reached(f"before:{name}")
        answer = super()._perform(effect, run_writers)
        self.points.reached(f"after:{name}")
        return answer
