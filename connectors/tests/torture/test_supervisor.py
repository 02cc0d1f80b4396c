"""What the supervisor makes of a process that ended: started again, unless it was fenced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from onefold.core.errors import DataLoss, Fenced, Retriable
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.supervisor import Supervisor
from onefold.trials.workload.session_processes import JobProcess
from onefold.trials.workload.workload_settings import Job


class Sleeper:
    """A process that ends when the test says so."""

    def __init__(self, command: tuple[str, str], directory: Path, number: int, failpoint: str | None) -> None:
        job = Job.load(Path(command[1]))
        self.job, self.number, self.pid, self.failpoint = job, number, 1_000_000 + number, failpoint
        self.log = directory / f"job-{number}.log"
        self.exit_status: int | None = None

    def kill(self) -> None:
        if self.exit_status is None:
            self.exit_status = -9


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    job = Job("kafka", "postgres", "checkpoint", str(tmp_path), ("two_phase",), 10, exactly_once=True)
    jobs = tuple(replace(job, master=master) for master in ("local[2,4]", "local[2]"))
    history = HistoryLog(tmp_path / "history.jsonl")
    yield Supervisor(jobs, history, launch=cast("Any", Sleeper))
    history.close()


def running(supervisor: Supervisor) -> JobProcess:
    supervisor._not_before_s = 0.0
    supervisor.tick()
    assert supervisor.current is not None
    return supervisor.current


def end(process: JobProcess, status: int) -> None:
    cast("Any", process).exit_status = status


def test_what_ended_is_started_again_as_the_other_job(supervisor: Supervisor) -> None:
    first = running(supervisor)
    end(first, Retriable.exit_code)
    supervisor.tick()
    second = running(supervisor)
    assert (first.number, second.number) == (1, 2)
    assert cast("Any", first).job.master != cast("Any", second).job.master
    assert supervisor.complaints == []
    events = [json.loads(line)["event"] for line in supervisor.history.path.read_text().splitlines()]
    assert events == ["start", "exit", "start"]


def test_a_process_that_ends_with_what_no_fault_explains_is_complained_of(supervisor: Supervisor) -> None:
    end(running(supervisor), DataLoss.exit_code)
    supervisor.tick()
    (complaint,) = supervisor.complaints
    assert f"status {DataLoss.exit_code}" in complaint


def test_a_kill_is_no_surprise(supervisor: Supervisor) -> None:
    running(supervisor)
    supervisor.kill()
    assert supervisor.current is None
    assert running(supervisor).number == 2
    assert supervisor.complaints == []
    assert supervisor.exits == {"current killed": 1}


def test_a_fenced_process_yields_to_the_zombie_that_fenced_it(supervisor: Supervisor) -> None:
    zombie = running(supervisor)
    supervisor.make_zombie(zombie)
    successor = running(supervisor)
    end(successor, Fenced.exit_code)
    supervisor.tick()
    assert supervisor.current is zombie
    assert supervisor.complaints == []


def test_a_fenced_zombie_is_let_go_and_its_successor_stays(supervisor: Supervisor) -> None:
    zombie = running(supervisor)
    supervisor.make_zombie(zombie)
    successor = running(supervisor)
    end(zombie, Fenced.exit_code)
    supervisor.tick()
    assert supervisor.current is successor
    assert supervisor.zombies == []
    assert supervisor.exits == {"zombie fenced": 1}


def test_a_process_that_is_fenced_by_nobody_is_complained_of(supervisor: Supervisor) -> None:
    end(running(supervisor), Fenced.exit_code)
    supervisor.tick()
    (complaint,) = supervisor.complaints
    assert "there was nobody else" in complaint
