"""The driver's note in the store: which process runs a pipeline, from its start until it closes it.

A process that was killed leaves its note. On the machine where it ran, whether it lives is known; elsewhere it is not.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from onefold.core.contract import Generation
from onefold.core.errors import Fenced, OnefoldError
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pinned

log = logging.getLogger("onefold")

PIN = "driver"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_held = False
_ENDED = ("Z", "X")  # of the states in proc(5): nobody has asked for its exit code yet


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that runs a pipeline under this generation."""

    generation: int
    host: str  # for people
    machine: str  # whose process ids these are: a boot of a machine, and on Linux a container on it
    pid: int
    born: str  # process ids are used again; "" where the system does not tell
    is_held: bool = False  # by a process that starts it again, as a daemon
    socket: str = ""  # where it is asked to hold the pipeline between two epochs

    @classmethod
    def here(cls, generation: int, asked_at: str = "") -> Driver:
        pid = os.getpid()
        return cls(generation, socket.gethostname(), _machine(), pid, _born(pid) or "", _held, asked_at)

    def is_alive(self) -> bool | None:
        """None on another machine, or in another container: nobody here can tell."""
        if self.machine != _machine():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's
        born = _born(self.pid)
        return born is None or born == self.born


def hold() -> None:
    """This process, and what it forks, runs for another one that starts it again where it ends by itself."""
    global _held
    _held = True


class DriverNote:
    """The note of one pipeline's driver, in this process. `opens` opens the socket where it is asked to hold it."""

    def __init__(self, store: CheckpointStore, opens: Callable[[], str] = str) -> None:
        self._store, self._opens = store, opens
        self._noted: tuple[int, Generation] | None = None  # by the process of that id

    def began(self, generation: Generation) -> None:
        """This process runs the pipeline. Raises Fenced where another one has taken it over meanwhile."""
        self._store.note(generation, PIN, json.dumps(asdict(Driver.here(generation.number, self._opens()))))
        if self._noted is None:
            atexit.register(self.ended)  # of a job that does not close its pipeline
        self._noted = os.getpid(), generation

    def ended(self) -> None:
        """It no longer does. Where the store does not answer the note stays: on this machine it says nothing, once the
        process is gone."""
        noted, self._noted = self._noted, None
        if noted is None or noted[0] != os.getpid():
            return  # in a fork of the driver
        atexit.unregister(self.ended)
        try:
            self._store.note(noted[1], PIN, "")
        except Fenced:
            pass  # it is the successor's
        except OnefoldError as error:
            log.warning("the checkpoint store does not know yet that this driver has ended: %s", error)


def driver_of(store: CheckpointStore, pipeline: str, generation: int) -> Driver | None:
    """The driver that has the newest generation, unless it has said that it ended, or is known to be dead."""
    text = pinned(store, pipeline, PIN)
    driver = Driver(**json.loads(text)) if text else None
    if driver is None or driver.generation != generation or driver.is_alive() is False:
        return None  # one of an older generation is fenced, alive or not
    return driver


def _machine() -> str:
    with suppress(OSError):
        return f"{_BOOT_ID.read_text().strip()} {_PIDS.readlink()}"
    return socket.gethostname()


def _born(pid: int) -> str | None:
    """In the kernel's ticks since boot; "" for a process that has ended; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may hold blanks
    except OSError:
        return None
    return "" if fields[0] in _ENDED else fields[19]  # field 22 of proc(5)
