"""From Kafka through Spark into HBase, in each mode, in one epoch; read back by `read_hbase`; and `verify` of it."""

from __future__ import annotations

import importlib
import json
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.definitions import named, piped
from harness.support import Rig, fresh
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, table_admin
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import ConfigError, TaskId, Terminal, WriteThrough
from onefold.core.invariants import Comparison
from onefold.sinks import HBaseSink
from onefold.sources import HBaseSource
from onefold.spark import read_hbase
from onefold.spark.errors.failures import from_spark
from onefold.spark.runtime.writers import run_writers
from onefold.spark.verify.comparing.comparison import near
from onefold.spark.verify.hbase_results import due
from onefold.spark.verify.relations import looked_at
from onefold.spark.verify.verification import compare, verify

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

SCHEMA = "account long, id long, n int, x double, tag string, doc array<int>, gone boolean"
COUNT = 400
# Of account i % 8, so that each account is in one of the topic's partitions, in the order of its ids; x cancels out.
ROWS = [
    (i % 8, i, i - 100, (-1) ** (i // 8) * (i // 16) / 7, f"t{i % 5}" if i % 3 else None, [i, i % 2], i >= COUNT - 2)
    for i in range(COUNT)
]
MERGES = {"id": "last", "n": "sum", "x": "sum", "tag": "union", "doc": "union", "gone": "last"}
TOTALS = "SELECT account, max(id) AS id, CAST(sum(n) AS INT) AS n FROM source GROUP BY account"
LATER_MS = 4_000_000_000_000


def greatest() -> Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]:
    """A merge function: the row with the greater n. Not the module's own, which workers cannot import."""

    def merge(base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        is_newer = pc.greater(new.column("n"), base.column("n"))
        columns = zip(base.columns, new.columns, strict=True)
        return pa.RecordBatch.from_arrays([pc.if_else(is_newer, b, a) for a, b in columns], schema=new.schema)

    return merge


def wrong(found: Comparison) -> dict[str, int]:
    kinds = {"lost": found.lost, "duplicated": found.duplicated, "changed": found.changed}
    return {kind: count for kind, count in {**kinds, "unexpected": found.unexpected}.items() if count}


def change(sink: HBaseSink, key: int, column: str, value: Any) -> None:
    """As somebody else would write it, into the row of an account."""
    mapping = sink.settings.declared.bound(pa.schema([("account", pa.int64()), (column, pa.scalar(value).type)]))
    rows = pa.record_batch({"account": pa.array([key], pa.int64()), column: pa.array([value])})
    table = HBaseTable(sink.settings.hbase, mapping.table)
    table.put(mapping.keys(rows), mapping.cells(rows)[:1], LATER_MS)


def sinks(servers: str) -> Sequence[HBaseSink]:
    rolling, applied = (TableMapping.of(fresh(mode), "account", family="f") for mode in ("rolling", "incremental"))
    return (
        HBaseSink(
            servers,
            fresh("newest"),
            row_key="account",
            salt=16,
            family="f",
            order="id",
            delete_when_true="gone",
            regions=4,
        ),
        HBaseSink(servers, rolling, mode="rolling", merge=MERGES, order="id"),
        HBaseSink(servers, applied, mode="incremental", merge=greatest(), sequence="id"),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_tasks")
def test_what_each_mode_made_of_a_topic_is_verified_and_every_change_by_hand_is_named(
    rig: Rig, hbase_server: Any
) -> None:
    names = [column.split()[0] for column in SCHEMA.split(", ")]
    rig.put_values([json.dumps(dict(zip(names, row, strict=True))).encode() for row in ROWS])
    source = rig.source(at_most=250, schema=SCHEMA)
    made = sinks(hbase_server.servers)
    rig.run(rig.pipeline(*made, source=source, store=rig.sqlite))
    pipeline = rig.pipeline(*made, source=source, store=rig.sqlite)
    result = verify(rig.spark, pipeline, made[1])
    assert result.is_exact, result
    assert (result.epochs, result.comparison.actual) == (2, 8)
    assert verify(rig.spark, pipeline, made[1], expect=TOTALS).is_exact
    with pytest.raises(ConfigError, match="named by account"):
        verify(rig.spark, pipeline, made[0], ["id"])
    defined = named(piped("test", source=source, sinks=made, store=rig.sqlite))
    by_command = CliRunner().invoke(app, ["verify", defined])
    assert by_command.exit_code == 0, by_command.output
    assert all(f"{sink.name}: exact" in by_command.output for sink in made)
    committer, done = made[0].recover(pipeline.name), pipeline.history()[-1]
    assert isinstance(committer, WriteThrough)
    committer.announce(replace(done, epoch=done.epoch + 1, timestamp_ms=done.timestamp_ms + 1))
    with pytest.raises(ConfigError, match="epoch 3 of pipeline 'test' was begun and not finished"):
        verify(rig.spark, pipeline, made[0])
    pipeline.close()

    df = read_hbase(
        rig.spark, HBaseSource(made[0].settings.hbase, made[0].settings.declared), "account int, doc array<int>"
    )
    assert df.rdd.getNumPartitions() == 4
    assert sorted((row.account, row.doc) for row in df.collect()) == [(i % 8, [i, i % 2]) for i in range(392, 398)]

    rows = rig.spark.createDataFrame(ROWS, SCHEMA)
    rows = rows.where("account <> 2").union(rows.where("account = 1").withColumn("account", F.lit(50)))
    for sink in made:
        change(sink, 1, "n", 5)
        change(sink, 99, "n", 5)
        wanted = due(rows, sink)
        with looked_at(rig.spark, sink) as there:
            actual = there.rows(wanted.rows.select(*wanted.shown).schema)
            found = compare(
                wanted.rows, near(actual, wanted.rows, wanted.key, wanted.sums), wanted.key, wanted.versions
            )
        assert wrong(found) == {"lost": 1, "changed": 1, "unexpected": 2}, (sink, found)
    by_command = CliRunner().invoke(app, ["verify", defined, f"--sink={made[1].name}", "--json"])
    assert by_command.exit_code == 1, by_command.output
    ((name, found),) = json.loads(by_command.stdout)["sinks"].items()
    assert (name, wrong(Comparison(**found["comparison"]))) == (made[1].name, {"changed": 1, "unexpected": 1})
    by_query = CliRunner().invoke(app, ["verify", defined, f"--sink={name}", "--json", "--expect", TOTALS])
    ((_, found),) = json.loads(by_query.stdout)["sinks"].items()
    assert wrong(Comparison(**found["comparison"])) == {"changed": 1, "unexpected": 1}
    assert "n is 5, and was to be " in found["comparison"]["samples"]["changed"][0]


VERSIONS = "id long, n int, gone boolean"


def write_versions(rig: Rig, sink: HBaseSink, *epochs: list[tuple[int, int, bool]]) -> None:
    """Each epoch's versions, all in one partition; runs the pipeline after each."""
    for versions in epochs:
        values = [{"id": id, "n": n, "gone": gone} for id, n, gone in versions]
        rig.put_values([json.dumps(value).encode() for value in values], 1)
        rig.run(rig.pipeline(sink, source=rig.source(at_most=None, schema=VERSIONS), store=rig.sqlite))


@pytest.mark.slow
@pytest.mark.usefixtures("few_tasks")
def test_without_an_order_only_the_newest_epochs_version_of_a_row_is_right(rig: Rig, hbase_server: Any) -> None:
    sink = HBaseSink(hbase_server.servers, fresh("newest"), row_key="id", family="f", delete_when_true="gone")
    write_versions(
        rig,
        sink,
        [(1, 1, False), (2, 1, False), (3, 1, True), (4, 1, False), (5, 1, False), (6, 1, False)],
        [(1, 2, False), (2, 2, True), (3, 2, False), (4, 2, False)],
        [(1, 1, False), (2, 3, False), (4, 3, True), (7, 3, False)],
    )

    plan = rig.directory / "plan.txt"

    def judged(exit_code: int, change: Callable[[Any], Any] = lambda rows: rows) -> dict[str, Any]:
        pipeline = piped("test", source=rig.source(schema=VERSIONS), sinks=[sink], change=change, store=rig.sqlite)
        by_command = CliRunner().invoke(app, ["verify", named(pipeline), "--json", f"--plan={plan}"])
        assert by_command.exit_code == exit_code, by_command.output
        found: dict[str, Any] = json.loads(by_command.stdout)["sinks"][sink.name]["comparison"]
        return found

    def put_back(key: int, n: int, deleted: bool = False) -> None:
        columns = {"id": pa.array([key], pa.int64()), "n": pa.array([n], pa.int32()), "gone": pa.array([deleted])}
        rows = pa.record_batch(columns)
        mapping = sink.settings.mode.bound(sink.settings.declared, rows.schema)
        cells = mapping.cells(rows, pa.array([deleted]))
        HBaseTable(sink.settings.hbase, mapping.table).put(mapping.keys(rows), cells, LATER_MS)

    assert judged(0)["expected"] == 6
    assert judged(0, lambda rows: rows.filter("n > 0"))["actual"] == 6
    put_back(1, 2)
    put_back(2, 3, deleted=True)
    put_back(3, 1, deleted=True)
    put_back(4, 2)
    found = judged(1)
    assert wrong(Comparison(**found)) == {"changed": 1, "lost": 2, "unexpected": 1}, found
    stale = f"n is 2, and was to be 1; an older version, from {rig.topic}/0 at offset 6; "
    assert stale in found["samples"]["changed"][0]
    assert "--   id=4 (expected 0, found 1)" in plan.read_text() and f" --set {rig.topic}:0=0\n" in plan.read_text()
    with closing(sqlite3.connect(rig.directory / "store.db")) as store, store:
        store.execute("DELETE FROM onefold_epochs WHERE epoch < 3")
    found = judged(1)
    assert wrong(Comparison(**found)) == {"changed": 1, "lost": 1, "unexpected": 1}, "but of rows that epoch 3 wrote"
    assert found["untold"] == 1 and "before epoch 3" in found["notes"][0], found


@pytest.mark.slow
def test_a_merge_function_of_a_module_that_the_workers_lack_says_so_and_how_they_get_it(
    spark: SparkSession, hbase_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / f"{fresh('merges')}.py"
    module.write_text("def merge(base, new):\n    return new\n")
    monkeypatch.syspath_prepend(tmp_path)
    merge = importlib.import_module(module.stem).merge
    sink = HBaseSink(hbase_server.servers, fresh("t"), row_key="id", family="f", mode="rolling", merge=merge)
    sink.open("p", pa.schema([("id", pa.int64()), ("n", pa.int64())])).close()
    task, rows = TaskId("p", 1, 1, 1000, uuid.uuid4()), spark.range(10).selectExpr("id", "id AS n")
    with pytest.raises(PySparkException) as raised:
        run_writers(rows, [sink], task)
    error = from_spark(raised.value)
    assert type(error) is Terminal
    assert f"workers cannot import '{module.stem}'" in str(error)
    assert "spark.addArtifacts(file, pyfile=True)" in str(error)
    spark.addArtifacts(str(module), pyfile=True)
    assert sum(part.rows for part in run_writers(rows, [sink], task).committables) == 10


@pytest.mark.slow
@pytest.mark.usefixtures("few_tasks")
def test_hbase_is_either_side_of_what_somebody_else_has_written(rig: Rig, hbase_server: Any, tmp_path: Path) -> None:
    rig.put(60)
    table, declared = fresh("theirs"), 'row_key = "id integer"\ncolumns = { n = "f:n integer" }\n'
    mapping = TableMapping.of(table, "id integer", columns={"n": "f:n integer"})
    settings = HBaseSettings(hbase_server.servers)
    table_admin.create(settings, table, [ColumnFamily(b"f")])

    def put(ids: Sequence[int], more: int = 0) -> None:
        rows = pa.record_batch({"id": pa.array(ids), "n": pa.array([i * i % 1009 + more for i in ids])})
        bound = mapping.bound(rows.schema)
        HBaseTable(settings, table).put(bound.keys(rows), bound.cells(rows), LATER_MS)

    put(range(60))
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy, copy:
        copy.execute("CREATE TABLE copy (id BIGINT, n BIGINT)")
        copy.executemany("INSERT INTO copy VALUES (?, ?)", [(i, i * i % 1009) for i in range(60)])
    hbase = f'kind = "hbase"\nservers = "{hbase_server.servers}"\ntable = "{table}"\n{declared}'
    topic = f'topics = ["{rig.topic}"]\nbootstrap_servers = "{rig.servers}"\nschema = "id long, n long"\n'
    pairs = {
        "into": f'[[sources]]\nkind = "kafka"\nformat = "json"\n{topic}[[sinks]]\n{hbase}',
        "out": f'[[sources]]\n{hbase}[[sinks]]\nkind = "sql"\nurl = "sqlite:///{tmp_path}/copy.db"\ntable = "copy"\n',
    }

    def judged(pair: str, *more: str) -> tuple[int, dict[str, int]]:
        file = tmp_path / f"{pair}.toml"
        file.write_text(f'name = "{pair}"\n{pairs[pair]}')
        answer = CliRunner().invoke(app, ["verify", str(file), "--without-ledger", "--json", *more])
        assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
        ((_, found),) = json.loads(answer.stdout)["sinks"].items()
        return answer.exit_code, wrong(Comparison(**found["comparison"]))

    assert judged("into") == judged("out", "--key=id") == (0, {})
    put([7], more=1)
    put([99])
    assert judged("into") == (1, {"changed": 1, "unexpected": 1})
    assert judged("out", "--key=id") == (1, {"changed": 1, "lost": 1})
