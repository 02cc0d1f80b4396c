"""Who runs. Each one moves all events of a topic into a table, in one batch or in batches of a given size."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from bench.jars import NotAvailable
from bench.loop import Loop
from bench.world import DDL, PARTITIONS, SCHEMA, Used, World
from onefold.core import TaskId
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.spark import EpochWriter, register
from onefold.spark.runtime.writers import run_writers
from onefold.trials.workload.unprotected import UnprotectedSink

__all__ = ["CONTESTANTS", "Contestant", "Run"]

TRIGGER: dict[str, Any] = {"availableNow": True}

Seconds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant, once: how long it took, and the CPU time of all processes that had a part in it.

    `seconds` are the whole run, the start of the query included; `batches_s` are its batches alone.
    """

    contestant: str
    rows: int
    rows_per_batch: int | None
    seconds: float
    batches_s: float
    used: Used

    @property
    def rows_per_s_in_batches(self) -> float:
        return self.rows / self.batches_s

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Contestant:
    """`move(world, topic, table, rows_per_batch)` returns the seconds it took, and those of its batches."""

    name: str
    what: str
    move: Callable[[World, str, str, int | None], Seconds]
    columns: str = DDL

    def run(self, world: World, topic: str, rows: int, rows_per_batch: int | None) -> Run:
        """Raises `NotAvailable`, and `RuntimeError` if the table is not what it should be."""
        with world.table(rows, self.columns) as table:
            before = world.used()
            seconds, batches_s = self.move(world, topic, table, rows_per_batch)
            return Run(self.name, rows, rows_per_batch, seconds, batches_s, world.used().since(before))


def _flow(delivery: str, compiled_fetch: str = "auto") -> Callable[[World, str, str, int | None], Seconds]:
    def move(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
        source = world.source(topic, rows_per_batch, compiled_fetch)
        with world.checkpoint() as root:
            started_s = time.monotonic()
            flow = Flow(table)
            flow.source(source, uid="events").sink(PostgresSink(world.postgres.url, table, delivery=delivery))
            with closing(flow.start(world.spark, checkpoint=root, trigger=TRIGGER)) as running:
                running.await_termination()
                seconds = time.monotonic() - started_s
        return seconds, _batches_s(running.query)

    return move


def _writer(delivery: str) -> Callable[[World, str, str, int | None], Seconds]:
    def move(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
        with world.checkpoint() as root:
            started_s = time.monotonic()
            df = _our_kafka(world, topic, rows_per_batch)
            with closing(EpochWriter(table, [PostgresSink(world.postgres.url, table, delivery=delivery)])) as writer:
                query = _stream(df, writer, root)
                seconds = time.monotonic() - started_s
        return seconds, _batches_s(query)

    return move


def _unprotected(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
    """The same source and the same COPY without the protocol: every task commits for itself."""
    with world.checkpoint() as root:
        started_s = time.monotonic()
        sink = UnprotectedSink(world.postgres.url, table)
        df = _our_kafka(world, topic, rows_per_batch)
        sink.open(table, to_arrow_schema(df.schema, timezone="UTC")).close()

        def write(df: DataFrame, batch_id: int) -> None:
            run_writers(df, [sink], TaskId(table, 1, batch_id + 1, 0, uuid.uuid4()))

        query = _stream(df, write, root)
        return time.monotonic() - started_s, _batches_s(query)


def _our_kafka(world: World, topic: str, rows_per_batch: int | None) -> DataFrame:
    register(world.spark)
    options = world.source(topic, rows_per_batch).options()
    return world.spark.readStream.format("onefold_kafka").options(**options).load()


def _spark_jdbc(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
    with world.checkpoint() as root:
        started_s = time.monotonic()
        df = _spark_kafka(world, topic, rows_per_batch)
        query = _stream(df, lambda df, _: _append(world, df, table), root)
        return time.monotonic() - started_s, _batches_s(query)


def _spark_upsert(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
    stage = f"{table}_stage"
    world.sql(f"CREATE UNLOGGED TABLE {stage} ({DDL})")

    def write(df: DataFrame, _: int) -> None:
        with psycopg.connect(world.postgres.url) as connection:
            connection.execute(f"TRUNCATE {stage}".encode())
        _append(world, df, stage)
        with psycopg.connect(world.postgres.url) as connection:
            connection.execute(f"INSERT INTO {table} SELECT * FROM {stage} ON CONFLICT (id) DO NOTHING".encode())

    try:
        with world.checkpoint() as root:
            started_s = time.monotonic()
            query = _stream(_spark_kafka(world, topic, rows_per_batch), write, root)
            return time.monotonic() - started_s, _batches_s(query)
    finally:
        world.sql(f"DROP TABLE {stage}")


def _spark_kafka(world: World, topic: str, rows_per_batch: int | None) -> DataFrame:
    """Spark's own connector, and its from_json."""
    spark = world.spark
    if world.unavailable is not None:
        raise NotAvailable(world.unavailable)
    options = {
        "kafka.bootstrap.servers": world.kafka.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    if rows_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(rows_per_batch)
    records = spark.readStream.format("kafka").options(**options).load()
    return records.select(from_json(col("value").cast("string"), SCHEMA).alias("event")).select("event.*")


def _append(world: World, df: DataFrame, table: str) -> None:
    writer = df.write.format("jdbc").option("url", world.jdbc_url()).option("dbtable", table)
    writer.option("driver", "org.postgresql.Driver").option("batchsize", "10000").mode("append").save()


def _loop(world: World, topic: str, table: str, rows_per_batch: int | None) -> Seconds:
    world.sql(f"CREATE TABLE {table}_offsets (kafka_partition int PRIMARY KEY, next_offset bigint NOT NULL)")
    world.sql(f"INSERT INTO {table}_offsets SELECT partition, 0 FROM generate_series(0, {PARTITIONS - 1}) AS partition")
    source = world.source(topic, None)
    broker = source.broker()
    ends = {number: end for (_, number), end in broker.latest(source.subscription.partitions(broker)).items()}
    loop = Loop(world.kafka.bootstrap_servers, world.postgres.url, topic, table, ends, rows_per_batch)
    try:
        loop.wait_until_up()
        started_s = time.monotonic()
        loop.go()
        seconds = time.monotonic() - started_s
        return seconds, seconds
    finally:
        loop.close()
        world.sql(f"DROP TABLE {table}_offsets")


def _stream(df: DataFrame, write: Callable[[DataFrame, int], None], root: str) -> StreamingQuery:
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", root)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def _batches_s(query: StreamingQuery) -> float:
    """The time that Spark counts for the batches: planning, offsets, the sink, commits; not the query's start."""
    return sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000


CONTESTANTS = (
    Contestant("writer", "ours, a DataFrame by an epoch writer, two_phase", _writer("two_phase")),
    Contestant("writer_staged", "ours, a DataFrame by an epoch writer, staged", _writer("staged")),
    Contestant("flow", "ours, a flow, two_phase", _flow("two_phase")),
    Contestant("flow_uncompiled", "ours, a flow, two_phase, compiled fetch off", _flow("two_phase", "off")),
    Contestant("flow_staged", "ours, a flow, staged", _flow("staged")),
    Contestant("spark_jdbc", "(a) Spark's connector, from_json, JDBC append: at least once", _spark_jdbc),
    Contestant(
        "spark_upsert",
        "(b) the same into a stage, then ON CONFLICT DO NOTHING",
        _spark_upsert,
        DDL.replace("id bigint", "id bigint PRIMARY KEY"),
    ),
    Contestant("unprotected", "(c) our source and COPY on a DataFrame, protection off", _unprotected),
    Contestant("loop", "(d) a hand-written loop in two processes", _loop),
)
