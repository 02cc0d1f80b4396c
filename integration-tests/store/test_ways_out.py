"""Mistakes and mishaps around a query's start: refused, and the way out that the error names ends in an exact table."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.errors import raises
from harness.support import Rig, crash, failing_at
from pyspark import InheritableThread
from pyspark.sql import DataFrame

from onefold.core import CheckpointMismatch, ConfigError, Damaged, DataLoss, Sink, Terminal
from onefold.sinks import KafkaSink
from onefold.spark import EpochWriter

pytestmark = pytest.mark.servers


def in_two_calls(writer: EpochWriter, remainders: tuple[int, ...] = (0, 1)) -> Callable[[DataFrame, int], None]:
    def each(batch: DataFrame, batch_id: int) -> None:
        for remainder in remainders:
            writer(batch.where(f"id % 2 = {remainder}"), batch_id)

    return each


def run_in_two_calls(rig: Rig) -> None:
    writer = rig.writer()
    query = rig.stream().writeStream.foreachBatch(in_two_calls(writer)).trigger(availableNow=True)
    try:
        rig.finish(writer, query.option("checkpointLocation", rig.checkpoint()).start())
    finally:
        writer.close()


def run_own(rig: Rig, *sinks: Sink, name: str = "test", checkpoint: str = "checkpoint") -> None:
    writer = rig.writer(*sinks, name=name)
    try:
        rig.finish(writer, rig.start(writer, rig.stream(), checkpoint))
    finally:
        writer.close()


@pytest.mark.slow
def test_a_second_call_for_a_batch_is_refused_and_its_rows_written_by_hand_or_under_another_name(rig: Rig) -> None:
    rig.put(600)
    with pytest.raises(
        ConfigError, match=r"a second time for batch 0, which is epoch 1 .*writer\.recover\(accept_damage=1\)"
    ):
        run_in_two_calls(rig)
    assert len(rig.rows()) == 150
    with pytest.raises(Damaged, match=r"writer\.recover\(accept_damage=1\)"):  # also where the job calls it once now
        run_own(rig)
    for record in rig.sent[:300]:
        if record[0] % 2:
            rig.sql("INSERT INTO rows (id, n) VALUES (%s, %s)", *record)
    rig.writer().recover(accept_damage=1)
    run_own(rig)
    rig.assert_exact()

    run_own(rig, rig.sink(table="others"), name="second", checkpoint="second")
    rig.assert_exact("others")


@pytest.mark.slow
def test_a_second_call_from_another_thread_is_refused_also_while_the_first_one_is_about_to_return(rig: Rig) -> None:
    rig.put(300)
    is_told = threading.Event()

    def tell(_: object) -> None:
        is_told.set()
        time.sleep(3)  # a second call would be through by then

    writer = EpochWriter("test", sinks=[rig.sink()], on_outcome=tell, patience_s=60)
    refused: list[Exception] = []

    def each(batch: DataFrame, batch_id: int) -> None:
        def rest() -> None:
            is_told.wait()
            try:
                writer(batch.where("id % 2 = 1"), batch_id)
            except ConfigError as error:
                refused.append(error)

        thread = InheritableThread(target=rest, session=batch.sparkSession)
        thread.start()
        writer(batch.where("id % 2 = 0"), batch_id)
        thread.join()

    query = rig.stream().writeStream.foreachBatch(each).trigger(availableNow=True)
    rig.finish(writer, query.option("checkpointLocation", rig.checkpoint()).start())
    writer.close()
    assert "a second time for batch 0" in str(refused[0])


@pytest.mark.slow
def test_a_second_call_for_a_batch_that_was_written_before_is_refused_too(rig: Rig) -> None:
    rig.put(300)
    run_own(rig)
    rig.forget_commit(0)
    with pytest.raises(ConfigError, match=r"a second time for batch 0"):
        run_in_two_calls(rig)
    rig.writer().recover(accept_damage=1)  # all its rows were there
    run_own(rig)
    rig.assert_exact()


@pytest.mark.slow
def test_a_job_that_asks_again_after_an_error_writes_the_batch_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put(300)
    writer = rig.writer()
    failed = []

    def each(batch: DataFrame, batch_id: int) -> None:
        with monkeypatch.context() as patch:
            failing_at(patch, "before:ReadClock", crash)
            try:
                writer(batch, batch_id)
            except Exception as error:
                failed.append(error)
        writer(batch, batch_id)

    query = rig.stream().writeStream.foreachBatch(each).trigger(availableNow=True)
    rig.finish(writer, query.option("checkpointLocation", rig.checkpoint()).start())
    writer.close()
    assert failed
    rig.assert_exact()


@pytest.mark.slow
def test_a_dataframe_with_a_new_checkpoint_is_refused_and_goes_on_with_its_own(rig: Rig) -> None:
    rig.put(300)
    writer, df = rig.writer(), rig.stream(rig.source(at_most=None))
    rig.finish(writer, rig.start(writer, df))
    rig.put(100)
    with pytest.raises(CheckpointMismatch, match=r"written already.*put the query's own checkpoint directory back"):
        rig.finish(writer, rig.start(writer, df, "second"))
    rig.finish(writer, rig.start(writer, df))
    writer.close()
    rig.assert_exact()


def own_kafka(rig: Rig, starting: str) -> DataFrame:
    return rig.stream(rig.source(at_most=None, starting_offsets=starting))


@pytest.mark.slow
def test_a_dataframe_of_ones_own_that_starts_elsewhere_than_the_flow_of_that_name_is_refused(rig: Rig) -> None:
    rig.run(rig.pipeline())  # settles where it begins, with an epoch without records
    rig.put(300)
    starting = json.dumps({rig.topic: dict.fromkeys("0123", 70)})
    writer = rig.writer()
    with raises(DataLoss, "gap-in-positions"):
        rig.finish(writer, rig.start(writer, own_kafka(rig, starting), "second"))
    writer.close()
    assert rig.sql("SELECT to_regclass('rows')") == [(None,)] or rig.rows() == []
    rig.run(rig.pipeline())
    rig.assert_exact()


@pytest.mark.slow
def test_onefold_kafka_of_ones_own_starts_where_its_first_batch_was_planned_to_also_after_a_crash(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latest is somewhere else by the time that the batch is run again: the checkpoint says where it was."""
    rig.put(300)
    rig.sent.clear()
    writer = rig.writer()
    started = own_kafka(rig, "latest").writeStream.foreachBatch(writer)
    query = started.option("checkpointLocation", rig.checkpoint()).start()
    try:
        while not rig.outcomes:  # an empty one
            assert not query.awaitTermination(0.1), query.exception()
        with monkeypatch.context() as patch:
            failing_at(patch, "before:Decide", crash)
            rig.put(200)
            with pytest.raises(Terminal, match="Crash"):
                writer.await_termination(query, 60)
    finally:
        query.stop()
    shutil.rmtree(rig.checkpoint() + "/commits")  # its first batch is run again, too
    rig.put(100)
    rig.finish(writer, rig.start(writer, own_kafka(rig, "latest")))
    writer.close()
    rig.assert_exact()


@pytest.mark.slow
def test_another_start_before_anything_was_written_is_refused_until_it_is_put_back_or_the_name_is_new(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.put(300)
    rig.run(rig.pipeline(source=rig.source(starting_offsets="latest")))  # there is nothing that it could write
    with raises(ConfigError, "starting-offsets-settled", "'latest'", "'earliest'"):
        rig.run(rig.pipeline())
    rig.run(rig.pipeline(rig.sink(table="others"), name="second"), "second")
    rig.assert_exact("others")

    rig.sent.clear()
    rig.put(100)
    for _ in range(2):  # latest is another number each time
        rig.run(rig.pipeline(source=rig.source(starting_offsets="latest")))
        rig.assert_exact()
        rig.put(50)
    assert "is ignored" not in caplog.text
    rig.run(rig.pipeline(source=rig.source(starting_offsets="earliest")))
    assert f"starting_offsets='earliest' of {rig.topic} is ignored" in caplog.text
    rig.assert_exact()


def keyed(rig: Rig, topic: str) -> KafkaSink:
    position = ("kafka_topic", "kafka_partition", "kafka_offset")
    return KafkaSink(topic, bootstrap_servers=rig.servers, delivery="keyed", id=position)


def ids_in(rig: Rig, topic: str, partitions: int) -> list[bytes]:
    """The keys of a topic's records, each as often as it is there."""
    consumer = Consumer({"bootstrap.servers": rig.servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    keys: list[bytes] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(10)
        assert message is not None
        ended += message.error() is not None
        if message.error() is None:
            keys.append(message.key())
    consumer.close()
    return keys


@pytest.mark.slow
def test_a_begun_epoch_whose_checkpoint_was_lost_runs_again_as_it_was_though_the_topic_has_grown(
    rig: Rig,
    kafka_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    into = kafka_topic(partitions=2)

    def run(checkpoint: str, **more: Any) -> None:
        source = rig.source(at_most=None, columns=["position"], **more)
        rig.run(rig.pipeline(keyed(rig, into), source=source, store=rig.sqlite), checkpoint)

    rig.put(300)
    with monkeypatch.context() as patch:
        failing_at(patch, "before:Decide", crash)
        with pytest.raises(Terminal, match="Crash"):
            run("first")
    rig.put(40)
    run("second", starting_offsets="ledger")
    assert [outcome.record.rows for outcome in rig.outcomes] == [300, 40]
    assert len(set(ids_in(rig, into, 2))) == 340


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True], ids=["done", "not noted as done"])
def test_another_source_goes_on_at_the_next_start_of_its_query(rig: Rig, forgets: bool) -> None:
    folder = str(rig.directory / "files")

    def run(low: int) -> None:
        rig.spark.range(low, low + 10).selectExpr("id", "id AS n").write.mode("append").parquet(folder)
        writer = rig.writer()
        files = rig.spark.readStream.schema("id long, n long").parquet(folder)
        rig.finish(writer, rig.start(writer, files))
        writer.close()

    for low in (0, 10, 20):
        run(low)
        if forgets:
            rig.forget_commit(low // 10)
    assert rig.rows() == [(i, i) for i in range(30)]


@pytest.mark.slow
def test_with_all_bookkeeping_gone_the_ledger_is_no_start_and_an_empty_table_is(rig: Rig) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    rig.put(100)
    rig.sql("DROP SCHEMA onefold_sinks CASCADE")
    with pytest.raises(DataLoss, match=r"beyond the recorded end.*new, empty checkpoint directory and an empty table"):
        rig.run(rig.pipeline())
    with pytest.raises(ConfigError, match=r"starting_offsets='ledger', and pipeline 'test' has no ledger"):
        rig.run(rig.pipeline(source=rig.source(starting_offsets="ledger")), "second")
    assert len(rig.rows()) == 300
    rig.sql("TRUNCATE rows")
    rig.run(rig.pipeline(), checkpoint="third")
    rig.assert_exact()


@pytest.mark.slow
def test_a_planned_batch_whose_bookkeeping_is_gone_is_not_said_to_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    rig.put(100)
    with monkeypatch.context() as patch:
        failing_at(patch, "before:ReadClock", crash)
        with pytest.raises(Terminal, match="Crash"):
            rig.run(rig.pipeline())
    rig.sql("DROP TABLE rows; DROP SCHEMA onefold_sinks CASCADE")
    with pytest.raises(DataLoss, match=r"beyond the recorded end.*new, empty checkpoint directory and an empty table"):
        rig.run(rig.pipeline(source=rig.source(starting_offsets="latest")))
    rig.run(rig.pipeline(name="second"), checkpoint="second")
    rig.assert_exact()


@pytest.mark.slow
def test_a_deleted_topic_is_data_loss_also_for_a_run_that_ends_by_itself(rig: Rig) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    admin = AdminClient({"bootstrap.servers": rig.servers})
    admin.delete_topics([rig.topic])[rig.topic].result(20)
    for _ in range(2):
        with pytest.raises(DataLoss, match="the topic was deleted"):
            rig.run(rig.pipeline())


@pytest.mark.slow
def test_records_deleted_while_a_pipeline_is_down_are_data_loss_at_every_start(rig: Rig) -> None:
    """A consumer that was kept from before still holds them: what one start says, the next says too."""
    rig.put(400)
    slow = rig.source(at_most=100)
    rig.run(rig.pipeline(source=slow))
    rig.put(400)
    pipeline = rig.pipeline(source=slow)
    query = pipeline.start(rig.spark, rig.checkpoint(), {"processingTime": "1 second"})
    while len(rig.outcomes) < 1:
        assert not query.awaitTermination(0.1), query.exception()
    query.stop()
    pipeline.close()
    admin = AdminClient({"bootstrap.servers": rig.servers})
    gone = [TopicPartition(rig.topic, number, 195) for number in range(4)]
    for future in admin.delete_records(gone).values():
        future.result(20)
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"Kafka has deleted everything before 195"):
            rig.run(rig.pipeline(source=slow))
    rig.run(rig.pipeline(rig.sink(table="others"), name="second", source=slow), "second")
    assert len(rig.rows("others")) == 20
