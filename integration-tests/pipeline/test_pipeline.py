"""Pipelines on Spark with real servers: what they write, and what they replay."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.support import SCHEMA, Rig, crash, failing_at, offsets_of, through_spark
from pyspark.sql import DataFrame, SparkSession

from onefold.core import Terminal
from onefold.core.protocol.epoch import Outcome
from onefold.core.writing.arrangement import needed_by
from onefold.sinks import HBaseSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import EpochWriter
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.runtime.writers import shared_out

pytestmark = pytest.mark.servers


def as_is(stream: Any) -> Any:
    return stream


def replayed(outcomes: list[Outcome]) -> list[bool]:
    return [outcome.replayed for outcome in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "change"), [("two_phase", as_is), ("staged", as_is), ("two_phase", through_spark)]
)
def test_a_flow_is_written_exactly_and_a_restart_skips_what_is_there(
    rig: Rig, delivery: str, change: Callable[[Any], Any]
) -> None:
    rig.put(1000)
    outcomes = rig.run(rig.pipeline(rig.sink(delivery), change=change))
    assert [outcome.record.rows for outcome in outcomes] == [300, 300, 300, 100]
    rig.forget_commit(3)
    rig.put(200)
    assert replayed(rig.run(rig.pipeline(rig.sink(delivery), change=change))) == [True, False]
    rig.assert_exact()


@pytest.mark.slow
def test_positions_come_to_functions_and_to_the_table(rig: Rig) -> None:
    def even(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch.column("kafka_offset"), 1), 0))

    rig.put(200)
    rig.run(rig.pipeline(source=rig.source(columns="position"), change=lambda rows: rows.map_batches(even)))
    rows = rig.sql("SELECT id, kafka_topic, kafka_partition, kafka_offset FROM rows ORDER BY id")
    assert rows == [(i, rig.topic, i % 4, i // 4) for i in range(200) if i // 4 % 2 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("delivery", [pytest.param("two_phase", marks=pytest.mark.soak), "staged"])
def test_versions_of_one_row_from_many_partitions_end_as_the_newest(rig: Rig, delivery: str) -> None:
    """In two_phase each key goes to one task, or tasks that prepared it would wait for one another."""
    rig.put_values([b'{"id":%d,"n":%d}' % (i % 37, i * 7919 % 1000) for i in range(1000)])
    newest = sorted({i % 37: max(j * 7919 % 1000 for j in range(i % 37, 1000, 37)) for i in range(1000)}.items())
    pipeline = rig.pipeline(rig.sink(delivery, mode="upsert", key="id", order="n"))
    outcomes = rig.run(pipeline)
    assert [outcome.record.rows for outcome in outcomes] == [300, 300, 300, 100]
    assert rig.rows() == newest
    rig.assert_nothing_in_doubt()


class ByKey(PostgresSink):
    """As an upserting sink in two_phase, without a server."""

    def partition_by(self) -> tuple[str, ...]:
        return ("k",)


@pytest.mark.slow
def test_a_key_goes_to_one_task_also_where_spark_splits_the_join_before_that_is_skewed(spark: SparkSession) -> None:
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "100000",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "50000",
    }

    def keys(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        found = {key for batch in batches for key in batch.column("k").to_pylist()}
        yield pa.RecordBatch.from_pydict({"k": pa.array(sorted(found), pa.int64())})

    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        skewed = spark.range(0, 60_000, 1, 4).selectExpr("if(id % 3 > 0, 1, id % 997) AS k", "md5(string(id)) AS x")
        joined = skewed.hint("merge").join(spark.range(0, 997).withColumnRenamed("id", "k"), "k")
        sink = ByKey("postgresql://nowhere/shop", table="rows", mode="upsert", key="k", order="x")
        tasks = shared_out(joined, needed_by(sink)).mapInArrow(keys, "k long")
        assert tasks.groupBy("k").count().where("count > 1").collect() == []
    finally:
        for name, value in before.items():
            spark.conf.set(name, value) if value is not None else spark.conf.unset(name)


def test_where_a_sink_asks_for_it_the_rows_of_a_task_come_in_order(spark: SparkSession) -> None:
    def falls(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches)
        places = zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True) if len(rows) else ()
        yield pa.RecordBatch.from_pydict({"n": pa.array([sum(a > b for a, b in pairwise(places))], pa.int64())})

    def made(id: str, name: str) -> HBaseSink:
        sums = {"mode": "incremental", "merge": {"n": "sum"}, "family": "f"}
        return HBaseSink("nowhere:1", "t", row_key="k", sequence=id, name=name, **sums)

    mixed = spark.range(0, 10_000, 1, 4).selectExpr("id % 7 AS k", "id * 7919 % 10000 AS n")
    sorted_out = shared_out(mixed, needed_by(made("n", "one")))
    assert sum(row.n for row in sorted_out.mapInArrow(falls, "n long").collect()) == 0


@pytest.mark.slow
def test_a_flow_goes_on_exactly_with_an_operator_of_sparks_and_without_it_again(rig: Rig) -> None:
    for change in (as_is, through_spark, as_is):
        rig.put(300)
        rig.run(rig.pipeline(change=change))
    rig.assert_exact()


def counts(df: DataFrame) -> DataFrame:
    return df.selectExpr("n % 7 AS id").groupBy("id").count().withColumnRenamed("count", "n")


def counted(rig: Rig) -> FlowWriter:
    sink = rig.sink(mode="upsert", key="id", order="onefold_epoch")
    return rig.pipeline(sink, change=lambda rows: rows.spark_dataframe(counts, SCHEMA, "update"))


@pytest.mark.slow
def test_a_replayed_batch_of_a_stateful_flow_is_drained_into_its_state_and_not_written(rig: Rig) -> None:
    rig.put(600)
    rig.run(counted(rig))
    query = "SELECT id, n, onefold_epoch, xmin::text FROM rows ORDER BY id"
    written = rig.sql(query)
    rig.forget_commit(1)
    assert replayed(rig.run(counted(rig))) == [True]
    assert rig.sql(query) == written
    rig.put(300)
    rig.run(counted(rig))
    assert dict(rig.rows()) == {k: sum(n % 7 == k for _, n in rig.sent) for k in range(7)}
    assert len(rig.rows()) == 7


@pytest.mark.slow
def test_a_replayed_batch_of_a_stateful_query_of_ones_own_is_drained_and_not_written(rig: Rig) -> None:
    def run() -> list[bool]:
        rig.outcomes.clear()
        writer = rig.writer()
        rig.finish(writer, rig.start(writer, counts(rig.stream()), outputMode="update"))
        writer.close()
        return replayed(rig.outcomes)

    rig.put(600)
    run()
    written = rig.rows()
    rig.forget_commit(1)
    assert run() == [True]
    assert rig.rows() == written
    rig.put(300)
    assert run() == [False]
    expected = {k: sum(n % 7 == k for _, n in rig.sent) for k in range(7)}
    assert dict(rig.sql("SELECT id, max(n) FROM rows GROUP BY id")) == expected
    assert len(rig.rows()) == 3 * 7


@pytest.mark.slow
def test_batches_without_records_are_epochs_too_and_write_nothing(rig: Rig) -> None:
    """A watermark makes Spark run a batch without new records after the last one."""

    def windows(df: DataFrame) -> DataFrame:
        timed = df.selectExpr("timestamp_seconds(n + 10) AS at", "id").withWatermark("at", "1 second")
        return timed.groupBy("at").count().selectExpr("unix_seconds(at) AS id", "count AS n")

    def pipeline() -> FlowWriter:
        sink = rig.sink(mode="upsert", key="id", order="onefold_epoch")
        return rig.pipeline(sink, change=lambda rows: rows.spark_dataframe(windows, SCHEMA, "update"))

    rig.put(300)
    outcomes = rig.run(pipeline())
    ranges = [outcome.record.range for outcome in outcomes]
    assert [each.start.of_records() == each.end.of_records() for each in ranges] == [False, True]
    written = rig.sql("SELECT id, n, onefold_epoch FROM rows ORDER BY id")
    rig.forget_commit(1)
    assert replayed(rig.run(pipeline())) == [True]
    assert rig.sql("SELECT id, n, onefold_epoch FROM rows ORDER BY id") == written
    assert len(written) == len({n for _, n in rig.sent})
    assert {epoch for *_, epoch in written} == {1}


@pytest.mark.slow
def test_an_empty_topic_writes_nothing_and_later_records_arrive(rig: Rig) -> None:
    rig.run(rig.pipeline())
    assert rig.rows() == []
    rig.put(200)
    rig.run(rig.pipeline())
    rig.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize("change", [as_is, through_spark])
def test_latest_stays_where_it_was_when_the_first_batch_dies_before_it_wrote_anything(
    rig: Rig, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(200)
    rig.sent.clear()
    latest = rig.source(starting_offsets="latest")
    pipeline = rig.pipeline(source=latest, change=change)
    begin = pipeline._begin

    def put_and_begin(*given: Any) -> Any:
        rig.put(100)
        return begin(*given)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "_begin", put_and_begin)  # once it is settled where the flow begins
        failing_at(patched, "before:RunWriters", crash)
        with pytest.raises(Terminal, match="Crash"):
            rig.finish(pipeline, pipeline.start(rig.spark, rig.checkpoint()))
    pipeline.close()
    assert sum(offsets_of(rig.checkpoint(), 0)[rig.topic].values()) > 200
    rig.put(100)
    rig.run(rig.pipeline(source=latest, change=change))
    rig.assert_exact()


@pytest.mark.slow
def test_a_dataframe_that_was_read_once_and_written_twice_is_not_written_twice(rig: Rig) -> None:
    rig.put(300)
    writer = rig.writer()
    df = rig.stream()
    rig.finish(writer, rig.start(writer, df))
    rig.put(200)
    rig.finish(writer, rig.start(writer, df, "second"))
    writer.close()
    assert replayed(rig.outcomes) == [False, True, False]
    rig.assert_exact()


@pytest.mark.slow
def test_a_checkpoint_directory_may_have_an_odd_name(rig: Rig) -> None:
    rig.put(600)
    rig.run(rig.pipeline(), checkpoint="odd #1 100%25?")
    rig.forget_commit(1, "odd #1 100%25?")
    assert replayed(rig.run(rig.pipeline(), checkpoint="odd #1 100%25?")) == [True]
    rig.assert_exact()


@pytest.mark.slow
def test_two_tables_get_the_same_records_and_the_same_positions_in_both_deliveries(rig: Rig) -> None:
    rig.put(600)
    rig.run(rig.pipeline(rig.sink(table="one"), rig.sink("staged", "two")))
    rig.assert_exact("one")
    rig.assert_exact("two")
    ledgers = rig.sql("SELECT sink, epoch, positions::text FROM onefold_sinks.onefold_ledger ORDER BY sink")
    assert [sink for sink, *_ in ledgers] == ["one", "two"]
    assert ledgers[0][1:] == ledgers[1][1:]


@pytest.mark.slow
def test_a_streaming_dataframe_of_ones_own_is_written_through_the_epoch_writer(rig: Rig) -> None:
    rate = rig.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    df = rate.selectExpr("value AS id", "value * 2 AS n")
    epochs = EpochWriter("test", sinks=[rig.sink()], on_outcome=rig.outcomes.append, patience_s=60)
    for batches in (1, 2):
        writer = df.writeStream.foreachBatch(epochs).option("checkpointLocation", rig.checkpoint())
        query = writer.start()
        try:
            while sum(not outcome.replayed for outcome in rig.outcomes) < 2 * batches:
                assert not query.awaitTermination(0.1), query.exception()
        finally:
            query.stop()
    epochs.close()
    rows = rig.rows()
    assert rows == [(i, 2 * i) for i in range(len(rows))]
    assert len(rows) >= 200
    rig.assert_nothing_in_doubt()


@pytest.mark.slow
def test_a_writer_pickles_and_goes_on(rig: Rig) -> None:
    rig.put(300)
    first = EpochWriter("test", sinks=[rig.sink()])
    first.recover()
    second: EpochWriter = pickle.loads(pickle.dumps(first))
    first.close()
    rig.finish(second, rig.start(second, rig.stream()))
    assert [record.rows for record in second.history()] == [300]
    assert second.guarantees()["rows"].mode == "two_phase"
    second.close()
    rig.assert_exact()


@pytest.mark.slow
def test_a_query_of_two_topics_reads_each_by_the_format(rig: Rig, kafka_topic: Callable[..., str]) -> None:
    other = kafka_topic(partitions=2)
    rig.put(100)
    rig.put_values([b'{"id":%d,"n":0}' % number for number in range(0, 100, 10)], 2, other)
    right = KafkaSource(other, bootstrap_servers=rig.servers, format="json", schema="id long, n long")
    writer = rig.writer()
    rig.finish(writer, rig.start(writer, rig.stream().join(rig.stream(right).select("id"), "id")))
    assert [row[0] for row in rig.rows()] == [*range(0, 100, 10)]
    rig.assert_nothing_in_doubt()
