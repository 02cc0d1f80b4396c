"""`read_postgres` and `onefold_postgres` through Spark, against a real server."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onefold.core.errors import ConfigError, Retriable, SchemaMismatch
from onefold.sources import PostgresSource
from onefold.spark import read_postgres, register
from onefold.spark.errors.failures import from_spark

pytestmark = pytest.mark.servers


@pytest.fixture
def table(postgres_url: str) -> str:
    """A database with the table `t`: 4,000 rows in some 190 blocks, so that two parts read it."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id bigint, amount numeric(12,2), loose numeric, at timestamptz, day date, clock time,"
            " wait interval, doc jsonb, tags text[], filler text DEFAULT repeat('x', 300))"
        )
        connection.execute(
            "INSERT INTO t SELECT i, i / 100.0, i + 0.5, timestamptz '2026-01-01Z' + i * interval '1 s', '2026-02-28',"
            " '23:59:59.000001', interval '1 day 1 s',"
            """ '{"a": [1.10], "m": {"k": "2026-01-01T00:00:00Z"}}', ARRAY['x', NULL]"""
            " FROM generate_series(1, 4000) AS i"
        )
    return postgres_url


DERIVED = (
    "struct<id:bigint,amount:decimal(12,2),loose:string,at:timestamp,day:date,clock:time(6),"
    "wait:interval day to second,doc:string,tags:array<string>,filler:string>"
)


@pytest.mark.slow
def test_a_table_comes_with_the_catalogues_types_or_with_given_ones_json_parsed(
    spark: SparkSession, table: str
) -> None:
    source = PostgresSource(table, "t", splits=2)
    with source.frozen() as frozen:
        df = read_postgres(spark, frozen)
        assert df.schema.simpleString() == DERIVED
        (row,) = df.where("id = 100").drop("filler", "at", "clock").collect()
        assert row.asDict() == {
            "id": 100,
            "amount": Decimal("1.00"),
            "loose": "100.5",
            "day": dt.date(2026, 2, 28),
            "wait": dt.timedelta(days=1, seconds=1),
            "doc": '{"a": [1.10], "m": {"k": "2026-01-01T00:00:00Z"}}',
            "tags": ["x", None],
        }
        texts = df.selectExpr("cast(clock as string)", "unix_micros(at)").where("id = 100").first()
        assert texts is not None and list(texts) == ["23:59:59.000001", 1_767_225_700_000_000]

        given = "doc struct<a: array<decimal(4,2)>, m: map<string, timestamp>>, id decimal(20,0)"
        found = read_postgres(spark, frozen, given).where("id = 7").selectExpr("doc.a", "unix_micros(doc.m['k'])", "id")
        assert [tuple(row) for row in found.collect()] == [([Decimal("1.10")], 1_767_225_600_000_000, Decimal(7))]
        with pytest.raises(Exception, match="CANNOT_PARSE_JSON_FIELD"):  # not null where the document says otherwise
            read_postgres(spark, frozen, "doc struct<a: int>").collect()
    with pytest.raises(SchemaMismatch, match=r"loose .*narrowing='check'"):
        read_postgres(spark, source, "loose decimal(10,2)")
    with pytest.raises(ConfigError, match="no table nope"):
        read_postgres(spark, PostgresSource(table, "nope"))


@pytest.mark.slow
def test_one_snapshot_for_all_actions_while_it_is_held_and_an_error_after(spark: SparkSession, table: str) -> None:
    with PostgresSource(table, "t", columns=["id"], splits=2).frozen() as source:
        df = read_postgres(spark, source)
        assert df.rdd.getNumPartitions() == 2
        with psycopg.connect(table, autocommit=True) as connection:
            connection.execute("DELETE FROM t WHERE id > 10")
        assert df.count() == df.distinct().count() == 4000
    with pytest.raises(PySparkException) as caught:
        df.count()
    assert from_spark(caught.value).code == "snapshot-not-held"


@pytest.mark.slow
def test_a_read_of_its_own_holds_a_snapshot_and_only_a_few_of_them(spark: SparkSession, table: str) -> None:
    held = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_export_snapshot()%' AND pid <> pg_backend_pid()"
    source = PostgresSource(table, "t", columns=["id"], where="id <= 20", splits=2)
    with psycopg.connect(table, autocommit=True) as connection:
        frames = [read_postgres(spark, source) for _ in range(6)]
        row = connection.execute(held).fetchone()
        assert row == (4,)
        connection.execute("DELETE FROM t")
    assert frames[-1].count() == 20


@pytest.mark.slow
def test_the_format_takes_options_in_sparks_style(spark: SparkSession, table: str) -> None:
    register(spark)
    options = {"url": table, "table": "t", "columns": "id, day", "where": "id % 2 = 0"}
    reader = spark.read.format("onefold_postgres").options(**options)
    whole = reader.option("splits", 1).load()
    assert (whole.schema.simpleString(), whole.count()) == ("struct<id:bigint,day:date>", 2000)
    keyed = reader.option("splits", 3).option("splitBy", "id").option("snapshot", "each").schema("id long").load()
    assert keyed.rdd.getNumPartitions() == 3
    assert sorted(row.id for row in keyed.collect()) == list(range(2, 4001, 2))
    for option, value, message in (
        ("snapshot", "shared", "nobody holds a snapshot"),
        ("dbtable", "t", "say table="),
        ("splitby_", "id", "did you mean 'splitBy'"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("onefold_postgres").options(**options).option(option, value).load()


@pytest.mark.slow
def test_a_part_that_is_cancelled_fails_the_job_with_what_to_do(spark: SparkSession, postgres_url: str) -> None:
    query = "SELECT i, pg_sleep(0.01)::text AS slept FROM generate_series(1, 1000) AS i"
    source = PostgresSource(postgres_url, query=query, statement_timeout_s=0.3)
    with source.frozen() as frozen, pytest.raises(PySparkException) as caught:
        read_postgres(spark, frozen).collect()
    error = from_spark(caught.value)
    assert isinstance(error, Retriable)
    assert "longer than statement_timeout_s" in str(error)
