"""`python -m bench.engine`: flows on the engine beside the hand-written loop and without protection: throughput, CPU,
latency, recovery. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from bench.cpu import server_cpu_s
from bench.engine_job import Job
from bench.loop import Loop
from bench.narrator import Say, narrated
from bench.report import Load
from bench.world import DDL, PARTITIONS, World, open_world

UP_S_MAX = 120.0
RUNTIMES = ("engine", "spark")
ENGINE = "engine, two_phase, 2 workers"
UNPROTECTED = "the same without protection"
LOOP = "(d) loop, 2 processes"
START_ROWS = 10_000  # a topic of so few shows what a start and an end take
MEMORY = Path("/dev/shm")
STEPS = {
    "start and end": "parsed",
    "Kafka: fetch": "fetched",
    "JSON into Arrow": "parsed",
    "COPY: encoding": "encoded",
    "COPY: sending, storing": "unprotected",
    "exactly once": "two_phase",
}
"""Flows that each do one thing more than the one before, by the delivery of their jobs."""
LOOK_S = 0.001  # between two looks of the reader: in a tight loop it would take one of two cores


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()

    with open_world(arguments.directory, say) as world:
        if "throughput" in arguments.only:
            _print_throughput(console, _throughput(world, arguments))
        if "cpu" in arguments.only:
            _print_cpu(console, _cpu_us(world, arguments), arguments)
        if "latency" in arguments.only:
            for runtime in RUNTIMES:
                _print_latency(console, runtime, _latencies_ms(world, runtime, arguments), arguments.rate)
        if "recovery" in arguments.only:
            for runtime, kills in zip(RUNTIMES, (arguments.kills, max(1, arguments.kills // 4)), strict=True):
                _print_recovery(console, runtime, _recoveries_s(world, runtime, kills))
    console.print(str(load))
    return 0


@contextmanager
def _store_in_memory() -> Iterator[str]:
    """A checkpoint store that waits for no disk, for flows without protection: the engine has none without a store."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield f"sqlite:///{folder}/store.db"


def _throughput(world: World, arguments: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Rows a second of each contestant's runs, each way, from the start of its processes to their end."""
    topic, found = world.topic(arguments.rows), dict[tuple[str, str], list[float]]()
    with _store_in_memory() as store:
        contestants: dict[str, Callable[[World, str, str, int | None], float]] = {
            ENGINE: partial(_run_engine, delivery="two_phase"),
            UNPROTECTED: partial(_run_engine, delivery="unprotected", store=store),
            LOOP: _run_loop,
        }
        for turn in range(arguments.repeat):
            for rows in (None, arguments.rows_per_epoch):
                how = "one epoch" if rows is None else f"epochs of {rows:,}"
                for name, run in contestants.items():
                    with world.table(arguments.rows) as table:
                        rate = arguments.rows / run(world, topic, table, rows)
                    found.setdefault((name, how), []).append(rate)
                    world.say(f"{turn + 1}/{arguments.repeat} {how}: {name} {rate:,.0f} rows/s")
    return found


def _run_engine(
    world: World, topic: str, table: str, rows: int | None, delivery: str, store: str | None = None
) -> float:
    with world.checkpoint() as root:
        return _job(world, topic, table, rows, delivery, store, root).to_its_end().wall_s


def _job(world: World, topic: str, table: str, rows: int | None, delivery: str, store: str | None, root: str) -> Job:
    servers = world.kafka.bootstrap_servers
    return Job(servers, world.postgres.url, topic, table, root, delivery, 2, rows, store=store)


def _cpu_us(world: World, arguments: argparse.Namespace) -> dict[str, list[tuple[float, ...]]]:
    """CPU microseconds a row of each step's runs: of the driver, of its workers, of Postgres and of Kafka."""
    found: dict[str, list[tuple[float, ...]]] = {step: [] for step in STEPS}
    topics = {rows: world.topic(rows) for rows in (START_ROWS, arguments.rows)}
    with _store_in_memory() as in_memory:
        for turn in range(arguments.repeat):
            for step, delivery in STEPS.items():
                topic = topics[START_ROWS if step == "start and end" else arguments.rows]
                written = delivery in ("unprotected", "two_phase")
                store = None if delivery == "two_phase" else in_memory
                with world.table(arguments.rows if written else 0) as table, world.checkpoint() as root:
                    before_s = _servers_s(world)
                    job = _job(world, topic, table, arguments.rows_per_epoch, delivery, store, root)
                    ran = job.to_its_end()
                    servers_s = [after - before for after, before in zip(_servers_s(world), before_s, strict=True)]
                found[step].append(tuple(s / arguments.rows * 1e6 for s in (ran.driver_s, ran.workers_s, *servers_s)))
                world.say(f"{turn + 1}/{arguments.repeat} CPU: {step}")
    return found


def _servers_s(world: World) -> tuple[float, float]:
    return server_cpu_s(world.postgres.status().pid), server_cpu_s(world.kafka.status().pid)


def _run_loop(world: World, topic: str, table: str, rows: int | None) -> float:
    world.sql(f"CREATE TABLE {table}_offsets (kafka_partition int PRIMARY KEY, next_offset bigint NOT NULL)")
    world.sql(f"INSERT INTO {table}_offsets SELECT partition, 0 FROM generate_series(0, {PARTITIONS - 1}) AS partition")
    source = world.source(topic, None)
    broker = source.broker()
    ends = {number: end for (_, number), end in broker.latest(source.subscription.partitions(broker)).items()}
    began_s = time.monotonic()
    loop = Loop(world.kafka.bootstrap_servers, world.postgres.url, topic, table, ends, rows)
    try:
        loop.wait_until_up()
        loop.go()
        return time.monotonic() - began_s
    finally:
        loop.close()
        world.sql(f"DROP TABLE {table}_offsets")


@contextmanager
def _going_on(world: World, runtime: str) -> Iterator[tuple[Job, Producer]]:
    """A flow that does not end, on a new topic of one partition, and who produces into that."""
    name = f"live_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    world.sql(f"CREATE TABLE {name} ({DDL})")
    world.sql(f"CREATE INDEX ON {name} (id)")  # which the reader asks all the time
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap_servers, "linger.ms": 1})
    with world.checkpoint() as root:
        yield (
            Job(
                world.kafka.bootstrap_servers,
                world.postgres.url,
                name,
                name,
                root,
                "staged",
                workers=1,
                goes_on=True,
                runtime=runtime,
            ),
            producer,
        )
    world.sql(f"DROP TABLE {name}")


def _produce(producer: Producer, topic: str, number: int) -> None:
    value = b'{"id":%d,"account":%d,"amount":1.00,"at":"2026-01-01T00:00:00Z"}' % (number, number % 1000)
    producer.produce(topic, value)
    producer.poll(0)


def _latencies_ms(world: World, runtime: str, arguments: argparse.Namespace) -> list[float]:
    """Of every record: from before it is given to the producer until a reader has seen its row."""
    with _going_on(world, runtime) as (job, producer), psycopg.connect(world.postgres.url, autocommit=True) as reader:
        process = job.start()
        try:
            _produce(producer, job.topic, 0)
            _wait_for(reader, job.table, 0)
            began_s, sent_s, seen_ms = time.monotonic(), [0.0], list[float]()
            total = arguments.rate * arguments.seconds
            while len(seen_ms) < total:
                due = min(total, int((time.monotonic() - began_s) * arguments.rate))
                while len(sent_s) <= due:
                    sent_s.append(time.monotonic())
                    _produce(producer, job.topic, len(sent_s) - 1)
                time.sleep(LOOK_S)
                newest, now_s = _newest(reader, job.table), time.monotonic()
                seen_ms += [(now_s - at_s) * 1000 for at_s in sent_s[len(seen_ms) + 1 : newest + 1]]
            return seen_ms[arguments.rate :]  # without the first second
        finally:
            process.kill()
            process.wait()


def _recoveries_s(world: World, runtime: str, kills: int) -> list[float]:
    """From kill -9 of the driver to the first row of the next one, which is started at once."""
    found = []
    with _going_on(world, runtime) as (job, producer), psycopg.connect(world.postgres.url, autocommit=True) as reader:
        process, number = job.start(), 0
        try:
            for _ in range(kills):
                _produce(producer, job.topic, number)
                _wait_for(reader, job.table, number)
                process.kill()
                killed_s = time.monotonic()
                number += 1
                _produce(producer, job.topic, number)
                producer.flush()
                process.wait()
                process = job.start()
                _wait_for(reader, job.table, number)
                found.append(time.monotonic() - killed_s)
                number += 1
        finally:
            process.kill()
            process.wait()
    return found


def _newest(reader: psycopg.Connection[Any], table: str) -> int:
    row = reader.execute(f"SELECT coalesce(max(id), -1) FROM {table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _wait_for(reader: psycopg.Connection[Any], table: str, number: int) -> None:
    until_s = time.monotonic() + UP_S_MAX
    while _newest(reader, table) < number:
        if time.monotonic() > until_s:
            raise RuntimeError("the flow writes nothing")
        time.sleep(LOOK_S)


def _print_throughput(console: Console, rates: dict[tuple[str, str], list[float]]) -> None:
    table = Table("Kafka to Postgres", "", "rows/s, median", "of the loop's", "of those without protection")
    for (name, how), of in rates.items():
        mine = statistics.median(of)
        ratios = (mine / statistics.median(rates[other, how]) for other in (LOOP, UNPROTECTED))
        table.add_row(name, how, f"{mine:,.0f}", *(f"{ratio:.3f}" for ratio in ratios))
    console.print(table)


def _print_cpu(console: Console, found: dict[str, list[tuple[float, ...]]], arguments: argparse.Namespace) -> None:
    title = f"CPU us a row: what each step adds; {arguments.rows:,} rows in epochs of {arguments.rows_per_epoch:,}"
    table, before = Table("step", "driver", "workers", "Postgres", "Kafka", "all", title=title), [0.0] * 4
    for step, runs in found.items():
        now = [statistics.median(part) for part in zip(*runs, strict=True)]
        _add_cpu(table, step, [after - earlier for after, earlier in zip(now, before, strict=True)])
        before = now
    _add_cpu(table, "all of it", before)
    console.print(table)


def _add_cpu(table: Table, step: str, parts: list[float]) -> None:
    table.add_row(step, *(f"{us:.3f}" for us in (*parts, sum(parts))))


def _print_latency(console: Console, runtime: str, found_ms: list[float], rate: int) -> None:
    cuts = statistics.quantiles(found_ms, n=100)
    console.print(f"{runtime}: latency at {rate:,} records/s, staged: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


def _print_recovery(console: Console, runtime: str, found_s: list[float]) -> None:
    p95 = sorted(found_s)[math.ceil(0.95 * len(found_s)) - 1]
    median = statistics.median(found_s)
    console.print(f"{runtime}: kill -9 to the next row, {len(found_s)} times: median {median:.2f} s, p95 {p95:.2f} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    add, parts = parser.add_argument, ["throughput", "cpu", "latency", "recovery"]
    add("--rows", type=int, default=4_000_000, help="events in the topic (default: %(default)s)")
    add("--rows-per-epoch", type=int, default=500_000, help="of the runs in epochs (default: %(default)s)")
    add("--repeat", type=int, default=3, help="how often each contestant runs (default: %(default)s)")
    add("--rate", type=int, default=10_000, help="records a second, for the latency (default: %(default)s)")
    add("--seconds", type=int, default=20, help="of the latency (default: %(default)s)")
    add("--kills", type=int, default=20, help="of the recovery, and a quarter of it on Spark (default: %(default)s)")
    add("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=f"of {', '.join(parts)}")
    add("--directory", type=Path, default=Path(".onefold/bench"), help="servers and scratch (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
