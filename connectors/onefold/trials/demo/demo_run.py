"""The demo from start to end: servers, orders, a pipeline under fire, an audit, one table."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from onefold.core.errors import Fenced
from onefold.local import KafkaServer, PostgresServer
from onefold.report.page import page
from onefold.trials.demo.audit import audit
from onefold.trials.demo.demo_settings import DemoSettings
from onefold.trials.demo.script import Act, Kill, KillPostgres, KillSomewhere, Zombie, failpoints, script
from onefold.trials.demo.summary_table import DemoTally, StrikeReport, print_report, report
from onefold.trials.heartbeat import heartbeat, said_of
from onefold.trials.workload.orders import produce
from onefold.trials.workload.run_setup import (
    WorkloadFailed,
    clear,
    create_topic,
    interrupted_once,
    progress_bar,
    report_file,
)
from onefold.trials.workload.session_processes import JobProcess
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC, Job

Condition = Callable[[], bool]
REACH_S_MAX = 600.0  # for the first place; after that, the machine's own pace counts
PACES_MAX = 10.0
REACH_S_MIN = 120.0


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it all. True if nothing was lost, doubled or changed. Stops what it started, also when interrupted.

    Where it can't do to the pipeline what it set out to do, it compares what there is, and the answer is False.
    """
    directory = settings.directory.absolute()
    file = report_file(directory, settings.html)
    with interrupted_once() as cleanup:
        kafka, postgres = KafkaServer(directory / "servers"), PostgresServer(directory / "servers")
        clear(directory, kafka, postgres)
        with progress_bar(console) as progress, heartbeat(console, lambda: said_of(progress)):
            cleanup.callback(postgres.stop)
            postgres.start(progress)
            cleanup.callback(kafka.stop)
            kafka.start(progress)
            where = f"Kafka at {kafka.bootstrap_servers}, Postgres at {postgres.url}, everything in {directory}"
            console.print(where, soft_wrap=True)
            _produce(settings, kafka.bootstrap_servers, progress)
        job = Job(
            bootstrap_servers=kafka.bootstrap_servers,
            postgres_url=postgres.url,
            checkpoint=(directory / "checkpoint").as_uri(),
            directory=str(directory),
            deliveries=(settings.delivery,),
            rows_per_batch=max(settings.rows // settings.batches, 1),
            exactly_once=settings.exactly_once,
        )
        acts = script(settings.kills, settings.delivery, settings.seed, settings.exactly_once)
        play = _Play(job, postgres, console, cleanup, deque([*failpoints(acts), None]))
        with heartbeat(console, play.told):
            failed = play.run(acts)
            console.print(failed or "The topic is through.", style="red" if failed else None, highlight=False)
            console.print("Comparing the topic with the table, row by row ...")
            play.doing = "compares the topic with the table"
            verification = audit(job, directory)
        print_report(console, settings, play.tally, verification, directory)
        told = report(settings, play.tally, verification, job, failed)
        console.print(file.write(page(told)), soft_wrap=True, highlight=False, markup=False)
        return verification.is_exact and failed is None


@dataclass
class _Play:
    """The pipeline's processes, one after another."""

    job: Job
    postgres: PostgresServer
    console: Console
    cleanup: ExitStack
    coming: deque[str | None]  # failpoints of the processes to be started; behind them one that is not struck
    tally: DemoTally = field(default_factory=DemoTally)
    reach_s_max: float = REACH_S_MAX
    doing: str = "starts the pipeline"
    _processes: list[JobProcess] = field(default_factory=list)
    _spare: JobProcess | None = None

    def told(self) -> str:
        """Where the run is, on one line."""
        return f"{self.doing}; strikes: {len(self.tally.strikes)}"

    def run(self, acts: Sequence[Act]) -> WorkloadFailed | None:
        """Do it all, to the topic's end. The error where something could not be done."""
        try:
            for act in acts:
                self._act(act)
            self._finish()
        except WorkloadFailed as error:
            return error
        finally:
            for process in self._processes:
                process.kill()
            self._read_outcomes()
        return None

    def _act(self, act: Act) -> None:
        match act:
            case Kill(where):
                self._kill_at(where)
            case KillSomewhere(after_s):
                self._kill_somewhere(after_s)
            case KillPostgres(where):
                self._kill_postgres(where)
            case Zombie():
                self._zombie()

    def _finish(self) -> None:
        """Let a process run to the topic's end, unharmed."""
        process = self._start()
        self._await(process, lambda: process.exit_status is not None, "come to the topic's end", timeout_s=1800)
        if process.exit_status != 0:
            raise self._failed(process, f"the last process ended with status {process.exit_status}")

    def _kill_at(self, where: str) -> None:
        process = self._start()
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

    def _kill_postgres(self, where: str) -> None:
        process = self._start()
        self._await(process, process.is_held, f"reach the place {where!r}")
        self.postgres.kill()
        self._struck("Postgres", "kill -9", where)
        self.postgres.start()
        batches = self._read_outcomes()
        process.release()
        self._await(process, lambda: self._read_outcomes() > batches, "go on once Postgres was back")
        process.kill()
        self._killed("after Postgres had come back")

    def _zombie(self) -> None:
        zombie = self._start()
        self._await(zombie, zombie.is_held, "reach its decision")
        zombie.pause()
        self._struck("pipeline", "SIGSTOP", "before its decision")
        successor = self._start()
        self._await_batch(successor)
        zombie.release()
        zombie.wake()
        status = zombie.wait()
        if status != Fenced.exit_code:
            raise self._failed(zombie, f"the woken zombie ended with status {status}, not fenced ({Fenced.exit_code})")
        self.tally.zombies_fenced += 1
        self.console.print("  woken    pipeline   beside its successor: fenced")
        successor.kill()
        self._killed("after its zombie was fenced")

    def _start(self) -> JobProcess:
        """The next process. Its Spark is up as a rule: it has started beside the process before."""
        process = self._spare or self._started()
        process.go()
        self._spare = self._started() if self.coming else None
        return process

    def _started(self) -> JobProcess:
        job = Path(self.job.directory) / "job.json"
        self.job.save(job)
        failpoint = self.coming.popleft()
        process = JobProcess(
            (self.job.module, str(job)),
            Path(self.job.directory) / "logs",
            len(self._processes) + 1,
            failpoint,
            is_spare=True,
        )
        self._processes.append(process)
        self.cleanup.callback(process.kill)
        return process

    def _await_batch(self, process: JobProcess) -> None:
        batches = self._read_outcomes()
        self._await(process, lambda: self._read_outcomes() > batches, "finish a batch")

    def _await(self, process: JobProcess, condition: Condition, doing: str, timeout_s: float | None = None) -> None:
        self.doing = f"waits for the pipeline to {doing}"
        began_s, timeout_s = time.monotonic(), timeout_s or self.reach_s_max
        while not condition():
            if process.exit_status == 0 and not condition():
                raise self._failed(process, f"the topic was through before the process could {doing}: use more --rows")
            if process.exit_status is not None and not condition():
                raise self._failed(process, f"the process ended with status {process.exit_status}, but had to {doing}")
            if time.monotonic() > began_s + timeout_s:
                raise self._failed(process, f"the process did not {doing} within {timeout_s:.0f} s")
            time.sleep(0.02)
        if self.reach_s_max == REACH_S_MAX:
            self.reach_s_max = max(REACH_S_MIN, PACES_MAX * (time.monotonic() - began_s))

    def _read_outcomes(self) -> int:
        """Take over what the processes have told; how many batches that is."""
        path = self.job.outcomes
        lines = path.read_text().splitlines() if path.exists() else []
        self.tally.outcomes = [json.loads(line) for line in lines if line.endswith("}")]
        return len(self.tally.outcomes)

    def _killed(self, where: str) -> None:
        self._struck("pipeline", "kill -9", where)

    def _struck(self, what: str, how: str, where: str) -> None:
        self.tally.strikes.append(StrikeReport(what, how, where, time.time()))
        self.console.print(f"  {how:8} {what:10} {where}", highlight=False)

    def _failed(self, process: JobProcess, what: str) -> WorkloadFailed:
        return WorkloadFailed("workload-failed", f"{what}; its log: {process.log}")


def _produce(settings: DemoSettings, bootstrap_servers: str, progress: Progress) -> None:
    create_topic(bootstrap_servers)
    task = progress.add_task(f"{settings.rows:,} orders into Kafka", total=settings.rows)
    produce(
        bootstrap_servers, TOPIC, PARTITIONS, settings.rows, settings.seed, lambda rows: progress.advance(task, rows)
    )
