"""Flows that go on, for `bench.engine`: their latency beside the hand-written loop's, and their recovery."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.engine_job import SCHEMA, Job
from bench.loop import LiveLoop
from bench.world import DDL, World

__all__ = ["DAEMON", "ENGINE", "LOOP", "SPARK", "Latency", "Stall", "latencies", "recoveries_s", "stalls"]

UP_S_MAX = 120.0
DAEMON = "daemon"
ENGINE, LOOP, SPARK = "engine, direct", "(d) loop, one process", "spark, direct"
LOOK_S = 0.001  # between two looks of the reader: in a tight loop it would take one of two cores
WARM_UP_S = 5  # of a first turn of all, which counts for nothing
STALL_MS = 100.0
SHOWN_MS = 10.0  # a step that took less is not told
_FILE = """\
name = "{name}"
runtime = "engine"
[restart]
strategy = "fixed_delay"
delay_s = 0.01
[[sources]]
kind = "kafka"
topics = "{name}"
bootstrap_servers = "{servers}"
format = "json"
schema = "{schema}"
[[sinks]]
kind = "postgres"
url = "{url}"
table = "{name}"
delivery = "staged"
"""


@dataclass(frozen=True)
class Stall:
    """A record that took long, the first of those that waited together, and the epochs of that time."""

    at_s: float  # since the first record
    took_ms: float
    epochs: tuple[str, ...]


@dataclass(frozen=True)
class Latency:
    """Of one run, in milliseconds."""

    p50_ms: float
    p99_ms: float
    stalls: tuple[Stall, ...]


@dataclass
class Live:
    """A new topic of one partition, the table of that name, who produces into the one, and who reads the other."""

    world: World
    name: str
    producer: Producer
    reader: psycopg.Connection[Any]

    def produce(self, number: int) -> None:
        value = b'{"id":%d,"account":%d,"amount":1.00,"at":"2026-01-01T00:00:00Z"}' % (number, number % 1000)
        self.producer.produce(self.name, value)
        self.producer.poll(0)

    def newest(self) -> int:
        row = self.reader.execute(f"SELECT coalesce(max(id), -1) FROM {self.name}".encode()).fetchone()
        assert row is not None
        return int(row[0])

    def wait_for(self, number: int) -> None:
        until_s = time.monotonic() + UP_S_MAX
        while self.newest() < number:
            if time.monotonic() > until_s:
                raise RuntimeError("nothing is written")
            time.sleep(LOOK_S)

    def job(self, runtime: str, root: str, epochs: Path | None = None) -> Job:
        servers, url = self.world.kafka.bootstrap_servers, self.world.postgres.url
        told = None if epochs is None else str(epochs)
        return Job(servers, url, self.name, self.name, root, "direct", 1, goes_on=True, runtime=runtime, epochs=told)


Running = Callable[[Live, Path], AbstractContextManager[None]]


def latencies(world: World, turns: int, rate: int, seconds: int, *, with_spark: bool) -> dict[str, list[Latency]]:
    """Of the engine and the loop in turn, once both and their servers are warm; and once of Spark."""
    found: dict[str, list[Latency]] = {ENGINE: [], LOOP: []}
    for turn in range(turns + 1):
        for name, running in ((ENGINE, partial(_flow, "engine")), (LOOP, _loop)):
            took = _latency(world, running, rate, WARM_UP_S if turn == 0 else seconds)
            if turn > 0:
                found[name].append(took)
            world.say(f"{turn}/{turns} latency: {name} p50 {took.p50_ms:.0f} ms, p99 {took.p99_ms:.0f} ms")
    if with_spark:
        found[SPARK] = [_latency(world, partial(_flow, "spark"), rate, seconds)]
    return found


def recoveries_s(world: World, runtime: str, kills: int) -> list[float]:
    """From kill -9 of the driver to the first row of the next one: of a flow's own process, which is started at once,
    or with `DAEMON` of the daemon's, which it starts itself."""
    found: list[float] = []
    with _live(world) as live, world.checkpoint() as root:
        running: _Process | _Daemon = _Daemon(live, Path(root)) if runtime == DAEMON else _Process(live, runtime, root)
        numbers = count()
        try:
            for _ in range(kills):
                number = next(numbers)
                live.produce(number)
                live.wait_for(number)
                running.kill()
                killed_s = time.monotonic()
                number = next(numbers)
                live.produce(number)
                live.producer.flush()
                running.start_again()
                live.wait_for(number)
                found.append(time.monotonic() - killed_s)
        finally:
            running.close()
    return found


class _Process:
    """A flow's process, and the next one."""

    def __init__(self, live: Live, runtime: str, root: str) -> None:
        self._job = live.job(runtime, root)
        self._process = self._job.start()

    def kill(self) -> None:
        self._process.kill()

    def start_again(self) -> None:
        self._process.wait()
        self._process = self._job.start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class _Daemon:
    """`onefold run` of the same flow on the engine, whose host forks the next driver."""

    def __init__(self, live: Live, folder: Path) -> None:
        folder.mkdir(parents=True)
        file = folder / f"{live.name}.toml"
        servers, url = live.world.kafka.bootstrap_servers, live.world.postgres.url
        file.write_text(_FILE.format(name=live.name, servers=servers, url=url, schema=SCHEMA))
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("onefold"), "run", file], stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        (host,) = psutil.Process(self._process.pid).children()
        (driver,) = host.children()
        driver.kill()

    def start_again(self) -> None:
        """The daemon does."""

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def stalls(seen: Sequence[tuple[float, float]], epochs: Sequence[dict[str, Any]]) -> list[Stall]:
    """What took longer than `STALL_MS` of records that were sent and seen then, in order, and what the epochs did
    meanwhile."""
    found, over_s = list[Stall](), 0.0
    for sent_s, seen_s in seen:
        if (seen_s - sent_s) * 1000 <= STALL_MS or sent_s < over_s:
            continue
        over_s = seen_s
        of_then = [e for e in epochs if e["ended_s"] > sent_s and e["ended_s"] - sum(e["steps"].values()) < seen_s]
        found.append(Stall(sent_s - seen[0][0], (seen_s - sent_s) * 1000, tuple(map(_told, of_then))))
    return found


def _told(epoch: dict[str, Any]) -> str:
    steps = [f"{name} {took_s * 1000:.0f}" for name, took_s in epoch["steps"].items() if took_s * 1000 >= SHOWN_MS]
    return f"epoch {epoch['epoch']}: {', '.join(steps) or 'each step under 10'} ms"


def _latency(world: World, running: Running, rate: int, seconds: int) -> Latency:
    with tempfile.TemporaryDirectory() as folder, _live(world) as live:
        told = Path(folder) / "epochs"
        with running(live, told):
            seen = _seen(live, rate, seconds)[rate:]  # without the first second
        epochs = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    cuts = statistics.quantiles(((seen_s - sent_s) * 1000 for sent_s, seen_s in seen), n=100)
    return Latency(cuts[49], cuts[98], tuple(stalls(seen, epochs)))


def _seen(live: Live, rate: int, seconds: int) -> list[tuple[float, float]]:
    """Of every record: before it is given to the producer, and when a reader has seen its row."""
    live.produce(0)
    live.wait_for(0)
    began_s, sent_s, seen_s = time.monotonic(), [0.0], list[float]()
    total = rate * seconds
    while len(seen_s) < total:
        due = min(total, int((time.monotonic() - began_s) * rate))
        while len(sent_s) <= due:
            sent_s.append(time.monotonic())
            live.produce(len(sent_s) - 1)
        time.sleep(LOOK_S)
        newest, now_s = live.newest(), time.monotonic()
        seen_s += [now_s] * (newest - len(seen_s))
        if now_s - began_s > seconds + UP_S_MAX:
            raise RuntimeError("the rows do not come")
    return list(zip(sent_s[1:], seen_s, strict=True))


@contextmanager
def _live(world: World) -> Iterator[Live]:
    name = f"live_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    world.sql(f"CREATE TABLE {name} ({DDL})")
    world.sql(f"CREATE INDEX ON {name} (id)")  # which the reader asks all the time
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap_servers, "linger.ms": 1})
    with psycopg.connect(world.postgres.url, autocommit=True) as reader:
        yield Live(world, name, producer, reader)
    world.sql(f"DROP TABLE {name}")


@contextmanager
def _flow(runtime: str, live: Live, epochs: Path) -> Iterator[None]:
    with live.world.checkpoint() as root:
        process = live.job(runtime, root, epochs if runtime == "engine" else None).start()
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def _loop(live: Live, epochs: Path) -> Iterator[None]:
    world, offsets = live.world, f"{live.name}_offsets"
    world.sql(f"CREATE TABLE {offsets} (kafka_partition int PRIMARY KEY, next_offset bigint NOT NULL)")
    world.sql(f"INSERT INTO {offsets} VALUES (0, 0)")
    loop = LiveLoop(world.kafka.bootstrap_servers, world.postgres.url, live.name, live.name, str(epochs))
    try:
        yield
    finally:
        loop.close()
        world.sql(f"DROP TABLE {offsets}")
