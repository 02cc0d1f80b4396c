"""Columns of Spark's whose names or types are odd: written as they are, or refused by name."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from harness.errors import raises
from pyspark.sql import SparkSession

from onefold.core import ConfigError
from onefold.sinks import PostgresSink, SqlSink
from onefold.spark import EpochWriter

pytestmark = pytest.mark.servers


def test_names_with_dots_and_names_that_differ_in_case_are_written(spark: SparkSession, postgres_url: str) -> None:
    pipeline = EpochWriter("names", sinks=[PostgresSink(postgres_url, "odd_names")])
    rows = spark.range(2).selectExpr("id AS `a.b`", "id + 1 AS userId", "id + 2 AS userid", "id + 3 AS `c``d`")
    assert pipeline.write_batch(rows, run="1").rows == 2
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute('SELECT "a.b", "userId", userid, "c`d" FROM odd_names ORDER BY 1').fetchall()
    assert found == [(0, 1, 2, 3), (1, 2, 3, 4)]


def test_times_without_a_zone_are_written_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/times.db"
    rows = spark.sql("SELECT TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' AS at, DATE'0001-01-01' AS day, 1 AS id")
    EpochWriter("times", sinks=[SqlSink(url, "times")], store=url).write_batch(rows, run="1")
    with sa.create_engine(url).connect() as connection:
        (found,) = connection.execute(sa.text("SELECT at, day FROM times")).all()
    assert tuple(map(str, found)) == ("9999-12-31 23:59:59.999999", "0001-01-01")


@pytest.mark.parametrize(
    "select", ["parse_json('1') AS v", "array(parse_json('1')) AS v", "named_struct('a', parse_json('1')) AS v"]
)
def test_a_variant_is_refused_by_its_column(spark: SparkSession, tmp_path: Path, select: str) -> None:
    url = f"sqlite:///{tmp_path}/variants.db"
    pipeline = EpochWriter("variants", sinks=[SqlSink(url, "t")], store=url)
    with raises(ConfigError, "type-unsupported", "'v'"):
        pipeline.write_batch(spark.range(1).selectExpr("id", select), run="1")
    pipeline.write_batch(spark.range(1).selectExpr("id", "to_json(parse_json('{\"a\": 1}')) AS v"), run="2")
    with sa.create_engine(url).connect() as connection:
        assert connection.execute(sa.text("SELECT v FROM t")).scalar_one() == '{"a":1}'


def test_a_type_that_spark_gives_to_no_function_is_refused_by_its_column(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/intervals.db"
    with raises(ConfigError, "type-unsupported", "'i'"):
        EpochWriter("intervals", sinks=[SqlSink(url, "t")], store=url).write_batch(
            spark.range(1).selectExpr("id", "make_interval(1, 2) AS i"), run="1"
        )
