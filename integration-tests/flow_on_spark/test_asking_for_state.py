"""State of a stopped flow on Spark is answered as the engine answers it; and what a driver that was killed left."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.definitions import named
from harness.ending import run_until
from harness.errors import raises
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import CheckpointMismatch, ConfigError, DataLoss, EpochRecord, Retriable
from onefold.core.checks import present
from onefold.engine.asking.reader import StateAnswer
from onefold.flow import Flow, Session, StatefulProcessor, Ttl, Tumbling, count, last, mean, monotonic, sum_
from onefold.pipeline import Engine, Pipeline, Spark, StateReader
from onefold.sinks import PostgresSink
from onefold.sources import FileSource
from onefold.store.history import History

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = "k string, at timestamp, price decimal(10,2), n long"
ROWS = [
    ("a", 1, "12.50", 1),
    (None, 2, "0.05", 2),
    ("ü/$ a", 3, None, 3),
    ("a", 7, "12.50", 4),
    ("a", 12, "-3.00", None),
    (None, 13, None, 6),
    ("b", 31, "99999999.99", 7),
    ("a", 33, "1.00", 8),
    ("b", 34, "0.01", -9),
]
SECOND = "2026-01-01T00:00:{:02}.250Z"
KEYS = [("a",), (None,), ("ü/$ a",), ("b",), ("unknown",)]
# Of each state that can be asked for: its operator, its name, and keys.
STATES: list[tuple[str, str, list[tuple[Any, ...]]]] = [
    ("totals", "aggregates", KEYS),
    ("expiring", "aggregates", KEYS),
    ("largest", "reduced", KEYS),
    ("hours", "windows", KEYS),
    ("sessions", "windows", KEYS),
    ("kept", "price", KEYS),
    ("kept", "seen", KEYS),
    ("kept", "by_price", KEYS),
    ("kept", "raw", KEYS),
    ("all", "windows", [()]),
    (
        "several",
        "aggregates",
        [
            (k, Decimal(price) if price else None, datetime.fromisoformat(SECOND.format(second)))
            for k, second, price, _ in ROWS
        ],
    ),
]


def kept() -> StatefulProcessor:
    class Kept(StatefulProcessor):
        """Of each key the last price and its time, all prices, their number by price, and bytes."""

        def init(self, handle: Any) -> None:
            self.price = handle.getValueState("price", "price decimal(10,2), at timestamp")
            self.seen = handle.getListState("seen", "price decimal(10,2), k string")
            self.by_price = handle.getMapState("by_price", "price decimal(10,2), at timestamp", "n long")
            self.raw = handle.getBytesState("raw")

        def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
            del timerValues
            for row in rows:
                self.price.update((row.price, row.at))
                self.seen.appendValue((row.price, row.k))
                self.by_price.updateValue((row.price, row.at), (row.n,))
                self.raw.update(bytes([row.at.second]))
                yield key

    return Kept()


class Asked:
    """A flow of every kind of state over files, an epoch each."""

    def __init__(self, root: Path, url: str, on: Engine | Spark) -> None:
        self.root, self.url, self.name = root, url, type(on).__name__.lower()
        (root / "in").mkdir(exist_ok=True)
        self.pipeline = Pipeline(self.flow(), checkpoint=str(root / self.name), runtime=on)

    def flow(self, **more: Any) -> Flow:
        flow = Flow(self.name, max_parallelism=4)
        source = FileSource(str(self.root / "in"), format="json", schema=SCHEMA, settle_s=0.0, max_files_per_trigger=1)
        rows = flow.source(source, uid="in", watermarks=monotonic("at", idle=None))
        by = rows.key_by("k")
        sums: Any = {
            "total": sum_("n"),
            "mean": mean("n"),
            "prices": sum_("price"),
            "rows": count(),
            "newest": last("at"),
        }
        made = [
            by.aggregate(uid="totals", **(sums | more)),
            by.reduce(lambda kept, row: max(kept, row, key=lambda one: one["n"] or 0), uid="largest"),
            by.window(Tumbling("20 seconds")).aggregate(uid="hours", **sums),
            by.window(Session("4 seconds")).aggregate(uid="sessions", **sums),
            by.process(kept(), "k string", uid="kept"),
            rows.key_by("k", "price", "at").aggregate(uid="several", **sums),
            by.aggregate(uid="expiring", ttl=Ttl("1 day"), rows=count()),
        ]
        keys = [each.map_batches(lambda batch: batch.select(["k"])) for each in made]
        keys[0].union(*keys[1:]).sink(PostgresSink(self.url, f"{self.name}_keys"))
        of_all = rows.window(Tumbling("1 hour")).aggregate(uid="all", **sums)
        of_all.sink(PostgresSink(self.url, f"{self.name}_all"))
        rows.sink(PostgresSink(self.url, self.name))
        return flow

    def reader(self, **settings: Any) -> StateReader:
        return StateReader(self.pipeline, offline=True, **settings)

    def last(self) -> EpochRecord:
        """The last complete epoch."""
        with closing(History(self.pipeline.store_url, 5.0)) as history:
            return present(present(history.status(self.name), "it was started").complete, "it has run").record

    def run(self) -> None:
        """Until all files are read, and what is due of their times was done."""
        files = len([*(self.root / "in").iterdir()])

        def is_done() -> bool:
            with psycopg.connect(self.url) as db, suppress(psycopg.errors.UndefinedTable):
                return db.execute(f"SELECT count(*) FROM {self.name}".encode()).fetchone() == (3 * files,)
            return False

        run_until(self.pipeline, is_done)


def put(root: Path, number: int) -> None:
    lines = [
        json.dumps({"k": k, "at": SECOND.format(second), "price": None if price is None else float(price), "n": n})
        for k, second, price, n in ROWS[3 * number : 3 * number + 3]
    ]
    (root / f"in/{number}.json").write_text("\n".join(lines) + "\n")


def same(mine: StateAnswer, other: StateAnswer) -> None:
    assert mine.batch.schema == other.batch.schema
    assert (mine.rows, mine.view, mine.watermark) == (other.rows, other.view, other.watermark)


def test_each_kind_of_state_is_answered_as_on_the_engine(
    tmp_path: Path, postgres_url: str, spark: SparkSession
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    engine, on_spark = (Asked(tmp_path, postgres_url, on) for on in (Engine(), Spark(session=spark)))
    with raises(ConfigError, "state-not-kept", "spark"):
        on_spark.reader().get("totals", ("a",))
    for files in ((0, 1), (2,)):
        for number in files:
            put(tmp_path, number)
        for each in (engine, on_spark):
            each.run()
        of_engine, of_spark, ended = engine.reader(), on_spark.reader(), on_spark.last()
        assert of_spark.operators() == of_engine.operators()
        for uid, state, keys in STATES:
            theirs = of_engine.get_many(uid, keys, state=state)
            for key, mine, other in zip(keys, of_spark.get_many(uid, keys, state=state), theirs, strict=True):
                same(mine, other)
                assert (mine.epoch, mine.timestamp_ms) == (ended.epoch, ended.timestamp_ms)
                assert bool(mine.rows) or key == ("unknown",) or uid != "totals" or 2 not in files
            (mine,), (other,) = (reader.scan(uid, state=state) for reader in (of_spark, of_engine))
            assert sorted(map(repr, mine.rows)) == sorted(map(repr, other.rows)) and mine.rows
            assert len(of_spark.scan(uid, state=state, limit=1)[0].rows) <= len(mine.rows)
    refused(on_spark)
    asked_by_command(on_spark)
    damaged(on_spark)


def refused(of: Asked) -> None:
    """What cannot be asked for, by name."""
    reader = of.reader()
    with raises(ConfigError, "state-not-queryable", "nobody", "totals, largest"):
        reader.get("nobody", ("a",))
    with raises(ConfigError, "state-unknown", "price, seen"):
        reader.get("kept", ("a",))
    with raises(ConfigError, "state-key", "k string"):
        reader.get("totals", ("a", "b"))
    with raises(ConfigError, "state-on-spark", "--offline"):
        StateReader(of.pipeline)
    changed = replace(of.pipeline, flow=of.flow(total=sum_("price")))
    with raises(CheckpointMismatch, "state-operators-changed", "totals"):
        StateReader(changed, offline=True).get("totals", ("a",))
    moved = replace(of.pipeline, checkpoint=str(of.root / "elsewhere"))
    with raises(ConfigError, "state-not-kept", "elsewhere"):
        StateReader(moved, offline=True).get("totals", ("a",))
    commits = of.root / "spark/commits"  # an older copy of the checkpoint
    gone = [
        path.rename(of.root / path.name) for path in commits.iterdir() if path.name.isdecimal() and path.name != "0"
    ]
    with raises(ConfigError, "state-not-kept"):
        of.reader().get("totals", ("a",))
    for path in gone:
        path.rename(commits / path.name)


def damaged(of: Asked) -> None:
    """Files of the state are gone: that is no answer without rows."""
    state = of.root / "spark/state"
    for path in [*state.rglob("*.zip"), *state.rglob("*.changelog")]:
        path.unlink()
    with raises(Retriable, "state-unreadable", "spark"):
        of.reader().get("totals", ("a",))
    shutil.rmtree(state)
    with raises(DataLoss, "state-file-missing", "totals"):
        of.reader().get("totals", ("a",))
    ran = CliRunner().invoke(app, ["savepoint", "create", named(of.pipeline)])
    assert "[state-file-missing]" in str(ran.exception)


def asked_by_command(of: Asked) -> None:
    def ask(*arguments: str) -> Any:
        ran = CliRunner().invoke(app, ["state", "get", named(of.pipeline), *arguments, "--json"])
        return ran.exit_code, json.loads(ran.output) if ran.output.startswith("{") else str(ran.exception)

    code, answer = ask("several", "b", "0.01", "2026-01-01T00:00:34.250Z", "--offline")
    assert (code, answer["rows"][0]["total"], answer["view"], answer["epoch"]) == (0, -9, "committed", of.last().epoch)
    assert ask("totals", "unknown", "--offline")[0] == 1
    assert "[state-on-spark]" in ask("totals", "a")[1]


@pytest.mark.parametrize("place", ["before:Decide#2", "after:WriteLedger#2"])
def test_of_a_driver_that_was_killed_the_last_batch_is_answered_that_spark_has_committed(
    flows: Any, spark: SparkSession, place: str
) -> None:
    """So the second epoch is not answered, also where it is decided, and its rows are written."""
    flows.put(900)
    job = flows.job(kind="totals", runtime="spark")
    pipeline = Pipeline(job.flow(), checkpoint=job.checkpoint, runtime=Spark(session=spark))

    def check(epoch: int) -> int:
        """The answers are of the records that the epoch has read, which are so many."""
        with closing(History(flows.url, 5.0)) as history:
            end = present(history.epoch("job", epoch), "it is on record").record.range.end
        read, sums = end.topics()[flows.topic], defaultdict[int, list[int]](list)
        for number, account, n in flows.sent:
            if number // 4 < read[number % 4]:
                sums[account].append(n)
        answers = StateReader(pipeline, offline=True).get_many("totals", [(account,) for account in range(8)])
        assert {each.epoch for each in answers} == {epoch}
        due = [[{"account": k, "total": sum(of), "records": len(of)}] if (of := sums.get(k)) else [] for k in range(8)]
        assert [each.rows for each in answers] == due
        return sum(read.values())

    process = flows.start(job, place)
    process.held()
    with raises(ConfigError, "state-on-spark", str(process.process.pid), "--offline"):
        check(1)
    process.kill()
    assert check(1) == 300
    flows.finish(job)
    assert check(3) == 900
