"""All that a torture runs: servers, the pipeline under its supervisor, the producer; and time, which lets them live."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onefold.core import Positions, Relation
from onefold.trials.torture.audit import Audit, Auditor
from onefold.trials.torture.destinations.destination import SERVER_ERRORS
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.hop_databases import HopDatabases
from onefold.trials.torture.supervisor import Supervisor
from onefold.trials.torture.torture_servers import TortureServers
from onefold.trials.torture.torture_settings import TortureSettings
from onefold.trials.torture.watcher import Watcher
from onefold.trials.workload import topic
from onefold.trials.workload.mixed import ACCOUNTS
from onefold.trials.workload.producer import Orders
from onefold.trials.workload.run_setup import WorkloadFailed
from onefold.trials.workload.session_processes import SessionProcess
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC, Job

TICK_S = 0.05
ZOMBIE_S_MAX = 90.0
REST_S_MAX = 240.0
SETTLE_S = 6.0  # longer than an epoch takes
FEW_ACCOUNTS = 200  # so that each has many records, whose order, or whose sum, can be judged
SWEPT_S_MAX = 90.0  # a sweep on its timer comes every 60 s


class NeverRests(WorkloadFailed):
    """The pipeline did not come to the topic's end: a defect of the pipeline, or of the torture."""


@dataclass
class TortureWorld:
    settings: TortureSettings
    job: Job
    servers: TortureServers
    history: HistoryLog
    supervisor: Supervisor
    forms: deque[tuple[Job, ...]]  # what the pipeline is in turns: the first is what it is now
    watcher: Watcher
    auditor: Auditor
    producer: SessionProcess | None = None
    producing: bool = False
    _producers: int = 0

    @property
    def directory(self) -> Path:
        return Path(self.job.directory)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.forms[0]

    @property
    def next_jobs(self) -> tuple[Job, ...]:
        return self.forms[1]

    def moved(self) -> None:
        """The pipeline is what it is next from now on."""
        self.forms.rotate(-1)
        self.supervisor.jobs = self.jobs
        self.auditor.follow(self.jobs[0])

    @property
    def executor_sessions(self) -> list[int]:
        return self.servers.cluster.sessions() if self.servers.cluster else []

    @property
    def scratch(self) -> list[Path]:
        """Where shuffle files are."""
        return self.servers.cluster.scratch if self.servers.cluster else [self.directory / "spark" / "scratch"]

    def tick(self) -> None:
        self._keep_running()
        self.watcher.tick()

    def wait(self, seconds: float) -> None:
        """Let everybody live for a while."""
        self.wait_until(lambda: False, seconds)

    def wait_unseeing(self, seconds: float) -> None:
        """The same while a server is down, held still or cut off: asked anything, it would hold us still, too."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self._keep_running()
            time.sleep(TICK_S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """False if it has not come true in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.tick()
            if condition():
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(TICK_S)

    def rest(self, number: int) -> Audit:
        """After the faults: let zombies end, stop the producer, come to the topic's end, and judge.

        The producer stops last, so that at least one epoch, and the sweep at its end, follow the last straggler.
        """
        began_s = self.history.seconds
        if not self.wait_until(lambda: not self.supervisor.zombies, ZOMBIE_S_MAX):
            for zombie in self.supervisor.zombies:
                zombie.kill()
        self.supervisor.end_halves()
        complete = self.watcher.complete
        self.wait_until(lambda: self.watcher.complete > complete, ZOMBIE_S_MAX)
        self._stop_producer()
        end = self._end_of_topic()
        self._wait_for(end)
        self._settle()
        self.wait_until(self._is_clean, SWEPT_S_MAX)
        self.history.write(
            "rest",
            round=number,
            seconds_to_rest=round(self.history.seconds - began_s, 1),
            epoch=self.watcher.complete,
            positions=dict(end.items),
        )
        audit = self.auditor.audit(number)
        verdicts = {name: list(found) for name, found in audit.verdicts.items()}
        self.history.write("audit", round=number, **audit.figures(), verdicts=verdicts, exact=audit.is_exact)
        return audit

    def close(self) -> None:
        """End every process of the run but its servers. Again is fine."""
        self.producing = False
        self.supervisor.kill_all()
        if self.producer is not None:
            self.producer.kill()
        self.watcher.close()
        self.auditor.close()

    def _keep_running(self) -> None:
        self.supervisor.tick()
        if self.producing and (self.producer is None or self.producer.exit_status is not None):
            self._start_producer()

    def _start_producer(self) -> None:
        path = self.directory / "orders.json"
        settings, job = self.settings, self.job
        orders = Orders(
            job.bootstrap_servers,
            settings.seed,
            settings.orders_per_s,
            settings.mode,
            settings.bad_rows,
            unreadable=job.has_letters_topic,
            accounts=FEW_ACCOUNTS if job.into_kafka or job.into_hbase else ACCOUNTS,
        )
        orders.save(path)
        self._producers += 1
        log = self.directory / "logs" / f"producer-{self._producers:02d}.log"
        self.producer = SessionProcess(("onefold.trials.workload.producer", str(path)), log, dict(os.environ))

    def _stop_producer(self) -> None:
        """Once its transaction is through. One that was killed meanwhile left a transaction for the next to end."""
        while True:
            if not self.wait_until(self._is_producing, REST_S_MAX):
                raise NeverRests("workload-never-rests", f"no producer has begun in {REST_S_MAX:.0f} s")
            self.producing = False
            assert self.producer is not None
            self.producer.terminate()
            if not self.wait_until(lambda: self.producer is None or self.producer.exit_status is not None, REST_S_MAX):
                raise NeverRests("workload-never-rests", f"the producer does not end; log {self.producer.log}")
            if self.producer.exit_status == 0:
                return
            self.producing = True

    def _is_producing(self) -> bool:
        """Whether it has said that it writes, and so is ready to be told to end."""
        producer = self.producer
        return producer is not None and producer.exit_status is None and producer.log.stat().st_size > 0

    def _end_of_topic(self) -> Positions:
        ends = topic.end_offsets(self.servers.kafka.bootstrap_servers, TOPIC, PARTITIONS)
        return Positions.of({f"{TOPIC}/{p}": offset for p, offset in ends.items()})

    def _wait_for(self, end: Positions) -> None:
        """However far behind a slow machine is: it rests when it stands there, and never if it stands still before."""
        while True:
            if not self.wait_until(partial(self._is_nearer, end, self.watcher.complete), REST_S_MAX):
                raise NeverRests(
                    "workload-never-rests",
                    f"no epoch in {REST_S_MAX:.0f} s, and the topic's end {end.to_json()} is not reached",
                )
            if self._is_at(end):
                return

    def _settle(self) -> None:
        """Spark makes some batches without records, for which the watermark has come to timers."""
        complete = -1
        deadline_s = time.monotonic() + REST_S_MAX
        while complete != self.watcher.complete:
            if time.monotonic() > deadline_s:
                raise NeverRests("workload-never-rests", f"for {REST_S_MAX:.0f} s there were epochs without records")
            complete = self.watcher.complete
            self.wait(SETTLE_S)

    def _is_nearer(self, end: Positions, complete: int) -> bool:
        return self.watcher.complete > complete or self._is_at(end)

    def _is_at(self, end: Positions) -> bool:
        records = self.watcher.records
        last = records[max(records)] if records else None
        if last is None or last.epoch != self.watcher.complete:
            return False
        try:
            ledgers = self.auditor.ledgers().values()
        except SERVER_ERRORS:
            return False
        if any(ledger is None or ledger.epoch != last.epoch for ledger in ledgers):
            return False
        if self.job.has_hops:
            hops = HopDatabases(self.job)
            return hops.planned().of_records().relation_to(end) is Relation.SAME and hops.is_delivered()
        return all(
            ledger is not None and ledger.positions.of_records().relation_to(end) is Relation.SAME for ledger in ledgers
        )

    def _is_clean(self) -> bool:
        try:
            return not self.auditor.leftovers()
        except SERVER_ERRORS:
            return False
