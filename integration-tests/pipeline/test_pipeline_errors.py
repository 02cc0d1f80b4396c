"""Pipelines on Spark with real servers: what they refuse, what they wait for, and how an error comes out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from harness.errors import raises
from harness.support import AVAILABLE_NOW, Rig, failing_at, through_spark, wait_until

from onefold.core import BadRecord, CheckpointMismatch, ConfigError, DataLoss, Fenced, Retriable, SchemaMismatch
from onefold.core.errors import exit_code
from onefold.core.protocol.epoch import Outcome
from onefold.sources import KafkaSource
from onefold.spark.flows.flow_writer import FlowWriter

pytestmark = pytest.mark.servers


def replayed(outcomes: list[Outcome]) -> list[bool]:
    return [outcome.replayed for outcome in outcomes]


@pytest.mark.slow
def test_two_staged_sinks_are_refused(rig: Rig) -> None:
    rig.put(10)
    with raises(ConfigError, "several-last-resources", "two_phase"):
        rig.run(rig.pipeline(rig.sink("staged", "one"), rig.sink("staged", "two")))


@pytest.mark.slow
def test_a_staged_sink_with_its_store_elsewhere_is_refused(rig: Rig) -> None:
    rig.put(10)
    with raises(ConfigError, "store-elsewhere", "delivery='two_phase'"):
        rig.run(rig.pipeline(rig.sink("staged"), store=rig.sqlite))


@pytest.mark.slow
def test_a_sqlite_store_with_a_checkpoint_elsewhere_is_refused(rig: Rig) -> None:
    pipeline = rig.pipeline(store=rig.sqlite)
    with raises(ConfigError, "sqlite-not-shared", "'hdfs://cluster/x'"):
        pipeline.start(rig.spark, "hdfs://cluster/x")
    pipeline.close()


@pytest.mark.slow
def test_rows_that_do_not_fit_the_table_name_every_column_that_does_not(rig: Rig) -> None:
    rig.put(10)
    rig.sql("CREATE TABLE rows (id text, m bigint NOT NULL)")
    with pytest.raises(SchemaMismatch) as caught:
        rig.run(rig.pipeline())
    marked = [line.split()[1] for line in str(caught.value).splitlines() if line.strip().startswith("!")]
    assert marked == ["id", "n", "m"], caught.value


@pytest.mark.slow
def test_a_driver_that_was_taken_over_is_fenced_also_where_sparks_own_log_stops_it_first(rig: Rig) -> None:
    rig.put(100)
    pipeline = rig.pipeline()
    query = pipeline.start(rig.spark, rig.checkpoint())
    try:
        wait_until(lambda: bool(rig.outcomes), "the first batch")
        successor = rig.pipeline()
        successor.recover()
        successor.close()
        batch = max(int(name.name) for name in Path(rig.checkpoint(), "offsets").iterdir() if name.name.isdigit()) + 1
        Path(rig.checkpoint(), "offsets", str(batch)).write_text("v1\n")  # as the successor's query would
        rig.put(100)
        with pytest.raises(Fenced, match=r"generation 1 .* was taken over \(now: 2\).*CONCURRENT_STREAM_LOG_UPDATE"):
            pipeline.await_termination(query, 60)
    finally:
        query.stop()
        pipeline.close()


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda rows: rows, through_spark], ids=["plain", "through Spark"])
def test_a_bad_record_ends_the_query_and_says_where_it_is(rig: Rig, change: Callable[[Any], Any]) -> None:
    rig.put(400)
    rig.put_values([b'{"id":"x\n'], partitions=1)
    rig.put_values([b'{"id":9,"n":"many"}'], partitions=1)
    pipeline = rig.pipeline(source=rig.source(at_most=None), change=change)
    with pytest.raises(BadRecord, match=rf"{rig.topic}/0 offset 100: .*Correct the schema"):
        rig.finish(pipeline, pipeline.start(rig.spark, rig.checkpoint(), AVAILABLE_NOW))
    assert rig.rows() == []

    def is_swept() -> bool:
        """What a sibling prepares after the failed run was undone is for the next recovery."""
        pipeline.recover()
        return not rig.prepared()

    wait_until(is_swept, "the end of the other tasks")
    pipeline.close()
    rig.assert_nothing_in_doubt()


@pytest.mark.slow
def test_records_that_kafka_deleted_before_they_were_read_are_data_loss(rig: Rig) -> None:
    rig.put(400)
    rig.run(rig.pipeline())
    rig.put(400)
    admin = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(rig.topic, 1, 150)]).values():
        deleted.result(30)
    with pytest.raises(
        DataLoss, match=rf"{rig.topic}/1: .* wanted is 100.*deleted everything before 150.*starting_offsets"
    ):
        rig.run(rig.pipeline())
    assert len(rig.rows()) == 400


@pytest.mark.slow
def test_postgres_down_at_the_start_is_waited_for_and_then_named(
    rig: Rig, postgres_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port = rig.url.rpartition(":")[2].partition("/")[0]
    pipeline = FlowWriter(rig.flow().graph(), patience_s=1)
    postgres_server.kill()
    try:
        with pytest.raises(Retriable, match=port):
            pipeline.start(rig.spark, rig.checkpoint())
    finally:
        postgres_server.start()
    assert "opening sink 'rows' waits: " in caplog.text
    rig.put(10)
    rig.run(pipeline)
    rig.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before:RunWriters", "before:Decide", "before:Commit"])
def test_postgres_killed_within_an_epoch_is_waited_for_and_the_query_goes_on(
    rig: Rig, postgres_server: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def restart() -> None:
        postgres_server.kill()
        postgres_server.start()

    rig.put(600)
    failing_at(monkeypatch, place, restart)
    assert replayed(rig.run(rig.pipeline(rig.sink("staged")))) == [False, False]
    rig.assert_exact()


@pytest.mark.slow
def test_a_pipeline_that_was_taken_over_is_fenced_and_its_exit_code_says_so(rig: Rig) -> None:
    rig.put(300)
    first = rig.pipeline()
    query = first.start(rig.spark, rig.checkpoint("other"))
    wait_until(lambda: bool(rig.outcomes), "the first batch")
    second = rig.pipeline()
    with raises(ConfigError, "second-query"):
        second.start(rig.spark, rig.checkpoint())
    rig.finish(second, second.start(rig.spark.newSession(), rig.checkpoint(), AVAILABLE_NOW))
    rig.put(300)
    with pytest.raises(Fenced, match=r"taken over .*do not restart it") as caught:
        rig.finish(first, query)
    assert exit_code(caught.value) == 73
    first.close()
    assert len(rig.rows()) == 300


@pytest.mark.slow
def test_a_second_query_of_one_pipeline_is_refused(rig: Rig) -> None:
    rig.put(100)
    pipeline = rig.pipeline()
    first = pipeline.start(rig.spark, rig.checkpoint())
    first.processAllAvailable()
    with raises(ConfigError, "second-query"):
        pipeline.start(rig.spark, rig.checkpoint("second"))
    first.stop()
    pipeline.close()
    rig.assert_exact()


@pytest.mark.slow
def test_a_second_query_of_one_writer_is_refused(rig: Rig) -> None:
    rig.put(100)
    writer, df = rig.writer(), rig.stream()
    first = df.writeStream.foreachBatch(writer).option("checkpointLocation", rig.checkpoint()).start()
    first.processAllAvailable()
    with raises(ConfigError, "second-query"):
        rig.finish(writer, rig.start(writer, df, "second"))
    with raises(ConfigError, "second-query"):
        writer.write_batch(rig.spark.range(1).selectExpr("id", "id AS n"), "run")
    first.stop()
    writer.close()
    rig.assert_exact()


@pytest.mark.slow
def test_another_source_with_a_new_checkpoint_is_refused_because_its_positions_are_numbers_of_the_old_one(
    rig: Rig,
) -> None:
    def run(checkpoint: str, *, adopt_ledger: bool = False) -> None:
        pipeline = rig.writer()
        try:
            if adopt_ledger:
                pipeline.recover(adopt_ledger=True)
            rig.finish(pipeline, rig.start(pipeline, files, checkpoint))
        finally:
            pipeline.close()

    folder = str(rig.directory / "files")
    rig.spark.range(10).selectExpr("id", "id AS n").write.parquet(folder)
    files = rig.spark.readStream.schema("id long, n long").parquet(folder)
    run("checkpoint")
    rig.forget_commit(0)
    run("checkpoint")
    assert replayed(rig.outcomes) == [False, True]
    ways = "Restore the checkpoint directory", "give the writer another name"
    with raises(CheckpointMismatch, "checkpoint-directory-new", *ways):
        run("second")
    rig.spark.range(10, 20).selectExpr("id", "id AS n").write.mode("append").parquet(folder)
    rig.sql("DROP TABLE onefold_sinks.onefold_store, onefold_sinks.onefold_pipelines, onefold_sinks.onefold_epochs")
    with pytest.raises(CheckpointMismatch, match=r"recover\(adopt_ledger=True\)"):
        run("checkpoint")
    run("checkpoint", adopt_ledger=True)
    assert rig.rows() == [(i, i) for i in range(20)]


@pytest.mark.slow
def test_other_files_under_the_numbers_of_a_restored_checkpoint_are_not_mistaken_for_a_replay(rig: Rig) -> None:
    def run() -> None:
        pipeline = rig.writer()
        try:
            rig.finish(pipeline, rig.start(pipeline, files))
        finally:
            pipeline.close()

    folder, older = str(rig.directory / "files"), rig.directory / "older"
    rig.spark.range(10).selectExpr("id", "id AS n").write.parquet(folder)
    files = rig.spark.readStream.schema("id long, n long").parquet(folder)
    run()
    shutil.copytree(rig.checkpoint(), older)
    rig.spark.range(10, 20).selectExpr("id", "id AS n").write.mode("append").parquet(folder)
    run()
    shutil.rmtree(rig.checkpoint())
    older.rename(rig.checkpoint())
    rig.spark.range(20, 30).selectExpr("id", "id AS n").write.mode("append").parquet(folder)
    with pytest.raises(CheckpointMismatch, match="does not start where the last epoch ended"):
        run()
    assert rig.rows() == [(i, i) for i in range(20)]


@pytest.mark.slow
def test_a_source_that_fails_before_any_batch_is_not_mistaken_for_the_last_querys_error(rig: Rig) -> None:
    rig.put(10)
    writer = rig.writer(rig.sink("staged"), store=rig.sqlite)
    with raises(ConfigError, "store-elsewhere"):
        rig.finish(writer, rig.start(writer, rig.stream()))
    missing = rig.stream(KafkaSource.from_options({**rig.source().options(), "subscribe": "missing"}))
    with raises(ConfigError, "topic-missing", "'missing'"):
        rig.finish(writer, rig.start(writer, missing, "second"))
    writer.close()


@pytest.mark.slow
def test_a_replaced_sink_is_refused_and_recover_fences_without_a_query(rig: Rig) -> None:
    rig.put(100)
    rig.run(rig.pipeline())
    with raises(ConfigError, "sink-added", "'test'"):
        rig.run(rig.pipeline(rig.sink(table="others")))
    pipeline = rig.pipeline()
    assert pipeline.recover().generation.number >= 3
    assert pipeline.recover().finished == 0
    pipeline.close()
    shutil.rmtree(rig.checkpoint())
    rig.run(rig.pipeline())
    rig.assert_exact()
