"""`python -m bench.engine`: flows on the engine beside the hand-written loop: throughput, latency, recovery. See
docs/engine.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from bench.engine_job import Job
from bench.loop import Loop
from bench.report import Load
from bench.world import DDL, PARTITIONS, World, open_world

UP_S_MAX = 120.0
RUNTIMES = ("engine", "spark")
LOOP = "(d) loop, 2 processes"
LOOK_S = 0.001  # between two looks of the reader: in a tight loop it would take one of two cores


def main() -> int:
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    load = Load()

    def say(text: str) -> None:
        console.print(f"[dim]{text}[/]", highlight=False)

    with open_world(arguments.directory, say) as world:
        if "throughput" in arguments.only:
            _print_throughput(console, _throughput(world, arguments))
        if "latency" in arguments.only:
            for runtime in RUNTIMES:
                _print_latency(console, runtime, _latencies_ms(world, runtime, arguments), arguments.rate)
        if "recovery" in arguments.only:
            for runtime, kills in zip(RUNTIMES, (arguments.kills, max(1, arguments.kills // 4)), strict=True):
                _print_recovery(console, runtime, _recoveries_s(world, runtime, kills))
    console.print(str(load))
    return 0


def _throughput(world: World, arguments: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Rows a second of each contestant's runs, each way, from the start of its processes to their end."""
    topic, found = world.topic(arguments.rows), dict[tuple[str, str], list[float]]()
    for turn in range(arguments.repeat):
        for rows in (None, arguments.rows_per_epoch):
            how = "one epoch" if rows is None else f"epochs of {rows:,}"
            for name, run in (("engine, two_phase, 2 workers", _run_engine), (LOOP, _run_loop)):
                with world.table(arguments.rows) as table:
                    rate = arguments.rows / run(world, topic, table, rows)
                found.setdefault((name, how), []).append(rate)
                world.say(f"{turn + 1}/{arguments.repeat} {how}: {name} {rate:,.0f} rows/s")
    return found


def _run_engine(world: World, topic: str, table: str, rows: int | None) -> float:
    with world.checkpoint() as root:
        job = Job(world.kafka.bootstrap_servers, world.postgres.url, topic, table, root, "two_phase", 2, rows)
        began_s = time.monotonic()
        process = job.start()
        if process.wait() != 0:
            raise RuntimeError(f"the flow ended with {process.returncode}")
        return time.monotonic() - began_s


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
    table = Table("Kafka to Postgres", "", "rows/s, median", "of the loop's")
    for (name, how), of in rates.items():
        ratio = statistics.median(of) / statistics.median(rates[LOOP, how])
        table.add_row(name, how, f"{statistics.median(of):,.0f}", f"{ratio:.2f}")
    console.print(table)


def _print_latency(console: Console, runtime: str, found_ms: list[float], rate: int) -> None:
    cuts = statistics.quantiles(found_ms, n=100)
    console.print(f"{runtime}: latency at {rate:,} records/s, staged: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


def _print_recovery(console: Console, runtime: str, found_s: list[float]) -> None:
    p95 = sorted(found_s)[math.ceil(0.95 * len(found_s)) - 1]
    median = statistics.median(found_s)
    console.print(f"{runtime}: kill -9 to the next row, {len(found_s)} times: median {median:.2f} s, p95 {p95:.2f} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    add, parts = parser.add_argument, ["throughput", "latency", "recovery"]
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
    sys.exit(main())
