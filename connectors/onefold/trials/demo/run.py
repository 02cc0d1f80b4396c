"""The demo from start to end: servers, orders, a pipeline under fire, an audit, one table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from onefold.core.errors import Fenced
from onefold.local import KafkaServer, PostgresServer
from onefold.trials.demo.audit import audit
from onefold.trials.demo.report import Tally, print_report
from onefold.trials.demo.script import Act, Kill, KillPostgres, KillSomewhere, Zombie, script
from onefold.trials.demo.settings import BATCHES, DemoSettings
from onefold.trials.workload.orders import produce
from onefold.trials.workload.processes import JobProcess
from onefold.trials.workload.servers import (
    WorkloadFailed,
    clear,
    create_topic,
    interrupted_once,
    progress_bar,
)
from onefold.trials.workload.settings import PARTITIONS, TOPIC, Job

__all__ = ["run_demo"]

Condition = Callable[[], bool]
REACH_S_MAX = 180.0


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it all. True if nothing was lost, doubled or changed. Stops what it started, also when interrupted."""
    directory = settings.directory.absolute()
    with interrupted_once() as cleanup:
        kafka, postgres = KafkaServer(directory / "servers"), PostgresServer(directory / "servers")
        clear(directory, kafka, postgres)
        with progress_bar(console) as progress:
            cleanup.callback(postgres.stop)
            postgres.start(progress)
            cleanup.callback(kafka.stop)
            kafka.start(progress)
            console.print(f"Kafka at {kafka.bootstrap_servers}, Postgres at {postgres.url}, everything in {directory}")
            _produce(settings, kafka.bootstrap_servers, progress)
        job = Job(
            bootstrap_servers=kafka.bootstrap_servers,
            postgres_url=postgres.url,
            checkpoint=(directory / "checkpoint").as_uri(),
            directory=str(directory),
            deliveries=(settings.delivery,),
            rows_per_batch=max(settings.rows // BATCHES, 1),
            exactly_once=settings.exactly_once,
        )
        play = _Play(job, postgres, console, cleanup)
        for act in script(settings.kills, settings.delivery, settings.seed, settings.exactly_once):
            play.act(act)
        play.finish()
        console.print("The topic is through. Comparing it with the table, row by row ...")
        verification = audit(job, directory)
        print_report(console, settings, play.tally, verification, directory)
        return verification.is_exact


@dataclass
class _Play:
    """The pipeline's processes, one after another."""

    job: Job
    postgres: PostgresServer
    console: Console
    cleanup: ExitStack
    tally: Tally = field(default_factory=Tally)
    _number: int = 0

    def act(self, act: Act) -> None:
        match act:
            case Kill(where, failpoint):
                self._kill_at(where, failpoint)
            case KillSomewhere(after_s):
                self._kill_somewhere(after_s)
            case KillPostgres(where, failpoint):
                self._kill_postgres(where, failpoint)
            case Zombie(failpoint):
                self._zombie(failpoint)

    def finish(self) -> None:
        """Let a process run to the topic's end, unharmed."""
        process = self._start()
        self._await(process, lambda: process.exit_status is not None, "come to the topic's end", timeout_s=1800)
        self._read_outcomes()
        if process.exit_status != 0:
            raise self._failed(process, f"the last process ended with status {process.exit_status}")

    def _kill_at(self, where: str, failpoint: str) -> None:
        process = self._start(failpoint)
        self._await(process, process.is_held, f"reach the place {where!r}")
        process.kill()
        self._killed(where)

    def _kill_somewhere(self, after_s: float) -> None:
        process = self._start()
        self._await_batch(process)
        time.sleep(after_s)
        if process.exit_status is not None:
            raise self._failed(process, "the topic was through before all kills were done: use more --rows")
        process.kill()
        self._killed(f"{after_s:.2f} s after a batch")

    def _kill_postgres(self, where: str, failpoint: str) -> None:
        process = self._start(failpoint)
        self._await(process, process.is_held, f"reach the place {where!r}")
        self.postgres.kill()
        self.tally.postgres_kills += 1
        self.console.print(f"  kill -9  Postgres   {where}")
        self.postgres.start()
        batches = self._read_outcomes()
        process.release()
        self._await(process, lambda: self._read_outcomes() > batches, "go on once Postgres was back")
        process.kill()
        self._killed("after Postgres had come back")

    def _zombie(self, failpoint: str) -> None:
        zombie = self._start(failpoint)
        self._await(zombie, zombie.is_held, "reach its decision")
        zombie.pause()
        successor = self._start()
        self._await_batch(successor)
        zombie.release()
        zombie.wake()
        status = zombie.wait()
        if status != Fenced.exit_code:
            raise self._failed(zombie, f"the woken zombie ended with status {status}, not fenced ({Fenced.exit_code})")
        self.tally.zombies_fenced += 1
        self.console.print("  SIGSTOP  pipeline   before its decision; woken beside its successor: fenced")
        successor.kill()
        self._killed("after its zombie was fenced")

    def _start(self, failpoint: str | None = None) -> JobProcess:
        self._number += 1
        job = Path(self.job.directory) / "job.json"
        self.job.save(job)
        process = JobProcess(job, Path(self.job.directory) / "logs", self._number, failpoint)
        self.cleanup.callback(process.kill)
        return process

    def _await_batch(self, process: JobProcess) -> None:
        batches = self._read_outcomes()
        self._await(process, lambda: self._read_outcomes() > batches, "finish a batch")

    def _await(self, process: JobProcess, condition: Condition, doing: str, timeout_s: float = REACH_S_MAX) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if process.exit_status == 0 and not condition():
                raise self._failed(process, f"the topic was through before the process could {doing}: use more --rows")
            if process.exit_status is not None and not condition():
                raise self._failed(process, f"the process ended with status {process.exit_status}, but had to {doing}")
            if time.monotonic() > deadline_s:
                raise self._failed(process, f"the process did not {doing} within {timeout_s:.0f} s")
            time.sleep(0.02)

    def _read_outcomes(self) -> int:
        """Take over what the processes have told; how many batches that is."""
        path = self.job.outcomes
        lines = path.read_text().splitlines() if path.exists() else []
        self.tally.outcomes = [json.loads(line) for line in lines if line.endswith("}")]
        return len(self.tally.outcomes)

    def _killed(self, where: str) -> None:
        self.tally.kills += 1
        self.console.print(f"  kill -9  pipeline   {where}")

    def _failed(self, process: JobProcess, what: str) -> WorkloadFailed:
        return WorkloadFailed("workload-failed", f"{what}; its log: {process.log}")


def _produce(settings: DemoSettings, bootstrap_servers: str, progress: Progress) -> None:
    create_topic(bootstrap_servers)
    task = progress.add_task(f"{settings.rows:,} orders into Kafka", total=settings.rows)
    produce(
        bootstrap_servers, TOPIC, PARTITIONS, settings.rows, settings.seed, lambda rows: progress.advance(task, rows)
    )
