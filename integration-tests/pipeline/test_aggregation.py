"""Aggregating queries: what is refused before they start, and what happens to their state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.aggregating_job import TOTALS, aggregated, expected_changes, expected_windows, purchases
from harness.errors import raises
from harness.support import AVAILABLE_NOW, Rig, crash, failing_at, fresh, wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.core import CheckpointMismatch, ConfigError, EpochRecord, Retriable, Sink, Terminal
from onefold.core.positions import CLOCKS, WATERMARK
from onefold.core.writing.attempt import Written
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import HBaseSource
from onefold.spark import read_hbase
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.flows.spark_operator import OperatorWriting
from onefold.spark.output_modes import check_output_mode
from onefold.spark.runtime.checkpoint import running_query
from onefold.spark.verify.verification import verify

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = "at long, account long, amount long"
TOTALS_OF_ACCOUNTS = "account long, n long"
KEY = ("start", "account")


def source(rig: Rig, at_most: int = 120, **more: Any) -> Any:
    return rig.source(at_most=at_most, schema=SCHEMA, **more)


def upserting(rig: Rig) -> PostgresSink:
    return PostgresSink(rig.url, "totals", mode="upsert", key=KEY, order="onefold_epoch")


def pipeline_of(rig: Rig, function: Callable[[DataFrame], DataFrame], *sinks: Sink, **more: Any) -> FlowWriter:
    """A flow whose rows an aggregation of Spark's makes; `more` is for its source, with `mode`, `name` and `schema`."""
    mode, name, schema = more.pop("mode", "append"), more.pop("name", "test"), more.pop("schema", TOTALS)
    return rig.pipeline(
        *sinks,
        name=name,
        source=source(rig, **more),
        change=lambda rows: rows.spark_dataframe(function, schema, mode),
    )


def run(rig: Rig, kind: str, *sinks: Sink, checkpoint: str = "checkpoint", **more: Any) -> None:
    rig.run(pipeline_of(rig, partial(aggregated, query=kind), *sinks, **more), checkpoint)


def put(rig: Rig, start: int, stop: int) -> None:
    rig.put_values([each.value() for each in purchases(start, stop)])


def totals(rig: Rig) -> list[tuple[Any, ...]]:
    return rig.sql("SELECT start, account, n, total FROM totals ORDER BY 1, 2")


def numbers(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("timestamp AS at", "value % 7 AS account", "value").withWatermark("at", "1 minute")


def counted(df: DataFrame) -> DataFrame:
    groups = df.groupBy(F.window("at", "5 minutes"), "account").count()
    return groups.select(F.col("window.start").alias("start"), F.col("account").alias("account"), "count")


def test_update_mode_asks_for_sinks_that_replace_rows_by_the_groups_columns(spark: SparkSession) -> None:
    df = counted(numbers(spark))

    def upsert(*key: str, order: Any = "onefold_epoch") -> PostgresSink:
        return PostgresSink("postgresql://localhost/x", "t", mode="upsert", key=key, order=order)

    def topic(**more: Any) -> KafkaSink:
        return KafkaSink("t", bootstrap_servers="localhost:1", **more)

    def hbase(**more: Any) -> HBaseSink:
        return HBaseSink("localhost:1", "t", row_key="start, account", family="f", **more)

    for sink in (
        upsert("start", "account"),
        upsert("account", order=("start", "onefold_epoch")),
        SqlSink("sqlite:////tmp/none.db", "t", mode="upsert", key=KEY, order="onefold_epoch"),
        hbase(),
        hbase(mode="rolling", merge="replace"),
        topic(key=KEY),
    ):
        check_output_mode("update", df, [sink])
    refused: list[tuple[Sink, str]] = [
        (PostgresSink("postgresql://localhost/x", "t"), "update-into-appends"),
        (hbase(mode="rolling", merge={"count": "sum"}), "update-into-appends"),
        (topic(), "update-into-appends"),
        (topic(delivery="keyed", id=KEY), "update-into-appends"),
        (upsert("start", "account", order="count"), "update-without-epoch"),
        (upsert("account"), "update-key-too-small"),
        (topic(key="account"), "update-key-too-small"),
        (upsert("account", order=("onefold_epoch", "start")), "update-key-too-small"),
        (upsert("start", "account", order=("count", "onefold_epoch")), "update-by-values"),
        (upsert("start", "account", "count"), "update-by-values"),
        (topic(key=("start", "account", "count")), "update-by-values"),
        (HBaseSink("localhost:1", "t", row_key="start, account, count", family="f"), "update-by-values"),
    ]
    for sink, code in refused:
        with pytest.raises(ConfigError) as error:
            check_output_mode("update", df, [upsert("start", "account"), sink])
        assert error.value.code == code, sink
    with raises(ConfigError, "update-key-too-small"):
        check_output_mode("update", df, [upsert("account")])
    with raises(ConfigError, "epoch-without-update", "output_mode='update'"):
        check_output_mode("append", df, [upsert("start", "account")])
    check_output_mode("append", df, [upsert("start", "account", order="count")])
    check_output_mode("append", df.withColumn("onefold_epoch", F.lit(1)), [upsert("start", "account")])
    with raises(ConfigError, "column-name-taken"):
        check_output_mode("update", df.withColumn("onefold_epoch", F.lit(1)), [upsert("start", "account")])
    with raises(ConfigError, "complete-mode-unsupported", "output_mode='update'"):
        check_output_mode("complete", df, [upsert("start", "account")])
    with pytest.raises(ConfigError, match=r"output_mode='apend' must be append or update"):
        check_output_mode("apend", df, [])


def test_key_and_order_are_of_the_groups_and_no_value_whatever_the_query_makes_of_both(spark: SparkSession) -> None:
    groups = numbers(spark).groupBy(F.window("at", "5 minutes").alias("span"), (F.col("account") % 3).alias("k"))
    df = groups.agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max("at").alias("latest"))
    df = df.select(
        F.unix_seconds("span.start").alias("start_s"),
        F.concat(F.lit("account "), F.col("k").cast("string")).alias("name"),
        F.lit("eu").alias("region"),
        "k",
        (F.col("n") + F.col("k")).alias("mixed"),
        "latest",
        F.current_timestamp().alias("now"),
        F.rand().alias("random"),
    ).where("k > 0")

    def check(rows: DataFrame, *key: str, before: tuple[str, ...] = ()) -> None:
        order = (*before, "onefold_epoch")
        check_output_mode(
            "update", rows, [PostgresSink("postgresql://localhost/x", "t", mode="upsert", key=key, order=order)]
        )

    check(df, "start_s", "name")
    check(df, "region", "k", "start_s")
    check(df, "k", before=("region", "start_s"))
    check(df, "start_s", "kay", before=("region",))  # no such column: the sink says so
    for column in ("mixed", "latest", "now", "random"):
        with raises(ConfigError, "update-by-values", f"{column}"):
            check(df, "start_s", "k", column)
        with raises(ConfigError, "update-by-values", f"{column}"):
            check(df, "start_s", "k", before=(column,))
    days = spark.range(3).selectExpr("id AS k", "id AS day")
    for unseen in (
        df.mapInArrow(lambda batches: batches, df.schema),
        df.join(days, "k"),
        numbers(spark).toDF("at", "k", "n"),
    ):
        check(unseen, "k")
        with raises(ConfigError, "update-by-values", "'onefold_epoch'"):
            check(unseen, "k", before=(unseen.columns[-1],))
    exploded = df.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2))))
    check(exploded, "start_s", "k", "part")
    check(exploded, "k", "part", before=("start_s",))
    with raises(ConfigError, "update-by-values"):
        check(exploded, "start_s", "k", before=("part",))


def test_a_key_is_held_against_the_groups_only_where_both_are_known(spark: SparkSession) -> None:
    df = numbers(spark)
    grouped = df.groupBy((F.col("account") % 3).alias("k"), "value").count()
    by_k = PostgresSink("postgresql://localhost/x", "t", mode="upsert", key="k", order="onefold_epoch")
    by_both = PostgresSink("postgresql://localhost/x", "t", mode="upsert", key=("k", "v"), order="onefold_epoch")
    renamed = grouped.withColumnRenamed("value", "v").where("count > 1")
    check_output_mode("update", renamed, [by_both])
    with raises(ConfigError, "update-key-too-small"):
        check_output_mode("update", renamed, [by_k])
    for unknown in (df, grouped.mapInArrow(lambda batches: batches, grouped.schema), df.groupBy().count()):
        check_output_mode("update", unknown, [by_k])


@pytest.mark.parametrize(
    ("make", "schema", "mode", "message"),
    [
        (
            lambda df: df.groupBy("account").agg(F.count("*").alias("n")),
            TOTALS_OF_ACCOUNTS,
            "append",
            "withWatermark('at', '10 minutes')",
        ),
        (lambda df: aggregated(df, "sessions"), TOTALS, "update", "says which queries go with which output mode"),
    ],
    ids=["append without a window", "update of sessions"],
)
def test_a_query_that_spark_refuses_is_refused_in_two_sentences(
    rig: Rig, make: Callable[[DataFrame], DataFrame], schema: str, mode: str, message: str
) -> None:
    sink = upserting(rig) if mode == "update" else PostgresSink(rig.url, "totals")
    pipeline = pipeline_of(rig, make, sink, mode=mode, schema=schema)
    with raises(ConfigError, "query-refused", message) as error:
        pipeline.start(rig.spark, rig.checkpoint(), AVAILABLE_NOW)
    assert "\n" not in error.value.message


def test_the_newest_epochs_row_of_a_group_stays_and_verify_finds_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its count may go down, too. The second epoch's writers run twice: the state takes its records once."""
    runs: list[int] = []

    write = OperatorWriting.write

    def twice(self: OperatorWriting, df: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        done = write(self, df, record, sinks)
        runs.append(record.epoch)
        if runs.count(2) == 1 and record.epoch == 2:
            raise Retriable("spark-job-failed", "an executor was lost behind the last task")
        return done

    monkeypatch.setattr(OperatorWriting, "write", twice)
    put(rig, 0, 240)
    run(rig, "changes", upserting(rig), mode="update")
    assert runs.count(2) == 2
    put(rig, 240, 360)
    run(rig, "changes", upserting(rig), mode="update")
    assert totals(rig) == expected_changes(purchases(0, 360))
    newest = rig.sql("SELECT max(onefold_epoch), min(onefold_epoch) FROM totals")
    assert newest[0][0] > newest[0][1] == 1
    sink = upserting(rig)
    found = verify(rig.spark, pipeline_of(rig, partial(aggregated, query="changes"), sink, mode="update"), sink, KEY)
    assert found.is_exact, found


def test_windows_whose_checkpoint_is_lost_or_older_are_not_written_twice(rig: Rig) -> None:
    sink = PostgresSink(rig.url, "totals")
    put(rig, 0, 240)
    run(rig, "windows", sink)
    written = totals(rig)
    assert written == expected_windows(purchases(0, 240))
    newest = max(int(path.name) for path in Path(rig.checkpoint(), "commits").iterdir() if path.name.isdigit())
    shutil.copytree(rig.checkpoint(), rig.checkpoint("older"))
    for log in ("offsets", "commits"):  # as before the batch that only moved the watermark
        for name in (str(newest), f".{newest}.crc"):
            Path(rig.checkpoint("older"), log, name).unlink()
    put(rig, 240, 360)
    with raises(CheckpointMismatch, "positions-not-comparable"):
        run(rig, "windows", sink, checkpoint="older")
    with raises(CheckpointMismatch, "positions-not-comparable"):
        run(rig, "windows", sink, checkpoint="new")
    with raises(CheckpointMismatch, "state-missing"):
        run(rig, "windows", sink, checkpoint="third", starting_offsets="ledger")
    assert totals(rig) == written
    run(rig, "windows", sink)
    assert totals(rig) == expected_windows(purchases(0, 360))


def test_windows_whose_state_is_lost_go_on_under_another_name_behind_those_of_the_table(rig: Rig) -> None:
    sink = PostgresSink(rig.url, "totals")
    put(rig, 0, 240)
    run(rig, "windows", sink)
    put(rig, 240, 360)
    with raises(CheckpointMismatch, "positions-not-comparable"):
        run(rig, "windows", sink, checkpoint="new")
    last = max(start for start, *_ in totals(rig))
    rig.run(
        pipeline_of(rig, lambda df: aggregated(df, "windows").where(f"start > {last}"), sink, name="second"), "second"
    )
    assert totals(rig) == expected_windows(purchases(0, 360))


@pytest.mark.xdist_group("hbase")
def test_hbase_rows_and_a_topics_last_records_are_the_newest_epochs_of_their_groups(
    rig: Rig, hbase_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row_key = "start integer, account integer"
    table, topic = fresh("totals"), kafka_topic(partitions=2)
    sinks = (
        HBaseSink(hbase_server.servers, table, row_key=row_key, family="f"),
        KafkaSink(topic, bootstrap_servers=rig.servers, key=KEY),
        upserting(rig),
    )
    put(rig, 0, 240)
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Decide", crash)
        with pytest.raises(Terminal, match="CrashError"):
            run(rig, "changes", *sinks, mode="update")
    run(rig, "changes", *sinks, mode="update")
    expected = expected_changes(purchases(0, 240))
    assert totals(rig) == expected

    rows = read_hbase(rig.spark, HBaseSource(hbase_server.servers, table, row_key=row_key, family="f"), TOTALS)
    assert sorted(tuple(row) for row in rows.select("start", "account", "n", "total").collect()) == expected

    records = rig.spark.read.format("onefold_kafka").options(
        **{"subscribe": topic, "kafka.bootstrap.servers": rig.servers, "format": "json", "schema": TOTALS},
        columns="position",
    )
    changes = records.load().orderBy("kafka_partition", "kafka_offset").collect()
    assert len(changes) > len(expected), "groups of both batches"
    last = {(row.start, row.account): (row.n, row.total) for row in changes}
    assert sorted((*group, *values) for group, values in last.items()) == expected


def test_the_clocks_of_a_query_are_those_by_which_it_makes_rows_without_records(rig: Rig) -> None:
    batch = rig.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    timed = batch.withColumnRenamed("timestamp", "at").withWatermark("at", "1 minute")

    def latest(key: Any, rows: Any, state: Any) -> Any:  # noqa: ARG001
        for each in rows:
            yield each[["value"]]

    def stateful(timeout: str) -> DataFrame:
        groups = timed.groupBy("value")
        return groups.applyInPandasWithState(latest, "value long", "n long", "append", timeout)

    def clocks(df: DataFrame, mode: str = "append") -> tuple[str, ...]:
        found: list[tuple[str, ...]] = []

        def look(rows: DataFrame, _: int) -> None:
            found.append(running_query(rows.sparkSession, None).clocks)
            rows.write.format("noop").mode("overwrite").save()

        writer = df.writeStream.outputMode(mode).foreachBatch(look).trigger(**AVAILABLE_NOW)
        query = writer.option("checkpointLocation", rig.checkpoint(fresh("clocks"))).start()
        wait_until(lambda: bool(found) or not query.isActive, "the first batch")
        query.stop()  # with timeouts by processing time it would run for ever
        return found[0]

    assert clocks(timed) == ()
    assert clocks(timed.dropDuplicatesWithinWatermark(["value"])) == ()
    assert clocks(timed.groupBy("value").count(), "update") == (WATERMARK,)
    assert clocks(timed.groupBy(F.session_window("at", "1 minute"), "value").count()) == (WATERMARK,)
    assert clocks(stateful("NoTimeout")) == (WATERMARK,)
    assert clocks(stateful("ProcessingTimeTimeout")) == CLOCKS
    later = timed.selectExpr("at AS later", "value AS other").withWatermark("later", "1 minute")
    joined = timed.join(later, F.expr("value = other AND later BETWEEN at AND at + INTERVAL 1 MINUTE"), "leftOuter")
    assert clocks(joined) == (WATERMARK,)


def test_a_query_with_another_aggregate_is_refused_with_the_ways_out_and_the_old_one_goes_on(rig: Rig) -> None:
    """As Spark finds it: in the first batch that the changed query plans."""

    def run(*more: str) -> None:
        def largest(rows: DataFrame) -> DataFrame:
            most = (F.max("amount").alias(name) for name in more)
            return rows.groupBy("account").agg(F.count("*").alias("n"), *most)

        sink = PostgresSink(rig.url, "largest", mode="upsert", key="account", order="onefold_epoch")
        schema = ", ".join((TOTALS_OF_ACCOUNTS, *(f"{name} long" for name in more)))
        rig.run(pipeline_of(rig, largest, sink, mode="update", schema=schema))

    put(rig, 0, 50)
    run()
    put(rig, 50, 100)
    with raises(CheckpointMismatch, "state-of-another-query"):
        run("most")
    run()
    assert rig.sql("SELECT sum(n)::int FROM largest") == [(100,)]
