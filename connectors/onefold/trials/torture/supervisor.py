"""Keeps the pipeline running as an operator's supervisor would: started again whatever it died of, unless fenced."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.core.errors import Fenced, InDoubt, Retriable
from onefold.trials.torture.history import HistoryLog
from onefold.trials.workload.session_processes import JobProcess
from onefold.trials.workload.workload_settings import Job

RESTARTED = frozenset({Retriable.exit_code, InDoubt.exit_code})  # what a struck pipeline may say for itself
QUICK_S = 5.0  # a process that ended sooner is started again a little later


@dataclass
class Supervisor:
    """One current process, and the zombies that were replaced while they were paused."""

    jobs: tuple[Job, ...]  # taken in turns: with task retries and without; of a flow, with more workers and fewer
    history: HistoryLog
    zombies: list[JobProcess] = field(default_factory=list)
    exits: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    current: JobProcess | None = None
    launch: Callable[[Sequence[str], Path, int, str | None], JobProcess] = JobProcess
    is_off: bool = False
    _number: int = 0
    _started_s: float = 0.0
    _not_before_s: float = 0.0
    _halves: list[JobProcess] = field(default_factory=list)  # a part of each was left alive on purpose
    _expected: set[int] = field(default_factory=set)  # processes that were struck themselves

    @property
    def sessions(self) -> list[int]:
        """Those of all processes that live, in the order in which they were started."""
        processes = [*self.zombies, *([self.current] if self.current else [])]
        return [process.pid for process in processes if process.exit_status is None]

    def start(self, place: str | None = None) -> JobProcess:
        """A process of the pipeline, beside any other. It is the current one from now on."""
        job = self.jobs[(self._number + 1) % len(self.jobs)]
        path = Path(job.directory) / "job.json"
        job.save(path)
        self.current = process = self.beside((job.module, str(path)), place)
        self._started_s = time.monotonic()
        self.history.write("start", process=self._number, pid=process.pid, place=place)
        return process

    def beside(self, command: Sequence[str], place: str | None = None) -> JobProcess:
        """A process that nobody looks after."""
        self._number += 1
        return self.launch(command, Path(self.jobs[0].directory) / "logs", self._number, place)

    def kill(self) -> JobProcess | None:
        """SIGKILL for all of the current process; it is not started again before the next tick."""
        process = self.current
        if process is not None:
            self.struck(process)
            process.kill()
            self._ended(process, "current")
            self.current = None
        return process

    def struck(self, process: JobProcess) -> None:
        """What it says when it ends is no surprise any more."""
        self._expected.add(process.number)

    def spare(self, process: JobProcess) -> None:
        """What it says counts again: it was only held, and what comes now is no excuse."""
        self._expected.discard(process.number)

    def leave_half(self, process: JobProcess) -> None:
        """A part of it was killed: what is left lives on beside the next process, until `end_halves`."""
        self.struck(process)
        self._halves.append(process)

    def end_halves(self) -> None:
        for process in self._halves:
            process.kill()
        self._halves.clear()

    def make_zombie(self, process: JobProcess) -> None:
        """Set a paused process aside, so that a successor can be started."""
        assert process is self.current
        self.struck(process)
        self.zombies.append(process)
        self.current = None

    def tick(self) -> None:
        """Look after everybody. To be called often."""
        for zombie in [z for z in self.zombies if z.exit_status is not None]:
            self.zombies.remove(zombie)
            self._ended(zombie, "zombie")
            zombie.kill()
        process, now_s = self.current, time.monotonic()
        if process is not None and process.exit_status is not None:
            self.current = None
            status = self._ended(process, "current")
            if process not in self._halves:
                process.kill()  # what its JVM may have left
            self._not_before_s = now_s + (2.0 if now_s - self._started_s < QUICK_S else 0.0)
            if status == Fenced.exit_code:
                self._after_fencing(process)
        if self.current is None and not self.is_off and now_s >= self._not_before_s:
            self.start()

    def kill_all(self) -> None:
        self.is_off = True
        self.end_halves()
        for zombie in self.zombies:
            zombie.kill()
        self.kill()

    def _after_fencing(self, process: JobProcess) -> None:
        """Fenced is not restarted: whoever fenced it runs. That is a zombie that had not taken over when it slept."""
        if self.zombies:
            self.current = self.zombies.pop()
        elif process.number not in self._expected:
            self.complaints.append(f"process {process.number} was fenced, and there was nobody else; log {process.log}")

    def _ended(self, process: JobProcess, role: str) -> int:
        status = process.exit_status
        assert status is not None
        self.history.write("exit", process=process.number, pid=process.pid, status=status, role=role)
        name = {Fenced.exit_code: "fenced", -9: "killed"}.get(status, str(status))
        self.exits[f"{role} {name}"] += 1
        fine = RESTARTED | {Fenced.exit_code}
        if status not in fine and process.number not in self._expected:
            self.complaints.append(f"process {process.number} ended with status {status}; log {process.log}")
        return status
