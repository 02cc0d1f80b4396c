"""Finds the processes that can be struck, only in sessions that the run itself has started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import psutil

from onefold.local.process import ProcessRef

__all__ = ["Role", "Target", "children", "find", "role_of"]


class Role(Enum):
    WORKER = "Python worker"
    EXECUTOR = "executor"
    DRIVER_JVM = "driver JVM"


@dataclass(frozen=True, slots=True)
class Target:
    role: Role
    process: ProcessRef
    parent: int
    command: str


def role_of(command: Sequence[str], parent: Sequence[str]) -> Role | None:
    """What a process is, by its own command line and its parent's. A daemon that only forks workers is none of them."""
    own, above = " ".join(command), " ".join(parent)
    if "org.apache.spark.deploy.SparkSubmit" in own:
        return Role.DRIVER_JVM
    if "CoarseGrainedExecutorBackend" in own:
        return Role.EXECUTOR
    if "pyspark.daemon" in own:
        return Role.WORKER if "pyspark.daemon" in above else None
    return Role.WORKER if "python_streaming_source_runner" in own else None


def find(sessions: Iterable[int], *roles: Role) -> list[Target]:
    """The processes of these roles, in these sessions, by pid."""
    wanted, seen = set(sessions), dict[int, list[str]]()
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in wanted:
                seen[pid] = psutil.Process(pid).cmdline()
        except (psutil.Error, ProcessLookupError):
            continue
    found = []
    for pid, command in sorted(seen.items()):
        try:
            parent = psutil.Process(pid).ppid()
        except psutil.Error:
            continue
        role, process = role_of(command, seen.get(parent, ())), ProcessRef.of(pid)
        if role in roles and role is not None and process is not None:
            found.append(Target(role, process, parent, " ".join(command)[-60:]))
    return found


def children(process: ProcessRef) -> list[ProcessRef]:
    """All that a process started, and what these started."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []
    return [member for child in below if (member := ProcessRef.of(child.pid)) is not None]
