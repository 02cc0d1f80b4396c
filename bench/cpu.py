"""CPU time of a process and of everything below it, and what these write; also of those that have ended meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import cache

import psutil

__all__ = ["cpu_s", "server_cpu_s", "written_bytes"]

_INTERVAL_S = 0.2


def cpu_s(pid: int | None) -> float:
    """CPU seconds of a process and of all below it, as far as they were seen since the first call for that process.

    It never falls: the kernel adds an ended child's time to a parent that waits for it, but Spark's worker factories
    don't wait, so that a difference of what the living have used can be negative. Here each is sampled, and what it had
    used when it was last seen counts on. Of an ended process up to 0.2 s are missed.
    """
    return 0.0 if pid is None else _meter(pid).read_s()


def written_bytes(pid: int | None) -> int:
    """Bytes that a process and all below it had the system write to storage, seen as by `cpu_s`."""
    return 0 if pid is None else _meter(pid).read_bytes()


def server_cpu_s(pid: int | None) -> float:
    """CPU seconds of a server and of all below it, to the last: for one whose processes wait for those that they start,
    as Postgres does. 0 where there is no pid."""
    if pid is None:
        return 0.0
    root, used_s = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


@cache
def _meter(pid: int) -> _Meter:
    return _Meter(pid)


class _Meter:
    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._used_s: dict[psutil.Process, float] = {}  # psutil tells a reused pid apart by its start
        self._written: dict[psutil.Process, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._sample_on, name="cpu-meter", daemon=True).start()

    def read_s(self) -> float:
        with self._lock:
            self._sample()
            return sum(self._used_s.values())

    def read_bytes(self) -> int:
        with self._lock:
            self._sample()
            return sum(self._written.values())

    def _sample_on(self) -> None:
        while self._root.is_running():
            time.sleep(_INTERVAL_S)
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._used_s[process] = times.user + times.system
                    self._written[process] = process.io_counters().write_bytes
