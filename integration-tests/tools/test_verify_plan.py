"""`onefold verify --plan`: what it writes mends a table, once somebody runs it; and nothing else runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.support import Rig
from harness.tables.typed_rows import typed
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.sinks import KafkaSink, PostgresSink, SqlSink
from onefold.sources import PostgresSource
from onefold.spark import read_postgres
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.mending.plan import plan_text
from onefold.spark.verify.verification import compare

pytestmark = [pytest.mark.servers, pytest.mark.slow]

VERSIONS = "id long, version long, name string, gone boolean"


def test_values_of_every_type_are_as_they_were_after_the_plan_and_one_that_no_table_takes_is_left_out(rig: Rig) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "1")
    df = typed(rig.spark).persist()
    df.write.mode("overwrite").parquet(str(rig.directory / "typed"))
    writer = rig.writer()
    rig.finish(writer, rig.start(writer, rig.spark.readStream.schema(df.schema).parquet(str(rig.directory / "typed"))))
    writer.close()
    rig.sql("CREATE TABLE kept AS TABLE rows")
    table = read_postgres(rig.spark, PostgresSource(rig.url, "rows", narrowing="check", snapshot="each"), df.schema)
    others = [name for name in df.columns if name != "id"]
    emptied = ", ".join(f'"{name}" = NULL' for name in others)
    with_nul = df.where("id = 3").selectExpr("5 AS id", *(f"'a\\0b' AS {n}" if n == "s" else n for n in others))

    def planned(rows: Any) -> str:
        wrong = WrongRows()
        compare(rows, table, ["id"], mending=wrong)
        return plan_text("typed.toml", "test", [], {PostgresSink(rig.url, "rows"): wrong})

    for statements in (
        "TRUNCATE rows",
        f"UPDATE rows SET {emptied}",
        "INSERT INTO rows TABLE rows",
        "DELETE FROM rows WHERE id = 1",
        "INSERT INTO rows TABLE kept; INSERT INTO rows (id, s) VALUES (9, 'x'), (NULL, 'x')",
    ):
        rig.sql(statements)
        rig.sql(planned(df))
        found = compare(df, table, ["id"])
        assert (found.expected, found.actual, found.samples) == (4, 4, {}), statements
        assert rig.sql("SELECT x::text FROM rows x ORDER BY id") == rig.sql("SELECT x::text FROM kept x ORDER BY id")
    text = planned(df.unionAll(with_nul))
    assert '-- left out: {"id":5,' in text and "INSERT INTO" not in text
    assert planned(df).count("\n") < 5, "nothing to mend"


def test_the_command_writes_what_mends_each_table_and_names_the_keys_of_a_topic(
    rig: Rig, kafka_topic: Any, tmp_path: Path
) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "1")
    values = [
        b'{"id":%d,"version":%d,"name":"it\'s\\n%d","gone":%s}' % (i % 40, i, i, b"true" if i % 13 == 0 else b"false")
        for i in range(200)
    ]
    rig.put_values(values)
    changes: dict[str, Any] = {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
    copy = kafka_topic(partitions=1)
    sinks = [
        rig.sink(),
        rig.sink("staged", table="newest", **changes),
        KafkaSink(copy, bootstrap_servers=rig.servers, key="version"),
    ]
    rig.sql("CREATE TABLE rows (id bigint, version bigint, name text, gone boolean, note text DEFAULT 'none')")
    source, file = rig.source(schema=VERSIONS), tmp_path / "plan.sql"
    rig.run(rig.pipeline(*sinks, source=source))
    pipeline = named(piped("test", source=source, sinks=sinks))

    def verified(*more: str) -> Any:
        given = ["verify", pipeline, "--key=version", "--sink=rows", "--sink=newest", *more]
        return CliRunner().invoke(app, given, catch_exceptions=False)

    rig.sql("UPDATE rows SET note = 'mine', name = 'x' WHERE version = 7")
    rig.sql("DELETE FROM rows WHERE version = 8")
    rig.sql("INSERT INTO rows SELECT * FROM rows WHERE version = 9")
    rig.sql("INSERT INTO rows (version, name) VALUES (1000, 'a'), (NULL, 'b')")
    rig.sql("UPDATE newest SET (version, name) = (7, E'it''s\\n7') WHERE id = 7")
    rig.sql("DELETE FROM newest WHERE id = 8")
    rig.sql("INSERT INTO newest (id, version) VALUES (1000, 1), (%s, 1)", 182 % 40)  # whose newest is a deletion
    before = rig.sql("SELECT * FROM rows ORDER BY version, note"), rig.sql("SELECT * FROM newest ORDER BY id")
    answer = verified(f"--plan={file}")
    assert answer.exit_code == 1 and f"The plan: {file}" in answer.stderr
    assert "an older version, from " in answer.stdout
    assert before == (
        rig.sql("SELECT * FROM rows ORDER BY version, note"),
        rig.sql("SELECT * FROM newest ORDER BY id"),
    ), "it has run it"
    rig.sql(file.read_text())
    assert verified(f"--plan={file}").exit_code == 0
    assert "INSERT" not in file.read_text()
    assert rig.sql("SELECT note, name FROM rows WHERE version = 7") == [("mine", "it's\n7")]

    rig.put_values([b'{"id":1,"version":1}'], partitions=1, topic=copy)
    given = ["verify", pipeline, f"--sink={copy}", f"--plan={file}"]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 1
    assert "cannot be mended in place" in file.read_text()
    assert "--   version=1 (expected 1, found 2)" in file.read_text()
    rig.sql(file.read_text())  # it is comments alone


def test_more_keys_than_a_plan_takes_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.spark.verify.comparing.wrong_rows.KEYS_MAX", 3)
    df = rig.spark.range(10)
    rig.sql("CREATE TABLE rows (id bigint)")
    table = read_postgres(rig.spark, PostgresSource(rig.url, "rows", snapshot="each"), df.schema)
    for more in (7, 4, 1):
        wrong = WrongRows()
        compare(df, table, ["id"], mending=wrong)
        text = plan_text("p.toml", "p", [], {PostgresSink(rig.url, "rows"): wrong})
        assert f"{more + 3} keys are wrong" in text and f"-- {more} more wrong keys are not in this plan" in text
        rig.sql(text)


def test_rows_that_are_too_many_or_too_large_for_a_plan_come_with_fewer_keys(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = rig.spark.range(10)
    rig.sql("CREATE TABLE rows (id bigint)")
    table = read_postgres(rig.spark, PostgresSource(rig.url, "rows", snapshot="each"), df.schema)

    def planned() -> str:
        wrong = WrongRows()
        compare(df, table, ["id"], mending=wrong)
        return plan_text("p", "p", [], {PostgresSink(rig.url, "rows"): wrong})

    for bound, most in (("_BYTES_MAX", 12), ("_ROWS_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(f"onefold.spark.verify.comparing.wrong_rows.{bound}", most)
            text = planned()
        assert text.count("INSERT INTO") == 1 and "-- 9 more wrong keys" in text
    monkeypatch.setattr("onefold.spark.verify.comparing.wrong_rows._ROWS_MAX", 0)
    assert "No statement mends it: one of these keys has more" in planned()


@pytest.mark.skipif(shutil.which("psql") is None, reason="an interactive client has an encoding of its own")
def test_a_plan_is_read_as_it_was_written_whatever_the_clients_encoding(rig: Rig, tmp_path: Path) -> None:
    df = rig.spark.createDataFrame([(1, "Žofie \U0001f600")], "id int, name string")
    rig.sql("CREATE TABLE rows (id int, name text)")
    table = read_postgres(rig.spark, PostgresSource(rig.url, "rows", snapshot="each"), df.schema)
    wrong, file = WrongRows(), tmp_path / "plan.sql"
    compare(df, table, ["id"], mending=wrong)
    file.write_text(plan_text("p", "é", [], {PostgresSink(rig.url, "rows", name="žluť"): wrong}), encoding="utf-8")
    given = ["psql", rig.url, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file)]
    subprocess.run(given, check=True, env={**os.environ, "PGCLIENTENCODING": "LATIN1"})
    assert rig.sql("SELECT name FROM rows") == [("Žofie \U0001f600",)]


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_rows_that_another_pipeline_has_written_are_not_deleted(rig: Rig, tmp_path: Path, kind: str) -> None:
    is_postgres = kind == "postgres"
    rig.put(20)

    def sink(name: str) -> Any:
        return rig.sink(name=name) if is_postgres else SqlSink(f"sqlite:///{tmp_path / 'rows.db'}", "rows", name=name)

    pipelines = {}
    for name, first, names in (("one", 0, ["rows", "again"][: 1 + is_postgres]), ("other", 12, ["rows"])):
        made: dict[str, Any] = {
            "source": rig.source(),
            "change": lambda rows, first=first: rows.filter(f"id >= {first}"),
        }
        sinks = [sink(each) for each in names]
        rig.run(rig.pipeline(*sinks, name=name, **made), name)
        pipelines[name] = named(piped(name, sinks=sinks, **made))
    file = tmp_path / "plan.sql"
    given = ["verify", pipelines["other"], "--key=id", f"--plan={file}"]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 1
    text, copies = file.read_text(), 1 + is_postgres
    assert "Others write into this table: pipeline 'one'." in text and "DELETE FROM" not in text
    assert f"--   id=3 (expected 0, found {copies})" in text and f"--   id=15 (expected 1, found {1 + copies})" in text
    if is_postgres:
        given[1:2] = [pipelines["one"], "--sink=again"]
        assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 1
        assert "Others write into this table: sink 'rows'." in file.read_text()
