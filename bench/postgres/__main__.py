"""`python -m bench.postgres`: rows into Postgres beside other ways, in one run. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.arguments import parser_of
from bench.jars import NotAvailable, spark_jars
from bench.narrator import Say, narrated
from bench.postgres import memory, spark
from bench.postgres.tables import Case, Tables, make_rows
from bench.report import Load
from onefold.local import PostgresServer
from onefold.spark.session import spark_session

UPSERT = {"mode": "upsert", "key": "id", "order": "at"}
UPSERTS: tuple[Case, ...] = ("new", "existing", "mixed")


@dataclass(frozen=True)
class Contestant:
    """`run(tables, table, paths)` answers with the seconds it took."""

    name: str
    case: Case
    run: Callable[[Tables, str, Sequence[Path]], float]


# Ours, the peer, the case of both, and how many times its throughput ours has to reach.
GOALS = (
    ("writers, two_phase", "psycopg COPY", "append", 0.8),
    ("writers, staged", "psycopg COPY", "append", 0.5),
    ("writers, two_phase", "server-side COPY", "append", None),
    ("Spark, two_phase", "Spark JDBC", "append", None),
    ("Spark, staged", "Spark JDBC", "append", None),
    *(("Spark, upsert staged", "Spark stage and merge", case, 2.0 if case == "new" else None) for case in UPSERTS),
    *(("Spark, upsert two_phase", "Spark stage and merge", case, None) for case in UPSERTS),
)


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    load = Load()
    rates: dict[tuple[str, Case], list[float]] = {}
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with PostgresServer(directory) as server:
            tables = Tables(server, arguments.rows)
            tables.sql("DROP SCHEMA IF EXISTS onefold_sinks, public CASCADE; CREATE SCHEMA public")
            contestants = [*_in_memory(), *_through_spark(directory, console)]
            contestants = [
                c for c in contestants if not arguments.only or any(part in c.name for part in arguments.only)
            ]
            for turn in range(arguments.repeat + 1):
                for contestant in contestants:
                    rate = _run(tables, contestant)
                    what = "warm-up" if turn == 0 else f"{turn}/{arguments.repeat}"
                    say(f"{what}: {contestant.name}, {contestant.case}: {rate / 1e6:.3f} M rows/s")
                    if turn > 0:
                        rates.setdefault((contestant.name, contestant.case), []).append(rate)
    except KeyboardInterrupt:
        console.print("interrupted: the server is stopped")
        return 130
    _print(console, rates, arguments.rows)
    console.print(str(load))
    if arguments.json is not None:
        runs = [{"contestant": name, "case": case, "rows_per_s": values} for (name, case), values in rates.items()]
        text = json.dumps({"rows": arguments.rows, "machine": str(load), "runs": runs}, indent=2)
        arguments.json.write_text(text + "\n")
    return 0


def _run(tables: Tables, contestant: Contestant) -> float:
    """Rows per second."""
    # Where the server's own user may read: it opens the files of the server-side COPY itself.
    paths = make_rows(Path(tempfile.gettempdir(), "onefold-bench"), contestant.case, tables.rows, seed=1)
    with tables.table(contestant.case) as table:
        return tables.rows / contestant.run(tables, table, paths)


def _in_memory() -> list[Contestant]:
    sink = memory.through_the_sink
    found = [
        Contestant("server-side COPY", "append", memory.copy_from_files),
        Contestant("psycopg COPY", "append", memory.copy_from_memory),
        Contestant("psycopg COPY", "append with a key", memory.copy_from_memory),
        Contestant("writers, two_phase", "append", partial(sink, delivery="two_phase")),
        Contestant("writers, staged", "append", partial(sink, delivery="staged")),
        Contestant("writers, staged", "append with a key", partial(sink, delivery="staged")),
    ]
    for delivery in ("staged", "two_phase"):
        run = partial(sink, delivery=delivery, **UPSERT)
        found += [Contestant(f"writers, upsert {delivery}", case, run) for case in UPSERTS]
    return found


def _through_spark(directory: Path, console: Console) -> list[Contestant]:
    settings = {"spark.driver.memory": "3g", "spark.ui.showConsoleProgress": "false"}
    has_jdbc = True
    try:
        settings["spark.jars"] = ",".join(map(str, spark_jars()))
    except NotAvailable as error:
        has_jdbc = False
        console.print(f"Spark's JDBC takes no part: {error}")
    session = _Session(directory, settings)
    found = [
        Contestant(f"Spark, {delivery}", "append", session.running(spark.ours, delivery=delivery))
        for delivery in ("two_phase", "staged")
    ]
    for delivery in ("staged", "two_phase"):
        run = session.running(spark.ours, delivery=delivery, **UPSERT)
        found += [Contestant(f"Spark, upsert {delivery}", case, run) for case in UPSERTS]
    if has_jdbc:
        found.append(Contestant("Spark JDBC", "append", session.running(spark.append_with_jdbc)))
        found += [Contestant("Spark stage and merge", case, session.running(spark.stage_and_merge)) for case in UPSERTS]
    return found


class _Session:
    """One Spark session, made when it is first needed."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self._directory, self._settings = directory, settings
        self._spark: SparkSession | None = None

    def running(self, run: Callable[..., float], **more: str) -> Callable[[Tables, str, Sequence[Path]], float]:
        def with_session(tables: Tables, table: str, paths: Sequence[Path]) -> float:
            if self._spark is None:
                place = self._directory / "spark"
                self._spark = spark_session("onefold bench", place, master="local[2]", **self._settings)
            try:
                return run(self._spark, tables, table, paths, **more)
            finally:
                self._spark.catalog.clearCache()

        return with_session


def _print(console: Console, rates: dict[tuple[str, Case], list[float]], rows: int) -> None:
    medians = {key: statistics.median(values) for key, values in rates.items()}
    table = Table(title=f"{rows:,} rows into Postgres, 2 connections, M rows/s")
    for heading in ("contestant", "case", "median", "(min-max)"):
        table.add_column(heading, justify="left" if heading in ("contestant", "case") else "right")
    for (name, case), values in rates.items():
        span = f"({min(values) / 1e6:.3f}-{max(values) / 1e6:.3f})"
        table.add_row(name, case, f"{medians[name, case] / 1e6:.3f}", span)
    console.print(table)
    ratios = Table(title="ours to the peer")
    for heading in ("ours", "peer", "case", "ratio", "goal"):
        ratios.add_column(heading)
    for ours, peer, case, goal in GOALS:
        if (ours, case) in medians and (peer, case) in medians:
            ratio = medians[ours, case] / medians[peer, case]
            color = "white" if goal is None else "green" if ratio >= goal else "red"
            ratios.add_row(ours, peer, case, f"[{color}]{ratio:.2f}[/]", "" if goal is None else f"{goal}")
    console.print(ratios)


def _arguments() -> argparse.Namespace:
    of = "rows written, and rows there before a merge"
    return parser_of("bench.postgres", __doc__, rows=1_000_000, of=of, by_parts=True).parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))
