"""`python -m bench.engine`: flows on the engine beside the hand-written loop and without protection: throughput, CPU,
latency, recovery. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.arguments import parser_of
from bench.cpu import server_cpu_s
from bench.engine_job import Job
from bench.live import DAEMON, Latency, latencies, recoveries_s
from bench.live import ENGINE as ENGINE_LIVE
from bench.live import LOOP as LOOP_LIVE
from bench.loop import Loop
from bench.narrator import Say, narrated
from bench.report import Load
from bench.world import PARTITIONS, World, open_world

ENGINE = "engine, two_phase, 2 workers"
STAGED, DIRECT = "the same, staged", "the same, direct"
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
GOALS = 1.3, 1.5  # of latency: p50 and p99 of the loop's


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()

    with open_world(arguments.directory, say) as world:
        if "throughput" in arguments.only:
            _print_throughput(console, _throughput(world, arguments))
        if "cpu" in arguments.only:
            _print_cpu(console, _cpu_us(world, arguments), arguments)
        if "latency" in arguments.only:
            found = latencies(
                world, arguments.repeat, arguments.rate, arguments.seconds, with_spark=not arguments.no_spark
            )
            _print_latency(console, found, arguments.rate)
        if "recovery" in arguments.only:
            of_spark = 0 if arguments.no_spark else max(1, arguments.kills // 4)
            for runtime, kills in (("engine", arguments.kills), (DAEMON, arguments.kills), ("spark", of_spark)):
                _print_recovery(console, runtime, recoveries_s(world, runtime, kills) if kills else [])
    console.print(str(load))
    return 0


@contextmanager
def _store_in_memory() -> Iterator[str]:
    """A checkpoint store that waits for no disk, for flows without protection: the engine has none without a store."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield f"sqlite:///{folder}/store.db"


Figures = dict[tuple[str, str], list[tuple[float, float]]]


def _throughput(world: World, arguments: argparse.Namespace) -> Figures:
    """Of each contestant's runs, each way: rows a second, from the start of its processes to their end, and CPU
    microseconds a row, the servers' included."""
    topic, found = world.topic(arguments.rows), Figures()
    with _store_in_memory() as store:
        contestants: dict[str, Callable[[World, str, str, int | None], float]] = {
            ENGINE: partial(_run_engine, delivery="two_phase"),
            STAGED: partial(_run_engine, delivery="staged"),
            DIRECT: partial(_run_engine, delivery="direct"),
            UNPROTECTED: partial(_run_engine, delivery="unprotected", store=store),
            LOOP: _run_loop,
        }
        for turn in range(arguments.repeat):
            for rows in (None, arguments.rows_per_epoch):
                how = "one epoch" if rows is None else f"epochs of {rows:,}"
                for name, run in contestants.items():
                    with world.table(arguments.rows) as table:
                        before_s = _used_s(world)
                        rate = arguments.rows / run(world, topic, table, rows)
                        cpu_us = (_used_s(world) - before_s) / arguments.rows * 1e6
                    found.setdefault((name, how), []).append((rate, cpu_us))
                    world.say(f"{turn + 1}/{arguments.repeat} {how}: {name} {rate:,.0f} rows/s, {cpu_us:.2f} us a row")
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


def _used_s(world: World) -> float:
    """CPU seconds of the servers, and of the processes that this one has waited for."""
    own = os.times()
    return sum(_servers_s(world)) + own.children_user + own.children_system


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


def _print_throughput(console: Console, found: Figures) -> None:
    others = ("of the loop's", "of those without protection")
    table = Table("Kafka to Postgres", "", "rows/s, median", *others, "CPU us a row", *others)
    medians = {key: [statistics.median(part) for part in zip(*runs, strict=True)] for key, runs in found.items()}
    for (name, how), (rate, cpu_us) in medians.items():
        against = [medians[other, how] for other in (LOOP, UNPROTECTED)]
        rates = (f"{rate / other:.3f}" for other, _ in against)
        table.add_row(name, how, f"{rate:,.0f}", *rates, f"{cpu_us:.2f}", *(f"{cpu_us / of:.3f}" for _, of in against))
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


def _print_latency(console: Console, found: dict[str, list[Latency]], rate: int) -> None:
    title = f"latency at {rate:,} records/s: medians of the runs; in brackets the goal"
    table = Table("", "runs", "p50, ms", "p99, ms", "p50 of the loop's", "p99 of the loop's", title=title)
    loop = found[LOOP_LIVE]
    for name, runs in found.items():
        medians = [statistics.median(run.p50_ms for run in runs), statistics.median(run.p99_ms for run in runs)]
        ratios = ["", ""]
        if name == ENGINE_LIVE:  # each run by the loop's of the same turn
            turns = list(zip(runs, loop, strict=True))
            of_loops = ([a.p50_ms / b.p50_ms for a, b in turns], [a.p99_ms / b.p99_ms for a, b in turns])
            ratios = [f"{statistics.median(of):.2f} ({goal})" for of, goal in zip(of_loops, GOALS, strict=True)]
        table.add_row(name, str(len(runs)), *(f"{ms:.0f}" for ms in medians), *ratios)
    console.print(table)
    for name, runs in found.items():
        for turn, run in enumerate(runs, start=1):
            for stall in run.stalls:
                told = f"{name}, run {turn}: {stall.took_ms:.0f} ms at {stall.at_s:.1f} s"
                console.print(f"{told}; {'; '.join(stall.epochs) or 'unknown'}", highlight=False, soft_wrap=True)


def _print_recovery(console: Console, runtime: str, found_s: list[float]) -> None:
    if not found_s:
        return
    p95 = sorted(found_s)[math.ceil(0.95 * len(found_s)) - 1]
    median = statistics.median(found_s)
    console.print(f"{runtime}: kill -9 to the next row, {len(found_s)} times: median {median:.2f} s, p95 {p95:.2f} s")


def _arguments() -> argparse.Namespace:
    parser = parser_of("bench.engine", __doc__, rows=4_000_000, of="events in the topic")
    add, parts = parser.add_argument, ["throughput", "cpu", "latency", "recovery"]
    add("--rows-per-epoch", type=int, default=500_000, help="of the runs in epochs (default: %(default)s)")
    add("--rate", type=int, default=10_000, help="records a second, for the latency (default: %(default)s)")
    add("--seconds", type=int, default=20, help="of the latency (default: %(default)s)")
    add("--kills", type=int, default=20, help="of the recovery, and a quarter of it on Spark (default: %(default)s)")
    add("--no-spark", action="store_true", help="latency and recovery of the engine alone")
    add("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=f"of {', '.join(parts)}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
