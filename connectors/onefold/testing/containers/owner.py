"""Who made a container: labels that name the process, by which leftovers of dead processes are found and removed."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

from onefold.local.process import ProcessRef

SESSION_LABEL = "onefold.session"
OWNER_LABEL = "onefold.owner"
_SESSION = uuid.uuid4().hex[:12]


def labels() -> dict[str, str]:
    """Of everything that this process makes: its session, and the process itself."""
    process = ProcessRef.of(os.getpid())
    assert process is not None, "this process lives"
    return {
        SESSION_LABEL: f"{_SESSION}-{os.getpid()}",
        OWNER_LABEL: f"{_machine()} {process.pid} {process.born}",
        **_more_labels(),
    }


def is_left_over(owner: str) -> bool:
    """True if the process that this label names was on this machine, and has ended."""
    machine, pid, born = owner.split(" ", 2)
    return machine == _machine() and not ProcessRef(int(pid), born).alive()


def _machine() -> str:
    """Where a pid means something: containers may share a host's name, but see other processes than it does."""
    pids = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()}/{pids.readlink() if pids.exists() else ''}"


def _more_labels() -> dict[str, str]:
    """ONEFOLD_LABELS, `name=value,name=value`: for those who share an engine with others."""
    given = os.environ.get("ONEFOLD_LABELS", "")
    return dict(pair.split("=", 1) for pair in given.split(",") if "=" in pair)
