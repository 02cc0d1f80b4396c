"""`python -m bench.windows`: windows of event time by key, of JSON records in Kafka: flows on the engine, exactly once
into Postgres, beside other stream processors, at least once into nothing. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np
import psycopg
import pyarrow.csv
from rich.console import Console

from bench.jars import flink_jar
from bench.narrator import Say, narrated
from bench.peers import PEERS, Run, Times, arguments_of, fill, print_times, python_of, timed
from bench.report import Load
from bench.windows.records import KINDS, Windows, records, windows
from bench.world import PARTITIONS, World, open_world
from onefold.local import find_java

START_ROWS = 1_000
"""A topic of so few shows what a contestant's start and end take: that is taken off its time with all rows."""

OURS = ("ours", "elements", "dropped", "unwindowed")
CONTESTANTS = (*OURS, *PEERS, "spark")
SLIDING_PART = 10
"""All get this part of the records for sliding windows, where up to 60 results come of each."""

SLOW = {("quix", "sliding"): 10, ("flink", "sliding"): 10, ("elements", "sliding"): 10}
"""Contestants that would take hours get this part of these."""

UNWINDOWED = "id bigint, account bigint, amount bigint, at timestamptz"
WINDOWED = "account bigint, window_start timestamptz, window_end timestamptz, total bigint"
MS = "(extract(epoch FROM {}) * 1000)::bigint"


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load, failed = Load(), 0

    pythons = {name: python_of(name, arguments.directory) for name in arguments.only if name in PEERS}
    if "flink" in pythons:
        flink_jar()  # what cannot be downloaded is found out before the others have run
    with open_world(arguments.directory, say) as world:
        for kind in arguments.kinds:
            contest = _Contest(world, kind, arguments.keys, pythons)
            found: dict[str, Times] = {}
            for turn in range(arguments.repeat):
                for name in arguments.only:
                    rows = _rows(arguments.rows, name, kind)
                    try:
                        start, whole = contest.run(name, START_ROWS), contest.run(name, rows)
                    except RuntimeError as error:  # the others' figures count all the same
                        say(f"{turn + 1}/{arguments.repeat} {kind}: {error}")
                        failed = 1
                        continue
                    times = found.setdefault(name, contest.times(name, rows))
                    say(f"{turn + 1}/{arguments.repeat} {kind}: {name} {times.add(start, whole)}")
            title = f"{kind}: {arguments.keys:,} keys; without start and end"
            print_times(console, title, found, ["ours"])
            _print_part(console, found)
    console.print(str(load))
    return failed


class _Contest:
    """Runs contestants on windows of one kind, and checks what each has made."""

    def __init__(self, world: World, kind: str, keys: int, pythons: dict[str, Path]) -> None:
        self._world, self._kind, self._keys, self._pythons = world, kind, keys, pythons
        self._right: dict[int, Windows] = {}

    def times(self, name: str, rows: int) -> Times:
        """Without runs so far."""
        results = len(self._windows(rows)) - len(self._windows(START_ROWS))
        return Times(rows - START_ROWS, None if name == "unwindowed" else results)

    def run(self, name: str, rows: int) -> Run:
        topic = f"windows-{rows}-{self._keys}"
        # kept for good, whatever the age of their times
        fill(self._world, topic, lambda: records(rows, self._keys), **{"retention.ms": "-1"})
        return self._ours(name, topic, rows) if name in OURS else self._peer(name, topic, rows)

    def _ours(self, name: str, topic: str, rows: int) -> Run:
        world, table = self._world, f"windows_{uuid.uuid4().hex[:8]}"
        world.sql(f"CREATE TABLE {table} ({UNWINDOWED if name == 'unwindowed' else WINDOWED})")
        command = [sys.executable, "-m", "bench.windows.ours", name, self._kind, world.kafka.bootstrap_servers, topic]
        with world.checkpoint() as root:
            run = timed([*command, world.postgres.url, table, root])
        if name in ("ours", "elements"):
            right, found = self._windows(rows).ordered(), _read(world, table).ordered()
            if not np.array_equal(right, found):
                raise RuntimeError(
                    f"{self._kind}: the table has {found.shape[1]:,} windows, and the records {right.shape[1]:,};"
                    f" their totals come to {found[3].sum():,} and {right[3].sum():,}"
                )
        world.sql(f"DROP TABLE {table}")
        return run

    def _peer(self, name: str, topic: str, rows: int) -> Run:
        """It tells how many windows have come out, but those that end partitions, and what their totals come to."""
        right = self._windows(rows)
        with tempfile.NamedTemporaryFile("r") as told:
            what = [self._world.kafka.bootstrap_servers, topic, str(rows + PARTITIONS), self._kind, told.name]
            if name == "spark":
                run = timed([sys.executable, "-m", "bench.windows.peers.spark_windows", *what])
            else:
                script = Path(__file__).with_name("peers") / f"{name}_windows.py"
                more = [str(find_java().home), str(flink_jar())] if name == "flink" else []
                run = timed([str(self._pythons[name]), str(script), *what, *more])
            found = np.loadtxt(Path(told.name), dtype=np.int64, ndmin=2).sum(axis=0).tolist()
        if found != [len(right), int(right.total.sum())]:
            raise RuntimeError(
                f"{self._kind}: {name} has made {found[0]:,} windows, whose totals come to {found[1]:,}, and the"
                f" records {len(right):,}, of {right.total.sum():,}"
            )
        return run

    def _windows(self, rows: int) -> Windows:
        if rows not in self._right:
            self._right[rows] = windows(self._kind, rows, self._keys)
        return self._right[rows]


def _rows(rows: int, name: str, kind: str) -> int:
    part = (SLIDING_PART if kind == "sliding" else 1) * SLOW.get((name, kind), 1)
    return max(rows // part, 10 * START_ROWS)


def _read(world: World, table: str) -> Windows:
    """What is in the table, but for the windows that end partitions."""
    start, end = MS.format("window_start"), MS.format("window_end")
    query = f"COPY (SELECT account, {start}, {end}, total FROM {table} WHERE total > 0) TO STDOUT (FORMAT csv)"
    with tempfile.NamedTemporaryFile() as file, psycopg.connect(world.postgres.url) as connection:
        with connection.cursor().copy(query.encode()) as copy:
            for data in copy:
                file.write(data)
        file.flush()
        names = pyarrow.csv.ReadOptions(column_names=["account", "start_ms", "end_ms", "total"])
        found = pyarrow.csv.read_csv(file.name, read_options=names)
    return Windows(*(column.to_numpy() for column in found.columns))


def _print_part(console: Console, found: dict[str, Times]) -> None:
    """What the windows take alone: of the same flow with and without them, both into a filter that drops all."""
    if "dropped" not in found or "unwindowed" not in found:
        return
    dropped, unwindowed = found["dropped"], found["unwindowed"]
    if (more := dropped.cpu_us) is not None and (less := unwindowed.cpu_us) is not None and dropped.results:
        alone_us = more - less
        a_result = alone_us * dropped.rows / dropped.results
        console.print(f"ours, the windows alone: {alone_us:.2f} CPU us a row, {a_result:.2f} a result")


def _arguments() -> argparse.Namespace:
    parser = arguments_of("bench.windows", __doc__, CONTESTANTS, CONTESTANTS)
    add = parser.add_argument
    add("--keys", type=int, default=100_000, help="accounts (default: %(default)s)")
    add(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
