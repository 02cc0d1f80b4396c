"""`python -m bench.keyed`: a sum by key, of JSON records in Kafka: flows on the engine, exactly once into Postgres,
beside other Python stream processors, at least once into nothing. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.jars import flink_jar
from bench.narrator import Say, narrated
from bench.peers import PEERS, Record, Run, Times, arguments_of, fill, print_times, python_of, timed
from bench.report import Load
from bench.world import PARTITIONS, World, open_world
from onefold.local import find_java

SEED = 1
START_ROWS = 10_000
"""A topic of so few shows what a contestant's start and end take: that is taken off its time with all rows."""

FLINK_PROCESS = "flink_process"
OURS = ("aggregate", "process")
CONTESTANTS = (*OURS, *PEERS, "spark", FLINK_PROCESS)


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()

    names = {name: "flink" if name == FLINK_PROCESS else name for name in arguments.only}
    pythons = {name: python_of(peer, arguments.directory) for name, peer in names.items() if peer in PEERS}
    if "flink" in pythons or FLINK_PROCESS in pythons:
        flink_jar()  # what cannot be downloaded is found out before the others have run
    with open_world(arguments.directory, say) as world:
        for keys in arguments.keys:
            topics = {rows: _topic(world, rows, keys) for rows in (START_ROWS, arguments.rows)}
            found = {name: Times(arguments.rows - START_ROWS) for name in arguments.only}
            for turn in range(arguments.repeat):
                for name in arguments.only:
                    start, whole = (_run(world, name, pythons, topics[rows], rows, keys) for rows in topics)
                    say(f"{turn + 1}/{arguments.repeat} {keys:,} keys: {name} {found[name].add(start, whole)}")
            title = f"{arguments.rows:,} records, {keys:,} keys; without start and end"
            print_times(console, title, found, OURS)
    console.print(str(load))
    return 0


def _topic(world: World, rows: int, keys: int) -> str:
    """Records whose key is their account's, each account in one partition: a peer that needs it so has it so."""

    def records() -> Iterator[Record]:
        for number, (account, amount) in enumerate(zip(*(made.tolist() for made in _records(rows, keys)), strict=True)):
            value = b'{"id":%d,"account":%d,"amount":%d}' % (number, account, amount)
            yield value, b"%d" % account, account % PARTITIONS, 0

    return fill(world, f"keyed-{rows}-{keys}-{SEED}", records)


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
        return timed([str(pythons[name]), str(script), servers, topic, str(rows), *more])
    if name == "spark":
        return timed([sys.executable, "-m", "bench.keyed.peers.spark_sum", servers, topic, str(rows)])
    order = "onefold_epoch" if name == "aggregate" else "records"
    table = f"totals_{uuid.uuid4().hex[:8]}"
    world.sql(f"CREATE TABLE {table} (account bigint PRIMARY KEY, total bigint, {order} bigint)")
    with world.checkpoint() as root:
        run = timed([sys.executable, "-m", "bench.keyed.ours", name, servers, topic, world.postgres.url, table, root])
    found = world.sql(f"SELECT sum(total)::bigint FROM {table}")[0][0]
    world.sql(f"DROP TABLE {table}")
    if found != (right := int(_records(rows, keys)[1].sum())):
        raise RuntimeError(f"the totals of {name} come to {found:,}, and the records to {right:,}")
    return run


def _arguments() -> argparse.Namespace:
    most = [name for name in CONTESTANTS if name != FLINK_PROCESS]  # which takes hours
    parser = arguments_of("bench.keyed", __doc__, CONTESTANTS, most)
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[100_000, 1_000_000], help="accounts (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
