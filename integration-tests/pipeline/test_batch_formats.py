"""Spark's formats write a batch once into each kind of destination, whatever fails and dies, and however often."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from harness.batch_destinations import FORMATS, Destination, destination_of
from pyspark.sql import DataFrame, SparkSession

from onefold.core import CheckpointMismatch, ConfigError, OnefoldError
from onefold.sinks import SqlSink
from onefold.spark import EpochWriter, register
from onefold.spark.errors.failures import from_spark
from onefold.spark.formats import registration

pytestmark = pytest.mark.servers


@pytest.fixture(params=FORMATS)
def destination(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Destination:
    register(spark)
    return destination_of(request.param, request, tmp_path)


def numbers(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("id", "id * 2 AS n")


def doubled(first: int, last: int) -> list[tuple[int, int]]:
    return [(i, 2 * i) for i in range(first, last)]


def failure_of(destination: Destination, df: DataFrame, run: str, **more: str) -> OnefoldError:
    with pytest.raises(Exception, match=r"onefold|odd") as caught:
        destination.save(df, run, **more)
    return from_spark(caught.value)


@pytest.mark.slow
def test_a_run_is_written_once_and_an_undecided_one_is_written_by_its_next_attempt(
    spark: SparkSession, destination: Destination
) -> None:
    destination.save(numbers(spark, 0, 0), "empty")
    destination.save(numbers(spark, 0, 9), "empty")
    assert destination.rows() == [], "the name is taken"
    destination.save(numbers(spark, 0, 20), "first")
    destination.save(numbers(spark, 0, 90), "first")
    assert destination.rows() == doubled(0, 20)

    def raising(at: int) -> DataFrame:
        raises = f"CASE WHEN id = {at} THEN raise_error('odd') ELSE n END AS n"
        return numbers(spark, 20, 40).selectExpr("id", raises)

    failed = failure_of(destination, raising(39), "second")
    assert "odd" in str(failed)
    if destination.writes_through:
        refused = failure_of(destination, numbers(spark, 40, 60), "third")
        assert (type(refused), refused.code) == (CheckpointMismatch, "run-unfinished")
    else:
        assert destination.rows() == doubled(0, 20)
        destination.save(numbers(spark, 40, 60), "third")
    destination.save(raising(-1), "second")
    destination.save(numbers(spark, 40, 60), "third")
    assert destination.rows() == doubled(0, 60)


@pytest.mark.slow
def test_what_is_wrong_is_said_by_name_and_nothing_is_written(
    spark: SparkSession, destination: Destination, tmp_path: Path
) -> None:
    rows = numbers(spark, 0, 10)
    for wrong in ({"odd": "1"}, {"pipeline": ""}, {"patienceS": "x"}, {"path": "/somewhere"}):
        assert type(failure_of(destination, rows, "first", **wrong)) is ConfigError
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    writer = stream.selectExpr("value AS id", "value AS n").writeStream.format(destination.format)
    options = {**destination.options, "run": "first", "checkpointLocation": str(tmp_path / "never")}
    with pytest.raises(Exception, match=r"streaming-not-supported"):
        writer.options(**options).start().awaitTermination(60)
    destination.save(rows, "first")
    assert destination.rows() == doubled(0, 10)


@pytest.mark.slow
def test_a_topic_by_keys_gets_each_id_and_a_second_attempt_repeats_only_what_readers_drop(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    register(spark)
    keyed = {"delivery": "keyed", "id": "id"}
    topic = destination_of("onefold_kafka", request, tmp_path)
    topic.options.pop("key")

    def rows(fails_at: int) -> DataFrame:
        raises = f"CASE WHEN id = {fails_at} THEN raise_error('odd') ELSE n END AS n"
        return numbers(spark, 0, 60).selectExpr("id", raises)

    assert "odd" in str(failure_of(topic, rows(59), "first", **keyed))
    topic.save(rows(-1), "first", **keyed)
    assert sorted({*topic.rows()}) == doubled(0, 60)
    once = topic.rows()
    topic.save(rows(-1), "first", **keyed)
    assert topic.rows() == once
    failed = failure_of(topic, rows(-1), "second", delivery="keyed", id="id, n")
    assert (type(failed), failed.code) == (ConfigError, "rows-unpartitioned")


@pytest.mark.slow
def test_spark_is_told_which_extra_a_format_needs_and_what_reads_sql(spark: SparkSession) -> None:
    register(spark)
    registration.register_format(spark, registration._missing("onefold_none", "pymysql.none"))
    rows = numbers(spark, 0, 1)
    for use in (rows.write.format("onefold_none").mode("append").save, spark.read.format("onefold_none").load):
        with pytest.raises(Exception, match=r"onefold\[mariadb\]") as caught:
            use()
        assert from_spark(caught.value).code == "package-missing"
    with pytest.raises(Exception, match="reading-not-supported") as caught:
        spark.read.format("onefold_sql").load()
    assert type(from_spark(caught.value)) is ConfigError


@pytest.mark.slow
def test_rows_without_a_column_are_refused_as_write_batch_refuses_them(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = {"url": f"sqlite:///{tmp_path / 'rows.db'}", "table": "t", "pipeline": "p", "run": "r"}
    none = numbers(spark, 0, 3).select()
    with pytest.raises(Exception, match="onefold") as by_format:
        none.write.format("onefold_sql").options(**options).mode("append").save()
    with closing(EpochWriter("q", [SqlSink(options["url"], "t")])) as writer, pytest.raises(OnefoldError) as by_writer:
        writer.write_batch(none, "r")
    assert from_spark(by_format.value).code == by_writer.value.code
