"""`onefold positions --from-spark` and `--from-group`: a pipeline begins where a query of Spark's own, or a consumer
group, stopped, on either runtime."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.definitions import named, piped
from harness.ending import run_until
from harness.errors import raises
from harness.kafka.topics import in_order
from harness.support import Rig
from pyspark.sql import functions as F
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import ConfigError, DataLoss, OnefoldError
from onefold.flow import Flow, count
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import FileSource, KafkaSource

pytestmark = pytest.mark.servers


class Old:
    """A topic, the checkpoint of a query of Spark's that has read of it, and a pipeline of the same topic."""

    def __init__(self, servers: str, topic: str, url: str, root: Path) -> None:
        self.servers, self.topic, self.url, self.root = servers, topic, url, root
        self.checkpoint, self.put = root / "old", 0
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "commits").mkdir()

    def produce(self, count: int = 10) -> None:
        """As many into each of three partitions."""
        producer = in_order(self.servers)
        for number in range(self.put, self.put + 3 * count):
            producer.produce(self.topic, b'{"id":%d}' % number, partition=number % 3)
        assert producer.flush(30) == 0
        self.put += 3 * count

    def batch(self, number: int, offsets: dict[str, Any], *, is_done: bool = True, more: str = "") -> None:
        """As Spark 4.2 logs it (spark-sql's OffsetSeqLog, CommitLog)."""
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "200"}}
        text = f"v1\n{json.dumps(metadata)}\n{json.dumps(offsets)}{more}"
        (self.checkpoint / "offsets" / str(number)).write_text(text)
        if is_done:
            (self.checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def member(self, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self.servers, "group.id": group, "enable.auto.commit": False})

    def commit(self, group: str, offsets: dict[int, int], topic: str = "") -> None:
        """As a job does before it ends."""
        consumer = self.member(group)
        at = [TopicPartition(topic or self.topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=at, asynchronous=False)
        consumer.close()

    def source(self, topics: str = "") -> KafkaSource:
        return KafkaSource(topics or self.topic, bootstrap_servers=self.servers, format="json", schema="id long")

    def pipeline(self, **more: Any) -> Pipeline:
        given = {"source": self.source(), "directory": str(self.root), "runtime": Engine(), **more}
        return piped("orders", sinks=[PostgresSink(self.url, table="orders")], **given)

    def command(self, pipeline: Pipeline, *options: str, input: str = "") -> Result:
        return self.typed("positions", pipeline, "--from-spark", str(self.checkpoint), *options, input=input)

    def typed(self, command: str, pipeline: Pipeline, *options: str, input: str = "") -> Result:
        given = [command, named(pipeline), *options]
        return CliRunner().invoke(app, given, input=input, catch_exceptions=False)

    def ids(self) -> list[int]:
        with psycopg.connect(self.url) as connection, suppress(psycopg.errors.UndefinedTable):
            return [id for (id,) in connection.execute("SELECT id FROM orders ORDER BY id")]
        return []

    def run(self, pipeline: Pipeline, count: int) -> None:
        """Until so many rows are there."""
        run_until(pipeline, lambda: len(self.ids()) == count)


@pytest.fixture
def old(kafka: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path) -> Old:
    made = Old(kafka.bootstrap_servers, kafka_topic(partitions=3), postgres_url, tmp_path)
    made.produce()
    return made


def test_it_begins_after_the_querys_last_batch_in_every_partition(old: Old) -> None:
    old.batch(0, {old.topic: {"0": 2, "1": 0}})
    old.batch(1, {old.topic: {"0": 7, "1": 4}})  # which has not seen partition 2
    pipeline = old.pipeline()
    declined = old.command(pipeline, input="n\n")
    assert declined.exit_code == 1 and f"{old.topic}/0" in declined.output
    settled = old.command(pipeline, "--yes")
    assert settled.exit_code == 0, settled.output
    wanted = sorted([*range(21, 30, 3), *range(13, 30, 3), *range(2, 30, 3)])
    old.run(pipeline, len(wanted))
    assert old.ids() == wanted
    with raises(ConfigError, "pipeline-not-new"):
        old.command(pipeline, "--yes")


def test_a_flow_with_state_on_the_engine_begins_there_too(old: Old) -> None:
    old.batch(0, {old.topic: {"0": 10, "1": 10, "2": 7}})
    flow = Flow("orders")
    counted = flow.source(old.source(), uid="orders").key_by("id").aggregate(uid="n", n=count())
    counted.sink(PostgresSink(old.url, table="orders", mode="upsert", key="id", order="onefold_epoch"))
    pipeline = Pipeline(flow, runtime=Engine(workers=2), directory=str(old.root))
    assert old.command(pipeline, "--yes").exit_code == 0
    old.run(pipeline, 3)
    old.produce(1)
    old.run(pipeline, 6)
    assert old.ids() == [23, 26, 29, 30, 31, 32]


def test_a_second_time_before_the_first_start_is_refused(old: Old) -> None:
    old.batch(0, {old.topic: {"0": 1, "1": 1, "2": 1}})
    pipeline = old.pipeline()
    assert old.command(pipeline, "--yes").exit_code == 0
    with raises(ConfigError, "pipeline-not-new"):
        old.command(pipeline, "--yes")
    with raises(ConfigError, "options-conflict"):
        old.command(pipeline, "--yes", "--why", "a move has a reason")


def away(old: Old) -> Pipeline:
    shutil.rmtree(old.checkpoint)
    return old.pipeline()


def unfinished(old: Old) -> Pipeline:
    old.batch(1, {old.topic: {"0": 3, "1": 3, "2": 3}}, is_done=False)
    return old.pipeline()


def of_another_topic(old: Old) -> Pipeline:
    old.batch(1, {"others": {"0": 3}})
    return old.pipeline()


def of_one_topic_more(old: Old) -> Pipeline:
    old.batch(1, {old.topic: {"0": 3, "1": 3, "2": 3}}, more='\n{"others":{"0":1}}')
    return old.pipeline()


def of_another_format(old: Old) -> Pipeline:
    (old.checkpoint / "offsets" / "0").write_text("v2\n{}\n{}")
    return old.pipeline()


def with_files(old: Old) -> Pipeline:
    (old.root / "in").mkdir()
    pipeline = old.pipeline()
    pipeline.flow.source(FileSource(str(old.root / "in"), format="json", schema="id long"), uid="files").sink(
        PostgresSink(old.url, table="more")
    )
    return pipeline


def deleted(old: Old) -> Pipeline:
    admin = AdminClient({"bootstrap.servers": old.servers})
    for done in admin.delete_records([TopicPartition(old.topic, 0, 5)]).values():
        done.result(30)
    return old.pipeline()


def beyond(old: Old) -> Pipeline:
    old.batch(1, {old.topic: {"0": 11, "1": 3, "2": 3}})
    return old.pipeline()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (away, "not-a-checkpoint"),
        (unfinished, "query-unfinished"),
        (of_another_topic, "positions-not-read"),
        (of_one_topic_more, "positions-not-read"),
        (of_another_format, "offset-log-format"),
        (with_files, "topics-only"),
        (deleted, "query-records-gone"),
        (beyond, "query-records-gone"),
    ],
)
def test_what_would_leave_something_out_or_take_it_twice_is_refused_and_nothing_is_settled(
    old: Old, change: Callable[[Old], Pipeline], code: str
) -> None:
    old.batch(0, {old.topic: {"0": 2, "1": 2, "2": 2}})
    pipeline = change(old)
    with raises(OnefoldError, code):
        old.command(pipeline, "--yes")
    old.checkpoint = old.root / "another"
    (old.checkpoint / "offsets").mkdir(parents=True)
    (old.checkpoint / "commits").mkdir()
    old.batch(0, {old.topic: {"0": 6, "1": 2, "2": 2}})
    assert old.command(old.pipeline(), "--yes").exit_code == 0  # it is still new


def test_a_topic_that_the_query_has_not_read_is_refused(old: Old, kafka_topic: Callable[..., str]) -> None:
    old.batch(0, {old.topic: {"0": 2, "1": 2, "2": 2}})
    with raises(ConfigError, "query-not-read"):
        old.command(old.pipeline(source=old.source([old.topic, kafka_topic(partitions=1)])), "--yes")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_query_that_spark_itself_has_run_is_gone_on_from_exactly(rig: Rig) -> None:
    rig.put(100)
    checkpoint = str(rig.directory / "old")
    rows = rig.stream(rig.source(at_most=30)).select("id", "n").withColumn("old", F.lit(1))
    writing = rows.writeStream.format("parquet").option("path", str(rig.directory / "files"))
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rig.put(50)
    source = rig.source(at_most=None)
    runtime = Spark(session=rig.spark, available_now=True)
    pipeline = piped("after", source=source, sinks=[rig.sink()], runtime=runtime, directory=str(rig.directory))
    command = ["positions", named(pipeline), "--from-spark", checkpoint, "--yes"]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    pipeline.run()
    before = {row.id for row in rig.spark.read.parquet(str(rig.directory / "files")).collect()}
    assert before == {id for id, _ in rig.sent[:100]}
    assert rig.rows() == sorted(rig.sent[100:])


def test_it_begins_where_a_consumer_group_has_committed_in_every_partition(
    old: Old, kafka_topic: Callable[..., str]
) -> None:
    group = f"connect-{old.topic}"
    old.commit(group, {0: 7, 1: 4})  # which has not seen partition 2
    old.commit(group, {0: 0}, kafka_topic(partitions=1))
    pipeline = old.pipeline()
    declined = old.typed("positions", pipeline, "--from-group", group, input="n\n")
    assert declined.exit_code == 1 and f"{old.topic}/0" in declined.output
    settled = old.typed("positions", pipeline, "--from-group", group, "--yes")
    assert settled.exit_code == 0, settled.output
    wanted = sorted([*range(21, 30, 3), *range(13, 30, 3), *range(2, 30, 3)])
    old.run(pipeline, len(wanted))
    assert old.ids() == wanted
    with raises(ConfigError, "pipeline-not-new"):
        old.typed("positions", pipeline, "--from-group", group, "--yes")


def test_a_group_that_has_members_committed_nothing_or_what_is_gone_is_refused(old: Old) -> None:
    pipeline, group = old.pipeline(), f"connect-{old.topic}"

    def begin() -> None:
        old.typed("positions", pipeline, "--from-group", group, "--yes")

    with raises(ConfigError, "group-unknown", group, old.topic):
        begin()
    old.commit(group, {0: 7, 1: 4, 2: 0})
    member = old.member(group)
    member.subscribe([old.topic])
    member.poll(10)
    with raises(ConfigError, "group-has-members", "session.timeout.ms"):
        begin()
    member.close()
    old.commit(group, {0: 11})
    with raises(DataLoss, "query-records-gone", f"consumer group '{group}'", f"{old.topic}:0=11"):
        begin()
    old.commit(group, {0: 10})
    begin()


@pytest.mark.slow
def test_what_a_group_has_committed_is_what_verify_expects_of_its_table(old: Old) -> None:
    group = f"connect-{old.topic}"
    old.commit(group, {0: 7, 1: 4, 2: 0})
    with psycopg.connect(old.url) as connection:
        connection.execute("CREATE TABLE orders (id bigint)")
        connection.execute("INSERT INTO orders SELECT 3 * n FROM generate_series(0, 6) n")
        connection.execute("INSERT INTO orders SELECT 1 + 3 * n FROM generate_series(0, 3) n")
    given = ["--without-ledger", "--key", "id", "--json"]
    answer = old.typed("verify", old.pipeline(), *given, "--until", f"group={group}")
    assert answer.exit_code == 0, answer.output
    old.commit(group, {2: 1})
    answer = old.typed("verify", old.pipeline(), *given, "--until", f"group={group}")
    (result,) = json.loads(answer.stdout)["sinks"].values()
    assert (answer.exit_code, result["comparison"]["lost"]) == (1, 1)
    with raises(ConfigError, "option-value", "group=NAME"):
        old.typed("verify", old.pipeline(), *given, "--until", "group=")
