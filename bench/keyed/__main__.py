"""`python -m bench.keyed`: a sum by key, of JSON records in Kafka: flows on the engine, exactly once into Postgres,
beside other Python stream processors, at least once into nothing. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from bench.cpu import cpu_s
from bench.jars import flink_jar
from bench.narrator import Say, narrated
from bench.report import Load
from bench.world import PARTITIONS, World, open_world
from onefold.local import find_java

SEED = 1
START_ROWS = 10_000
"""A topic of so few shows what a contestant's start and end take: that is taken off its time with all rows."""

PEERS = {
    "bytewax": ("bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1", "orjson==3.11.9"),
    "pathway": ("pathway==0.33.0",),
    "quix": ("quixstreams==3.28.1", "orjson==3.11.9"),
    "flink": ("apache-flink==2.3.0", "orjson==3.11.9"),
}
"""What pip installs for a peer, in an environment of its own; that of Spark is ours."""

FLINK_PROCESS = "flink_process"
CONTESTANTS = ("aggregate", "process", *PEERS, "spark", FLINK_PROCESS)
STARTS_MIN = 0.25  # a time of all records counts where it is so much of what start and end take, which vary


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of a contestant's process and of all below it, from its start to its end."""

    wall_s: float
    cpu_s: float


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()

    names = {name: "flink" if name == FLINK_PROCESS else name for name in arguments.only}
    pythons = {name: _python(peer, arguments.directory) for name, peer in names.items() if peer in PEERS}
    if "flink" in pythons or FLINK_PROCESS in pythons:
        flink_jar()  # what cannot be downloaded is found out before the others have run
    with open_world(arguments.directory, say) as world:
        for keys in arguments.keys:
            topics = {rows: _topic(world, rows, keys) for rows in (START_ROWS, arguments.rows)}
            found: dict[str, list[tuple[Run, Run]]] = {}
            for turn in range(arguments.repeat):
                for name in arguments.only:
                    start, whole = (_run(world, name, pythons, topics[rows], rows, keys) for rows in topics)
                    found.setdefault(name, []).append((start, whole))
                    took = f"{whole.wall_s:.1f} s, of which start {start.wall_s:.1f} s"
                    say(f"{turn + 1}/{arguments.repeat} {keys:,} keys: {name} {took}")
            _print(console, arguments.rows, keys, found)
    console.print(str(load))
    return 0


def _python(name: str, directory: Path) -> Path:
    """That of the peer's environment, which is made if it is not there."""
    python = directory.resolve() / "peers" / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[name]], check=True)
    return python


def _topic(world: World, rows: int, keys: int) -> str:
    """Records whose key is their account's, each account in one partition: a peer that needs it so has it so."""
    name = f"keyed-{rows}-{keys}-{SEED}"
    servers = world.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    if name in admin.list_topics(timeout=30).topics:
        return name
    world.say(f"producing {rows:,} records of {keys:,} keys into {name}")
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, "linger.ms": 20})
    for number, (account, amount) in enumerate(zip(*(made.tolist() for made in _records(rows, keys)), strict=True)):
        value = b'{"id":%d,"account":%d,"amount":%d}' % (number, account, amount)
        producer.produce(name, value, b"%d" % account, partition=account % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0 if number % 100_000 else 0.1)
    producer.flush()
    return name


def _records(rows: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Accounts and amounts: the same ones in every run."""
    random = np.random.default_rng(SEED)
    return random.integers(keys, size=rows), random.integers(100_000, size=rows)


def _run(world: World, name: str, pythons: dict[str, Path], topic: str, rows: int, keys: int) -> Run:
    servers = world.kafka.bootstrap_servers
    if name in pythons:
        scripts, is_flink = Path(__file__).with_name("peers"), name in ("flink", FLINK_PROCESS)
        script = scripts / ("flink_sum.py" if is_flink else f"{name}_sum.py")
        mode = "process" if name == FLINK_PROCESS else "thread"
        more = [mode, str(find_java().home), str(flink_jar())] if is_flink else []
        return _timed([str(pythons[name]), str(script), servers, topic, str(rows), *more])
    if name == "spark":
        return _timed([sys.executable, "-m", "bench.keyed.peers.spark_sum", servers, topic, str(rows)])
    order = "onefold_epoch" if name == "aggregate" else "records"
    table = f"totals_{uuid.uuid4().hex[:8]}"
    world.sql(f"CREATE TABLE {table} (account bigint PRIMARY KEY, total bigint, {order} bigint)")
    with world.checkpoint() as root:
        run = _timed([sys.executable, "-m", "bench.keyed.ours", name, servers, topic, world.postgres.url, table, root])
    found = world.sql(f"SELECT sum(total)::bigint FROM {table}")[0][0]
    world.sql(f"DROP TABLE {table}")
    if found != (right := int(_records(rows, keys)[1].sum())):
        raise RuntimeError(f"the totals of {name} come to {found:,}, and the records to {right:,}")
    return run


def _timed(command: Sequence[str]) -> Run:
    with tempfile.TemporaryFile() as said:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        used_s = 0.0
        while process.poll() is None:
            used_s = cpu_s(process.pid)
            time.sleep(0.02)
        wall_s = time.monotonic() - began_s
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(
                f"{' '.join(command[:3])} ended with {process.returncode}: {said.read()[-2000:].decode()}"
            )
    return Run(wall_s, used_s)


def _print(console: Console, rows: int, keys: int, found: dict[str, list[tuple[Run, Run]]]) -> None:
    title = f"{rows:,} records, {keys:,} keys; without start and end"
    table = Table("contestant", "rows/s, median", "CPU us a row", "ours: aggregate", "ours: process", title=title)
    cpu_us = {
        name: us_a_row(rows, [(start.cpu_s, whole.cpu_s) for start, whole in runs]) for name, runs in found.items()
    }
    for name, runs in found.items():
        wall_us, mine = us_a_row(rows, [(start.wall_s, whole.wall_s) for start, whole in runs]), cpu_us[name]
        times = [
            "" if mine is None or (our := cpu_us.get(ours)) is None else f"{mine / our:.1f}x"
            for ours in ("aggregate", "process")
        ]
        rate = "too few records" if wall_us is None else f"{1e6 / wall_us:,.0f}"
        table.add_row(name, rate, "too few records" if mine is None else f"{mine:.2f}", *times)
    console.print(table)


def us_a_row(rows: int, runs: Sequence[tuple[float, float]]) -> float | None:
    """Microseconds a row, of pairs of seconds: of a start and its end alone, and with all records. None where the
    records make too little of it to tell."""
    start_s = statistics.median(start for start, _ in runs)
    records_s = statistics.median(whole - start for start, whole in runs)
    return records_s / (rows - START_ROWS) * 1e6 if records_s >= STARTS_MIN * start_s else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.keyed", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="records in the topic (default: %(default)s)")
    add("--keys", type=int, nargs="+", default=[100_000, 1_000_000], help="accounts (default: %(default)s)")
    add("--repeat", type=int, default=3, help="how often each contestant runs (default: %(default)s)")
    add(
        "--only",
        nargs="+",
        choices=CONTESTANTS,
        default=[name for name in CONTESTANTS if name != FLINK_PROCESS],
        metavar="NAME",
        help=f"of {', '.join(CONTESTANTS)} (default: all but the last, which takes hours)",
    )
    add("--directory", type=Path, default=Path(".onefold/bench"), help="servers and scratch (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
