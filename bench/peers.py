"""What benchmarks beside other stream processors share: the peers' environments, topics, timed processes, and
the table of their times.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from bench.arguments import parser_of
from bench.cpu import cpu_s
from bench.world import PARTITIONS, World

__all__ = ["PEERS", "Record", "Run", "Times", "arguments_of", "fill", "print_times", "python_of", "timed", "us_a_row"]

PEERS = {
    "bytewax": ("bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1", "orjson==3.11.9"),
    "pathway": ("pathway==0.33.0",),
    "quix": ("quixstreams==3.28.1", "orjson==3.11.9"),
    "flink": ("apache-flink==2.3.0", "orjson==3.11.9"),
}
"""What pip installs for a peer, in an environment of its own; that of Spark is ours."""

STARTS_MIN = 0.25  # a time of all records counts where it is so much of what start and end take, which vary

Record = tuple[bytes, bytes, int, int]
"""Value, key, partition, and milliseconds since 1970: 0 for now."""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of a contestant's process and of all below it, from its start to its end."""

    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Times:
    """A contestant's runs: each of a start and its end alone, and with all records. `rows` and `results` are what the
    second has more than the first: records that are read, and rows that come out, where these are counted."""

    rows: int
    results: int | None = None
    runs: list[tuple[Run, Run]] = field(default_factory=list)

    def add(self, start: Run, whole: Run) -> str:
        """The runs in words."""
        self.runs.append((start, whole))
        return f"{whole.wall_s:.1f} s, of which start {start.wall_s:.1f} s"

    @property
    def wall_us(self) -> float | None:
        return us_a_row(self.rows, [(start.wall_s, whole.wall_s) for start, whole in self.runs])

    @property
    def cpu_us(self) -> float | None:
        return us_a_row(self.rows, [(start.cpu_s, whole.cpu_s) for start, whole in self.runs])


def python_of(name: str, directory: Path) -> Path:
    """That of the peer's environment, which is made if it is not there."""
    python = directory.resolve() / "peers" / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[name]], check=True)
    return python


def fill(world: World, topic: str, records: Callable[[], Iterable[Record]], **settings: str) -> str:
    """Makes the topic with these settings and records, if it is not there. Returns its name."""
    servers = world.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    if topic in admin.list_topics(timeout=30).topics:
        return topic
    world.say(f"producing the records of {topic}")
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result()
    # idempotent: what is sent again keeps its place, as when a new topic has no leader yet
    settled = {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000, "linger.ms": 20, "log_level": 3}
    producer = Producer({"bootstrap.servers": servers, **settled})
    for number, (value, key, partition, at_ms) in enumerate(records()):
        producer.produce(topic, value, key, partition=partition, timestamp=at_ms)
        if number % 10_000 == 0:
            producer.poll(0 if number % 100_000 else 0.1)
    producer.flush()
    return topic


def timed(command: Sequence[str]) -> Run:
    """Raises RuntimeError where it fails, with what it said."""
    with tempfile.TemporaryFile() as said:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        used_s = 0.0
        try:
            while process.poll() is None:
                used_s = cpu_s(process.pid)
                time.sleep(0.02)
        finally:
            process.kill()
        wall_s = time.monotonic() - began_s
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(
                f"{' '.join(command[:3])} ended with {process.returncode}: {said.read()[-2000:].decode()}"
            )
    return Run(wall_s, used_s)


def us_a_row(rows: int, runs: Sequence[tuple[float, float]]) -> float | None:
    """Microseconds a row, of pairs of seconds: of a start and its end alone, and with so many rows more. None where the
    rows make too little of it to tell."""
    start_s = statistics.median(start for start, _ in runs)
    records_s = statistics.median(whole - start for start, whole in runs)
    return records_s / rows * 1e6 if records_s >= STARTS_MIN * start_s else None


def print_times(console: Console, title: str, found: dict[str, Times], ours: Sequence[str]) -> None:
    """A line each, with the CPU time a row in multiples of that of `ours`."""
    counted = any(times.results is not None for times in found.values())
    more = ("rows", "CPU us a result") if counted else ()
    table = Table(
        "contestant", "rows/s, median", "CPU us a row", *(f"times {name}" for name in ours), *more, title=title
    )
    for name, times in found.items():
        wall_us, mine = times.wall_us, times.cpu_us
        ratios = [
            "" if mine is None or name_ not in found or (our := found[name_].cpu_us) is None else f"{mine / our:.1f}x"
            for name_ in ours
        ]
        rate = "too few records" if wall_us is None else f"{1e6 / wall_us:,.0f}"
        a_row = "too few records" if mine is None else f"{mine:.2f}"
        a_result = "" if mine is None or not times.results else f"{mine * times.rows / times.results:.2f}"
        table.add_row(name, rate, a_row, *ratios, *((f"{times.rows:,}", a_result) if counted else ()))
    console.print(table)


def arguments_of(
    module: str, about: str | None, contestants: Sequence[str], default: Sequence[str]
) -> argparse.ArgumentParser:
    """A parser of what all of these benchmarks are told."""
    parser = parser_of(module, about, rows=2_000_000, of="records in the topic")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=contestants,
        default=default,
        metavar="NAME",
        help=f"of {', '.join(contestants)} (default: {', '.join(default)})",
    )
    return parser
