"""What is done to a contestant: records as fast as it takes them, or at a steady rate, with and without kills."""

from __future__ import annotations

import random
import subprocess
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import psutil
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import alignment
from bench.compare.audit import audited
from bench.compare.figures import Fast, Lived
from bench.compare.job import ROWS_DDL, TOTALS_DDL, Job, record
from bench.cpu import server_cpu_s, written_bytes
from bench.peers import Run, Times, timed
from bench.world import PARTITIONS, World
from onefold.sources import KafkaSource

__all__ = ["Kills", "fast", "lived", "slowed"]

START_ROWS = 10_000  # a topic of so few shows what a start and an end take
UP_S_MAX = 180.0
SETTLED_S = 15.0  # for so long nothing has come any more
LOOK_S = 0.004  # between two looks of the reader
WARM_UP_S = 2.0  # of the records that count for nothing
SLOWED_EPOCHS, SLOWED_ROWS, SLOWED_EACH_S = 2, 32_000, 60e-6  # an aligned epoch takes two minutes
SEED = 1


@dataclass(frozen=True)
class Kills:
    """How often a worker, and how often the driver, is killed; in seconds."""

    worker_every_s: float
    driver_every_s: float

    def plan(self, seconds: float) -> list[tuple[float, str]]:
        """When, and whom; in order. The last ones leave time to recover."""
        found = []
        for every_s, whom in ((self.worker_every_s, "worker"), (self.driver_every_s, "driver")):
            found += [(number * every_s, whom) for number in range(1, int(seconds / every_s) + 1)]
        return sorted((at_s, whom) for at_s, whom in found if at_s < seconds - 1)


def fast(world: World, settings: dict[str, Any] | None, rows: int) -> Fast:
    """Runs of a start and its end, and with all records."""
    runs = []
    for count in (START_ROWS, rows):
        with _job(world, settings, goes_on=False) as job:
            _produce(world, job.topic, count)
            before_s = _servers_s(world)
            run = timed(job.command)
            runs.append(Run(run.wall_s, run.cpu_s + _servers_s(world) - before_s))
            audit = audited(world.sql, job, count, PARTITIONS)
    times = Times(rows - START_ROWS)
    times.add(*runs)
    return Fast(None if times.wall_us is None else 1e6 / times.wall_us, times.cpu_us, audit)


def lived(world: World, settings: dict[str, Any] | None, rate: int, seconds: float, kills: Kills | None) -> Lived:
    """A round of so many seconds. Raises RuntimeError where nothing comes out."""
    with _job(world, settings, goes_on=True) as job, _Running(job) as running:
        sender = Producer({"bootstrap.servers": world.kafka.bootstrap_servers, "linger.ms": 1})
        with psycopg.connect(world.postgres.url, autocommit=True) as reader:
            watch = _Watch(reader, job, sender)
            watch.send(PARTITIONS)
            watch.until_seen(UP_S_MAX)
            wal = _wal_bytes(world)
            written = written_bytes(running.pid)
            plan = [] if kills is None else kills.plan(seconds)
            killed = watch.go(rate, seconds, plan, running)
            watch.until_seen(UP_S_MAX)
            used = running.written_before + written_bytes(running.pid) - written + _wal_bytes(world) - wal
            watch.until_counted(SETTLED_S)
        running.end()
        audit = audited(world.sql, job, watch.sent, PARTITIONS)
    began_s = watch.began_s
    seen = [(sent_s - began_s, seen_s - began_s) for sent_s, seen_s in watch.seen() if sent_s - began_s >= WARM_UP_S]
    recovered = [watch.recovered_s(at_s) for at_s in killed]
    return Lived(seen, used, audit, [at_s - began_s for at_s in killed], recovered)


def slowed(world: World) -> dict[str, list[tuple[float, float]]]:
    """Behind a subtask that is a hundred times slower, by alignment: when an epoch ended, and how long it took."""
    servers, found = world.kafka.bootstrap_servers, dict[str, list[tuple[float, float]]]()
    source = KafkaSource(
        alignment.fill(servers, SLOWED_EPOCHS * SLOWED_ROWS),
        bootstrap_servers=servers,
        format="json",
        schema="id long, key long",
        max_offsets_per_trigger=SLOWED_ROWS,
    )
    for how in ("aligned", "unaligned"):
        took_s, _ = alignment.measured(source, world.directory, how, SLOWED_EACH_S, 100, SLOWED_EPOCHS)
        found[how] = list(zip(accumulate(took_s), took_s, strict=True))
        world.say(f"{how}: epochs of {', '.join(f'{s:.2f}' for s in took_s)} s")
    return found


class _Running:
    """The contestant's process, and the next one."""

    def __init__(self, job: Job) -> None:
        self._job, self._random = job, random.Random(SEED)
        self._process = job.start()
        self.written_before = 0  # by those that were killed

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        _kill(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, whom: str) -> bool:
        """Whether there was one."""
        if whom == "driver":
            self.written_before += written_bytes(self.pid)
            _kill(self._process)
            self._process = self._job.start()
            return True
        workers = [*_workers(psutil.Process(self.pid))]
        if workers:
            with suppress(psutil.NoSuchProcess):
                self._random.choice(workers).kill()
        return bool(workers)

    def end(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)


def _workers(root: psutil.Process) -> Iterator[psutil.Process]:
    """The processes that have none below them, and are not the driver's only ones."""
    with suppress(psutil.NoSuchProcess):
        for process in root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if not process.children() and process.ppid() != root.pid:
                    yield process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Of a process that was started here, and of what it has started: a machine that dies takes all of them."""
    below: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for each in below:
        with suppress(psutil.NoSuchProcess):
            each.kill()


@dataclass
class _Watch:
    """Who sends the records, and looks when their rows are there."""

    reader: psycopg.Connection[Any]
    job: Job
    producer: Producer
    sent_s: list[float] = field(default_factory=list)  # by number
    looks: list[list[tuple[float, int]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    began_s: float = 0.0

    @property
    def sent(self) -> int:
        return len(self.sent_s)

    def send(self, up_to: int) -> None:
        while len(self.sent_s) < up_to:
            value, part = record(len(self.sent_s), PARTITIONS)
            self.sent_s.append(time.monotonic())
            self.producer.produce(self.job.topic, value, partition=part)
        self.producer.poll(0)

    def look(self) -> None:
        """Notes the newest row of each partition."""
        newest = ", ".join(
            f"(SELECT max(id) FROM {self.job.rows_table} WHERE part = {part})" for part in range(PARTITIONS)
        )
        found = self.reader.execute(f"SELECT {newest}".encode()).fetchone()
        now_s = time.monotonic()
        assert found is not None
        for looks, number in zip(self.looks, found, strict=True):
            if number is not None and (not looks or looks[-1][1] < number):
                looks.append((now_s, number))

    def go(self, rate: int, seconds: float, plan: Sequence[tuple[float, str]], running: _Running) -> list[float]:
        """Send at that rate for so long, and kill as planned. Returns when somebody was killed."""
        self.began_s, first, killed, left = time.monotonic(), self.sent, list[float](), list(plan)
        while (passed_s := time.monotonic() - self.began_s) < seconds:
            self.send(first + int(passed_s * rate))
            if left and left[0][0] <= passed_s:
                _, whom = left.pop(0)
                at_s = time.monotonic()
                if running.kill(whom):
                    killed.append(at_s)
            self.look()
            time.sleep(LOOK_S)
        self.producer.flush()
        return killed

    def until_seen(self, seconds: float) -> None:
        """Until the newest record of every partition has its row."""
        self.producer.flush()
        until_s = time.monotonic() + seconds
        while any(not looks or looks[-1][1] < self.sent - PARTITIONS for looks in self.looks):
            if time.monotonic() > until_s:
                raise RuntimeError(f"the rows of {self.job.topic} do not come")
            time.sleep(LOOK_S)
            self.look()

    def until_counted(self, seconds: float) -> None:
        """Until the totals have all records, or nothing has come for so long: they may never have."""
        before, since_s = -1, time.monotonic()
        statement = f"SELECT coalesce(sum(n), 0) FROM {self.job.totals_table}".encode()
        while time.monotonic() < since_s + seconds:
            found = self.reader.execute(statement).fetchone()
            assert found is not None
            if (counted := int(found[0])) >= self.sent:
                return
            if counted != before:
                before, since_s = counted, time.monotonic()
            time.sleep(0.1)

    def seen(self) -> Iterator[tuple[float, float]]:
        """Of each record: when it was sent, and when its row was seen."""
        numbers = [[number for _, number in looks] for looks in self.looks]
        for number, sent_s in enumerate(self.sent_s):
            part = number % PARTITIONS
            at = bisect_right(numbers[part], number - 1)
            yield sent_s, self.looks[part][at][0]

    def recovered_s(self, killed_s: float) -> float:
        """From then until every partition had a row that was sent afterwards."""
        first = bisect_right(self.sent_s, killed_s)
        return max(next(at_s for at_s, number in looks if number >= first) for looks in self.looks) - killed_s


@contextmanager
def _job(world: World, settings: Mapping[str, Any] | None, goes_on: bool) -> Iterator[Job]:
    """A new topic, and tables for it."""
    name = f"compare_{uuid.uuid4().hex[:8]}"
    servers = world.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    with world.checkpoint() as root:
        told = None if settings is None else dict(settings)
        job = Job(servers, world.postgres.url, name, root, told, goes_on)
        world.sql(f"CREATE TABLE {job.rows_table} ({ROWS_DDL})")
        if goes_on:
            world.sql(f"CREATE INDEX ON {job.rows_table} (part, id)")  # which the reader asks all the time
        world.sql(f"CREATE TABLE {job.totals_table} ({TOTALS_DDL})")
        world.sql("CHECKPOINT")
        try:
            yield job
        finally:
            world.sql(f"DROP TABLE {job.rows_table}, {job.totals_table}")
            admin.delete_topics([name])[name].result()


def _produce(world: World, topic: str, rows: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": world.kafka.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(rows):
        value, part = record(number, PARTITIONS)
        producer.produce(topic, value, partition=part)
        if number % 10_000 == 0:
            producer.poll(0 if number % 100_000 else 0.1)
    producer.flush()


def _servers_s(world: World) -> float:
    return server_cpu_s(world.postgres.status().pid) + server_cpu_s(world.kafka.status().pid)


def _wal_bytes(world: World) -> int:
    return int(world.sql("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
