"""What all strikes share: their type, the error Missed, and a driver that is held at a failpoint."""

from __future__ import annotations

from collections.abc import Callable

from onefold.trials.torture.fault_plan import PlannedFault
from onefold.trials.torture.torture_world import TortureWorld
from onefold.trials.workload.session_processes import JobProcess

FIND_S_MAX = 40.0  # a driver may just be starting
PLACE_S_MAX = 240.0  # a start takes 20 s, or minutes on a machine that does other things too
Struck = Callable[[str, int | None], None]  # called with the target and its pid at the moment of the fault
Strike = Callable[[TortureWorld, PlannedFault, Struck], str]  # returns details for the history, once the fault is over


class Missed(Exception):
    """There was nothing to strike. The message says why."""


def hold_at(world: TortureWorld, place: str | None) -> JobProcess:
    """A process of the pipeline, started anew, that stands at this failpoint. Raises Missed."""
    world.supervisor.kill()
    process = world.supervisor.start(place)
    world.supervisor.struck(process)
    reached = world.wait_until(lambda: process.is_held() or process.exit_status is not None, PLACE_S_MAX)
    if not reached or process.exit_status is not None:
        if world.supervisor.current is process:
            world.supervisor.kill()
        raise Missed(f"{place} was not reached")
    return process
