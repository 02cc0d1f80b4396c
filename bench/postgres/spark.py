"""The same rows from Parquet files through Spark, `local[2]`: ours, and what people write by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
from pyspark.sql import DataFrame, SparkSession

from bench.postgres.tables import Tables
from onefold.sinks import PostgresSink
from onefold.spark import EpochWriter

__all__ = ["append_with_jdbc", "ours", "stage_and_merge"]


def ours(
    spark: SparkSession, tables: Tables, table: str, paths: Sequence[Path], delivery: str, **settings: Any
) -> float:
    df = _read(spark, paths)
    began_s = time.perf_counter()
    pipeline = EpochWriter(table, sinks=[PostgresSink(tables.server.url, table, delivery=delivery, **settings)])
    pipeline.write_batch(df, run="bench")
    seconds = time.perf_counter() - began_s
    pipeline.close()
    return seconds


def append_with_jdbc(spark: SparkSession, tables: Tables, table: str, paths: Sequence[Path]) -> float:
    df = _read(spark, paths)
    began_s = time.perf_counter()
    _append(df, tables, table)
    return time.perf_counter() - began_s


def stage_and_merge(spark: SparkSession, tables: Tables, table: str, paths: Sequence[Path]) -> float:
    """Into a plain table with JDBC, then INSERT ... ON CONFLICT DO UPDATE, whichever row is newer."""
    df = _read(spark, paths)
    stage = f"{table}_stage"
    tables.sql(f"CREATE TABLE {stage} (LIKE {table})")
    try:
        began_s = time.perf_counter()
        _append(df, tables, stage)
        with psycopg.connect(tables.server.url) as connection:
            connection.execute(
                f"INSERT INTO {table} SELECT * FROM {stage} ON CONFLICT (id) DO UPDATE SET"
                " account = excluded.account, amount = excluded.amount, at = excluded.at".encode()
            )
        return time.perf_counter() - began_s
    finally:
        tables.sql(f"DROP TABLE {stage}")


def _read(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    df = spark.read.parquet(*map(str, paths)).repartition(len(paths)).persist()
    df.count()  # in memory: how fast Spark reads Parquet is not the question
    return df


def _append(df: DataFrame, tables: Tables, table: str) -> None:
    with psycopg.connect(tables.server.url) as connection:
        at = connection.info
        url = f"jdbc:postgresql://{at.host}:{at.port}/{at.dbname}?user={at.user}&password={at.password}"
    url += "&reWriteBatchedInserts=true"
    writer = df.write.format("jdbc").option("url", url).option("dbtable", table)
    writer.option("driver", "org.postgresql.Driver").option("batchsize", "10000").mode("append").save()
