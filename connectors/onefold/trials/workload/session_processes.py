"""The processes of a workload as their parent sees them: each leads a session, is stopped, woken and killed with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from onefold.core.failpoints import RELEASED
from onefold.local.process import session_members
from onefold.trials.workload.workload_settings import GATE

EXIT_S_MAX = 180.0


class SessionProcess:
    """A Python module run in a session of its own, with all the processes that it starts. `command` is the module, and
    what it is told."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Also the session's."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float = EXIT_S_MAX) -> int | None:
        """The exit status, or None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        self._process.terminate()

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
        members = session_members(self._process.pid)
        for member in members:
            member.signal(number)
        return len(members)


class JobProcess(SessionProcess):
    """One incarnation of the job: the driver, its JVM and its workers; or a command that moves it.

    `failpoint` names the place where it holds still and waits to be killed, or let go by `release`. A `spare` starts
    its Spark, and then waits for `go`.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        number: int,
        failpoint: str | None = None,
        *,
        is_spare: bool = False,
    ) -> None:
        self.number = number
        self._gate = directory / f"go-{number:02d}"
        self._markers = directory / f"failpoints-{number:02d}"
        self._markers.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        environment.pop("ONEFOLD_FAILPOINT", None)
        if failpoint is not None:
            environment |= {"ONEFOLD_FAILPOINT": failpoint, "ONEFOLD_FAILPOINT_DIR": str(self._markers)}
        environment |= {GATE: str(self._gate)} if is_spare else {}
        super().__init__(command, directory / f"job-{number:02d}.log", environment)

    def go(self) -> None:
        """Let a spare begin its work."""
        self._gate.touch()

    def is_held(self) -> bool:
        """Whether it stands at its failpoint."""
        return bool(self.held())

    def held(self) -> list[int]:
        """The processes of it that stand there."""
        return [int(marker.name.split(".")[-2]) for marker in self._markers.iterdir() if marker.name != RELEASED]

    def release(self) -> None:
        """Let it go on from its failpoint, workers that have not come there yet included."""
        (self._markers / RELEASED).touch()
