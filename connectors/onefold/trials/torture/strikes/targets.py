"""Finds the processes that can be struck, only in sessions that the run itself has started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import psutil

from onefold.local.process import ProcessRef

FLOW = "onefold.trials.workload.flow_job"  # the module that its processes run


class Role(Enum):
    WORKER = "Python worker"
    EXECUTOR = "executor"
    DRIVER_JVM = "driver JVM"
    FORK_SERVER = "fork server"  # the process of a flow that forks its workers


@dataclass(frozen=True, slots=True)
class StrikeTarget:
    role: Role
    process: ProcessRef
    parent: int
    command: str


def role_of(command: Sequence[str], parent: Sequence[str], grandparent: Sequence[str] = ()) -> Role | None:
    """What a process is, by the command lines of its own, its parent and the parent's parent. Spark's daemon that only
    forks workers is none of them. All processes of a flow have one command line: a driver forks a fork server, and that
    the workers."""
    own, above = " ".join(command), " ".join(parent)
    if FLOW in own:
        if FLOW not in above:
            return None  # the driver
        return Role.WORKER if FLOW in " ".join(grandparent) else Role.FORK_SERVER
    if "org.apache.spark.deploy.SparkSubmit" in own:
        return Role.DRIVER_JVM
    if "CoarseGrainedExecutorBackend" in own:
        return Role.EXECUTOR
    if "pyspark.daemon" in own:
        return Role.WORKER if "pyspark.daemon" in above else None
    return Role.WORKER if "python_streaming_source_runner" in own else None


def find(sessions: Iterable[int], *roles: Role) -> list[StrikeTarget]:
    """The processes of these roles, in these sessions, by pid."""
    wanted, seen, parents = set(sessions), dict[int, list[str]](), dict[int, int]()
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in wanted:
                process = psutil.Process(pid)
                seen[pid], parents[pid] = process.cmdline(), process.ppid()
        except (psutil.Error, ProcessLookupError):
            continue
    found = []
    for pid, parent in sorted(parents.items()):
        command, above = seen[pid], seen.get(parents.get(parent, 0), ())
        role, member = role_of(command, seen.get(parent, ()), above), ProcessRef.of(pid)
        if role in roles and role is not None and member is not None:
            found.append(StrikeTarget(role, member, parent, " ".join(command)[-60:]))
    return found
