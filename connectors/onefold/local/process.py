"""Processes that outlive us, and how to be sure that a process is the one we started.

A pid alone proves nothing: after a crash or a restart of the machine it may belong to anybody. So the state file keeps
the moment of the process's start beside it, and nothing is signalled unless both match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from onefold.core.values.checked import checked
from onefold.core.writing.durable_files import check_owner, opened, write_file
from onefold.local.server_errors import LocalServerError, clear_disk_errors

# The server becomes a child of init: no zombie is left in us, and it lives on when we end. The shell leaves interrupts
# ignored in what it starts in the background, so Ctrl-C in the terminal does not reach it either.
_DETACH = '"$@" >&2 & echo $!'
_KILL_WAIT_S = 20.0
_STATE_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class ProcessRef:
    """One process, not merely a number: `born` tells it from any other that had or will have this pid."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has `pid` now; None if there is none, or only its zombie."""
        if pid <= 0:
            return None
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, _born(process))
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return None

    def alive(self) -> bool:
        return ProcessRef.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, and only to this process."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _born(process: psutil.Process) -> str:
    """On Linux the kernel's own count since boot: psutil's create_time moves whenever the clock is set."""
    stat = Path(f"/proc/{process.pid}/stat")
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if stat.exists() and boot_id.exists():
        started_ticks = stat.read_text().rpartition(")")[2].split()[19]  # field 22 of proc(5); the name may hold blanks
        return f"{boot_id.read_text().strip()}:{started_ticks}"
    return repr(process.create_time())


@dataclass(frozen=True)
class ServerState:
    """A server's state file, `<directory>/<name>.json`. `process` is None once it was stopped; the ports stay."""

    port: int
    log: str
    process: ProcessRef | None = None
    started_at: str | None = None
    second_port: int | None = None
    third_port: int | None = None

    @classmethod
    def load(cls, path: Path) -> ServerState | None:
        """None if there is no file, or one that cannot be read as a state (then nothing is known to be ours). Raises
        ConfigError for a file of another user's, who could name any process in it."""
        check_owner(path)
        try:
            with os.fdopen(opened(path), "rb") as file:
                values = dict(json.loads(file.read(_STATE_BYTES_MAX)))
            process = values.pop("process", None)
            return checked(cls, values | {"process": checked(ProcessRef, process) if process else None})
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return None

    def save(self, path: Path) -> None:
        with clear_disk_errors(path.parent):
            temporary = path.with_suffix(".json.new")
            write_file(temporary, [(json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode()])
            temporary.replace(path)

    def running(self) -> ProcessRef | None:
        return self.process if self.process is not None and self.process.alive() else None


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> ProcessRef:
    """Starts `command` in its own session, with its output at the end of `log` and nothing of ours held open."""
    with clear_disk_errors(log.parent), log.open("ab") as output:
        launched = subprocess.run(
            ["/bin/sh", "-c", _DETACH, "onefold", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            check=False,
            **as_user(user),
        )
    reference = ProcessRef.of(int(launched.stdout)) if launched.stdout.strip().isdigit() else None
    if reference is None:
        raise LocalServerError("server-ended", f"{Path(command[0]).name} ended at once; {log_tail(log)}")
    return reference


def as_user(user: str | None) -> dict[str, Any]:
    """The arguments of `subprocess` that make a child run as `user`, with none of our groups."""
    if user is None:
        return {}
    import pwd

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def wait_gone(processes: Sequence[ProcessRef], timeout_s: float) -> bool:
    """True as soon as all of them have ended; False if one still lives after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def session_members(session: int) -> list[ProcessRef]:
    """All that live in a session: what its leader started, also what has lost its parent since."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and (member := ProcessRef.of(pid)) is not None:
                found.append(member)
        except (ProcessLookupError, PermissionError, psutil.AccessDenied):
            continue
    return found


def children(process: ProcessRef) -> list[ProcessRef]:
    """All that a process started, and what these started."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []
    return [member for child in below if (member := ProcessRef.of(child.pid)) is not None]


def kill_tree(process: ProcessRef) -> None:
    """SIGKILL for a process and its children, and back when they are gone. Nothing if it isn't alive."""
    if not process.alive():
        return
    process.signal(signal.SIGSTOP)  # or a postmaster would answer the loss of its children with new ones
    members = [process, *children(process)]
    for member in members:
        member.signal(signal.SIGKILL)
    if not wait_gone(members, _KILL_WAIT_S):
        raise LocalServerError(
            "process-not-killed", f"process {process.pid} is still there {_KILL_WAIT_S:.0f} s after SIGKILL"
        )


def log_tail(log: Path, lines_max: int = 12) -> str:
    """The end of a log, for a message about the server that wrote it."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-lines_max:]
    except OSError:
        lines = []
    if not lines:
        return f"it left no log in {log}"
    hint = " (the disk is full)" if any("No space left on device" in line for line in lines) else ""
    return f"the end of {log}{hint}:\n" + "\n".join(f"  {line}" for line in lines)
