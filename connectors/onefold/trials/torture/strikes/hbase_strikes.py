"""What is done to HBase: its processes killed and paused, its files written and rewritten under the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.local import LocalServerError
from onefold.trials.torture.fault_plan import PlannedFault
from onefold.trials.torture.strikes.strike import Missed, Struck, hold_at
from onefold.trials.torture.torture_world import TortureWorld
from onefold.trials.workload.workload_settings import ANSWER_S_MAX, TABLE

if TYPE_CHECKING:
    from onefold.local import HBaseServer
    from onefold.testing import HBaseContainer


def kill_hbase(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    return _restart(world, fault, struck, "HBase")


def kill_hbase_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """What was read before is written after: to a region server that has recovered from its log meanwhile."""
    process = hold_at(world, fault.place)
    try:
        return _restart(world, fault, struck, f"HBase, process {process.number} at {fault.place}")
    finally:
        process.release()


def _restart(world: TortureWorld, fault: PlannedFault, struck: Struck, target: str) -> str:
    hbase = _hbase(world)
    struck(target, hbase.status().pid)
    hbase.hbase.kill()
    world.wait_unseeing(fault.hold_s / 2)
    hbase.start()
    return "started again"


def kill_thrift(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    hbase = _hbase(world)
    victim = _chosen(hbase, fault)
    struck(victim.name, victim.status().pid)
    victim.kill()
    world.wait(fault.hold_s)
    hbase.start()
    return "started again"


def pause_thrift(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Its clients may give it up and go to the other one; what they had asked of it is done when it wakes."""
    victim, held_s = _chosen(_hbase(world), fault), ANSWER_S_MAX / 2 + 2 * fault.hold_s
    struck(victim.name, victim.status().pid)
    victim.pause()
    try:
        world.wait_unseeing(held_s)
    finally:
        victim.resume()
    return f"woken after {held_s:.1f} s"


def flush(world: TortureWorld, _fault: PlannedFault, struck: Struck) -> str:
    hbase = _hbase(world)
    _rewrite(hbase, major=False)
    struck(f"table {TABLE}", hbase.status().pid)
    return ""


def compact(world: TortureWorld, _fault: PlannedFault, struck: Struck) -> str:
    hbase = _hbase(world)
    _rewrite(hbase, major=True)
    struck(f"table {TABLE}", hbase.status().pid)
    return ""


def compact_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Between what a driver or a task has read and what it then writes."""
    process = hold_at(world, fault.place)
    try:
        hbase = _hbase(world)
        _rewrite(hbase, major=True)
        struck(f"table {TABLE}, process {process.number} at {fault.place}", hbase.status().pid)
        return ""
    finally:
        process.release()


def _rewrite(hbase: HBaseServer | HBaseContainer, *, major: bool) -> None:
    try:
        hbase.flush(TABLE)
        if major:
            hbase.major_compact(TABLE)
    except LocalServerError as error:
        raise Missed(str(error)) from error


def _chosen(hbase: HBaseServer | HBaseContainer, fault: PlannedFault) -> Any:
    return hbase.thrifts[int(fault.choice * len(hbase.thrifts))]


def _hbase(world: TortureWorld) -> HBaseServer | HBaseContainer:
    assert world.servers.hbase is not None, "the plan knows whether there is one"
    return world.servers.hbase
