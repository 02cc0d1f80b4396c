"""Queries of `onefold verify --expect`, without a server: what is taken for one, and what is refused."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from harness.errors import raises
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import BadRecord, ConfigError
from onefold.spark.transforming import selected

pytestmark = pytest.mark.slow

PAIR = """
name = "pair"
[[sources]]
kind = "files"
path = "{folder}/in"
format = "json"
schema = "id long, n long"
[[sinks]]
kind = "sql"
url = "sqlite:///{folder}/theirs.db"
table = "theirs"
"""


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE made USING parquet AS SELECT 1 AS id",
        "INSERT OVERWRITE DIRECTORY '{folder}/made' USING csv SELECT id FROM source",
        "WITH one AS (SELECT 1 AS id) INSERT OVERWRITE DIRECTORY '{folder}/made' USING csv SELECT id FROM one",
        "FROM source INSERT OVERWRITE DIRECTORY '{folder}/made' USING csv SELECT id",
        "CREATE TEMPORARY VIEW made AS SELECT 1 AS id",
        "SET spark.sql.shuffle.partitions = 77",
        "DROP VIEW source",
        "SELECT id FROM source; DROP VIEW source",
        "SELECT id FROM source) ; DROP VIEW source; SELECT (1",
        "BEGIN SELECT 1; DROP VIEW source; END",
        "",
        ";",
    ],
)
def test_what_is_no_query_is_refused_and_not_run(spark: SparkSession, tmp_path: Path, statement: str) -> None:
    before = (spark.conf.get("spark.sql.shuffle.partitions"), spark.catalog.listTables())
    with raises(ConfigError, "transform-sql-invalid"):
        selected({"source": spark.range(3)}, statement.format(folder=tmp_path))
    assert not [*tmp_path.iterdir()]
    assert (spark.conf.get("spark.sql.shuffle.partitions"), spark.catalog.listTables()) == before


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM source;",
        "SELECT id FROM source ;\n ; ",
        "WITH one AS (SELECT id FROM source) SELECT id FROM one",
        "SELECT id FROM source -- all of them",
        "TABLE `orders.eu`",
        "FROM source |> SELECT id",
        "SELECT id FROM source WHERE id < 1 UNION ALL SELECT id FROM source WHERE id >= 1 ORDER BY id",
    ],
)
def test_queries_of_all_forms(spark: SparkSession, query: str) -> None:
    rows = spark.range(3)
    assert selected({"source": rows, "orders.eu": rows}, query).count() == 3


def test_a_view_that_the_session_has_is_what_it_was(spark: SparkSession) -> None:
    spark.range(7).createOrReplaceTempView("source")
    try:
        assert selected({"source": spark.range(3)}, "SELECT id FROM source").count() == 3
        assert spark.table("source").count() == 7
    finally:
        spark.catalog.dropTempView("source")


def test_rows_of_chance_columns_of_one_name_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text("".join(f'{{"id": {i}, "n": {i}}}\n' for i in range(50)))
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("CREATE TABLE theirs (id BIGINT, n BIGINT)")
        database.executemany("INSERT INTO theirs VALUES (?, ?)", [(i, i) for i in range(50)])
    (tmp_path / "pair.toml").write_text(PAIR.format(folder=tmp_path))
    (tmp_path / "empty.sql").write_text("\n")

    def verified(query: str) -> dict[str, int]:
        given = ["verify", str(tmp_path / "pair.toml"), "--without-ledger", "--key=id", "--json", "--expect", query]
        answer = CliRunner().invoke(app, given, catch_exceptions=False)
        counts = json.loads(answer.stdout)["sinks"]["theirs"]["comparison"]
        return {kind: counts[kind] for kind in ("expected", "actual", "lost", "changed", "unexpected")}

    # Asked again it would be other rows: both kinds of findings are of one answer.
    found = verified("SELECT id + if(rand() < 0.5, 0, 1000) AS id, n FROM source;")
    assert found["expected"] == found["actual"] == 50
    assert found["lost"] == found["unexpected"] > 0
    with raises(ConfigError, "column-name-twice", "'n'"):
        verified("SELECT id, n, n + 1 AS N FROM source")
    with raises(ConfigError, "no-such-column", "rate"):
        verified("SELECT rate FROM (SELECT 1.5D AS rate FROM source)")
    with raises(ConfigError, "option-value", "empty"):
        verified(str(tmp_path / "empty.sql"))
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("INSERT INTO theirs VALUES (1000, 1)")
    given = ["verify", str(tmp_path / "pair.toml"), "--without-ledger", "--key=id"]
    answer = CliRunner().invoke(app, given, catch_exceptions=False)
    assert (answer.exit_code, "nothing-else: theirs shows 1 records" in answer.output) == (1, True), answer.output


@pytest.mark.parametrize(
    ("stored", "query"),
    [
        (1.5, "SELECT id, n FROM source"),
        (2, "SELECT id, n > 0 AS n FROM source"),
        ("true", "SELECT id, n > 0 AS n FROM source"),
    ],
)
def test_what_a_database_has_is_not_made_the_querys_type_by_force(tmp_path: Path, stored: object, query: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text('{"id": 0, "n": 0}\n{"id": 1, "n": 1}\n')
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("CREATE TABLE theirs (id BIGINT, n BIGINT)")
        database.executemany("INSERT INTO theirs VALUES (?, ?)", [(0, 0.0), (1, 1.0)])
    (tmp_path / "pair.toml").write_text(PAIR.format(folder=tmp_path))
    given = ["verify", str(tmp_path / "pair.toml"), "--without-ledger", "--key=id", "--expect", query]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 0
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("UPDATE theirs SET n = ? WHERE id = 1", (stored,))
    with raises(BadRecord, "value-not-readable", "column n", str(stored)):
        CliRunner().invoke(app, given, catch_exceptions=False)
