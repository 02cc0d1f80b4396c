"""The pipeline's process as the demo sees it: started in a session of its own, held, stopped, woken and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

__all__ = ["JobProcess"]

EXIT_S_MAX = 180.0


class JobProcess:
    """One incarnation of the job: the driver, its JVM and its workers, all in one session.

    `failpoint` names the place where it holds still and waits to be killed, or let go by `release`.
    """

    def __init__(self, job: Path, directory: Path, number: int, failpoint: str | None = None) -> None:
        self.log = directory / f"job-{number:02d}.log"
        self._markers = directory / f"failpoints-{number:02d}"
        self._markers.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        environment.pop("ONEFOLD_FAILPOINT", None)
        if failpoint is not None:
            environment |= {"ONEFOLD_FAILPOINT": failpoint, "ONEFOLD_FAILPOINT_DIR": str(self._markers)}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onefold.connectors.demo.job", str(job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def is_held(self) -> bool:
        """Whether it stands at its failpoint."""
        return any(self._markers.iterdir())

    def release(self) -> None:
        """Let it go on from its failpoint."""
        for marker in self._markers.iterdir():
            marker.unlink()

    def wait(self, timeout_s: float = EXIT_S_MAX) -> int | None:
        """The exit status, or None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def pause(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of its session, and to nothing else."""
        deadline_s = time.monotonic() + 10
        while self._signal_all(signal.SIGKILL) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        self._process.wait()

    def _signal_all(self, number: signal.Signals) -> int:
        """Signal all that live in the session that this process leads; how many they were."""
        found = 0
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    process.send_signal(number)
                    found += 1
            except (ProcessLookupError, psutil.NoSuchProcess, PermissionError, psutil.AccessDenied):
                continue
        return found
