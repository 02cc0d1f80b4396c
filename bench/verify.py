"""`python -m bench.verify`: `onefold verify` of a topic against its table, beside reading both sides once. One run."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from rich.console import Console

from bench.cpu import cpu_s
from bench.engine_job import SCHEMA, Job
from bench.world import World, open_world
from onefold.core import Range
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import PostgresSource
from onefold.spark import read_postgres
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.formats.bounded_records import read_records
from onefold.spark.verify.verification import verify


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.verify", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[4_000_000, 20_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(".onefold/bench"))
    arguments = parser.parse_args()
    say = Console(stderr=True).print
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    with open_world(arguments.directory, say) as world:
        for rows in arguments.rows:
            topic = world.topic(rows)
            with world.table(rows) as table, world.checkpoint() as checkpoint:
                job = Job(world.kafka.bootstrap_servers, world.postgres.url, topic, table, checkpoint, "two_phase", 2)
                job.to_its_end()
                world.sql(f"VACUUM ANALYZE {table}")
                measure(world, topic, table, rows, arguments.repeat)
    print(f"load after {os.getloadavg()[0]:.1f}")


def measure(world: World, topic: str, table: str, rows: int, repeat: int) -> None:
    source = world.source(topic, None)
    sink = PostgresSink(world.postgres.url, table, delivery="two_phase")
    flow = Flow(table)
    flow.source(source.bounded(), uid="rows").sink(sink)
    spark = world.spark

    def read_both() -> None:
        with PostgresSource(world.postgres.url, table, splits=4).frozen() as frozen:
            drain(read_postgres(spark, frozen))
        begin = source.initial_positions()
        drain(read_records(spark, source, Range(begin, source.planner(begin).latest(begin))))

    def check(expect: str = "") -> None:
        writer = FlowWriter(flow.graph())
        try:
            found = verify(spark, writer, sink, ("id",), expect)
        finally:
            writer.close()
        assert found.comparison.expected == found.comparison.actual == rows, found
        assert found.is_exact, found.invariants

    contestants: dict[str, Callable[[], None]] = {
        "both sides read once": read_both,
        "verify": check,
        "verify --expect": lambda: check("SELECT id, account, amount, at FROM source"),
    }
    walls: dict[str, list[float]] = {name: [] for name in contestants}
    costs: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeat + 1):  # the first does not count
        for name, run in contestants.items():
            before_s, began_s = cpu_s(os.getpid()), time.monotonic()
            run()
            if turn:
                walls[name].append(time.monotonic() - began_s)
                costs[name].append((cpu_s(os.getpid()) - before_s) / rows * 1e6)
    base_s, base = (statistics.median(found["both sides read once"]) for found in (walls, costs))
    print(f"{rows:,} rows, columns {SCHEMA}")
    for name in contestants:
        wall_s, cost = statistics.median(walls[name]), statistics.median(costs[name])
        print(
            f"{name:24} {wall_s:7.1f} s ({wall_s / base_s:.2f}), CPU us/row without the servers'"
            f" {cost:.2f} ({cost / base:.2f})",
            flush=True,
        )


def drain(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
