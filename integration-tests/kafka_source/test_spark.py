"""`onefold_kafka` through Spark, batch and streaming, against a real broker."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from harness.kafka.topics import in_order
from pyspark.sql import DataFrame, SparkSession

from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource

pytestmark = pytest.mark.servers
Topic = Callable[..., str]


class Kafka:
    """One broker and the Spark session, with the few things every test here does."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        spark.dataSource.register(OnefoldKafkaDataSource)
        self.spark, self.servers = spark, servers
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def put(self, topic: str, values: list[bytes | None], partition: int = 0) -> None:
        producer = in_order(self.servers)
        for value in values:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        assert producer.flush(20) == 0

    def numbers(self, topic: str, first: int, end: int, partitions: int = 4) -> None:
        for p in range(partitions):
            self.put(topic, [b'{"id":%d}' % i for i in range(first, end) if i % partitions == p], p)

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {"subscribe": topic, "kafka.bootstrap.servers": self.servers, **more}

    def read(self, topic: str, **more: str) -> DataFrame:
        return self.spark.read.format("onefold_kafka").options(**self.options(topic, **more)).load()

    def stream(self, topic: str, **more: str) -> DataFrame:
        return self.spark.readStream.format("onefold_kafka").options(**self.options(topic, **more)).load()

    def run(
        self, df: DataFrame, checkpoint: Path, fail_at: int | None = None, batches: list[list[Any]] | None = None
    ) -> list[list[Any]]:
        """Run until what is there now is read; the ids of each batch."""
        batches = [] if batches is None else batches

        def take(batch: DataFrame, number: int) -> None:
            batches.append(sorted(row[0] for row in batch.collect()))
            if number == fail_at:
                raise RuntimeError("crashed on purpose")

        query = (
            df.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return batches


@pytest.fixture
def broker(spark: SparkSession, kafka_server: Any) -> Kafka:
    return Kafka(spark, str(kafka_server.bootstrap_servers))


JSON = {"format": "json", "schema": "id long"}


@pytest.mark.slow
def test_a_batch_reads_raw_columns_and_parsed_ones(broker: Kafka, kafka_topic: Topic) -> None:
    topic, begun_ms = kafka_topic(partitions=2), time.time() * 1000
    broker.put(topic, [b'{"id":1}', None], 0)
    broker.put(topic, [b'{"id":2}'], 1)
    raw = broker.read(topic)
    assert raw.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    rows = sorted(raw.select("topic", "partition", "offset", "value", "headers").collect())
    assert [(r[0], r[1], r[2], r[3] and bytes(r[3]), r[4]) for r in rows] == [
        (topic, 0, 0, b'{"id":1}', []),
        (topic, 0, 1, None, []),
        (topic, 1, 0, b'{"id":2}', []),
    ]
    (at,) = raw.selectExpr("max(unix_millis(timestamp))").first() or (0,)
    assert begun_ms - 1 <= at <= time.time() * 1000
    some = {
        "startingOffsets": json.dumps({topic: {"0": 0, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 1, "1": -1}}),
    }
    assert sorted(r.id for r in broker.read(topic, **JSON, **some).collect()) == [1, 2]


@pytest.mark.slow
def test_numbers_and_times_arrive_exactly(broker: Kafka, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    broker.put(
        topic,
        [
            b'{"n":9007199254740993,"d":12345678901234567890.123456789,"t":"2026-11-21T02:33:00.123456+02:00",'
            b'"l":"2026-11-21T02:33:00.123456","day":"2026-02-28","x":{"a":[1.10]}}'
        ],
    )
    ddl = "n long, d decimal(38,9), t timestamp, l timestamp_ntz, day date, x struct<a: array<decimal(4,2)>>"
    row = broker.read(topic, format="json", schema=ddl).selectExpr("*", "unix_micros(t) as us").first()
    assert row is not None
    assert row.n == 9007199254740993
    assert row.d == Decimal("12345678901234567890.123456789")
    instant = dt.datetime(2026, 11, 21, 0, 33, 0, 123456, tzinfo=dt.UTC)
    assert row.us == round(instant.timestamp()) * 1_000_000 + 123456
    assert row.l == dt.datetime(2026, 11, 21, 2, 33, 0, 123456)
    assert row.day == dt.date(2026, 2, 28)
    assert row.x.a == [Decimal("1.10")]


@pytest.mark.slow
def test_available_now_in_bounded_batches_reads_each_record_once(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=4)
    broker.numbers(topic, 0, 1000)
    batches = broker.run(broker.stream(topic, maxOffsetsPerTrigger="300", **JSON), tmp_path)
    assert [len(b) for b in batches] == [300, 300, 300, 100]
    assert sorted([*chain(*batches)]) == list(range(1000))
    offsets = json.loads((tmp_path / "offsets" / "3").read_text().splitlines()[-1])
    assert {p: offset for p, offset in offsets[topic].items() if p.isdigit()} == {str(p): 250 for p in range(4)}


@pytest.mark.slow
def test_a_restart_goes_on_from_the_checkpoint_and_replays_the_failed_batch_exactly(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=4)
    broker.numbers(topic, 0, 400)
    df = broker.stream(topic, maxOffsetsPerTrigger="100", **JSON)
    before: list[list[Any]] = []
    with pytest.raises(Exception, match="crashed on purpose"):
        broker.run(df, tmp_path, fail_at=1, batches=before)
    broker.numbers(topic, 400, 600)
    after = broker.run(df, tmp_path)
    assert after[0] == before[1]  # the failed batch comes again, with the same records and no others
    assert sorted(chain(before[0], *after)) == list(range(600))


@pytest.mark.slow
def test_partitions_added_while_a_query_runs_are_read_from_their_first_record(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 10, 1)
    seen: list[int] = []
    query = (
        broker.stream(topic, **JSON)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait(lambda: len(seen) == 10)
        for done in broker.admin.create_partitions([NewPartitions(topic, 3)]).values():
            done.result(10)
        wait(lambda: len(broker.admin.list_topics(topic, timeout=5).topics[topic].partitions) == 3)
        broker.put(topic, [b'{"id":%d}' % i for i in range(10, 20)], 2)
        wait(lambda: len(seen) == 20)
    finally:
        query.stop()
    assert sorted(seen) == list(range(20))


@pytest.mark.slow
def test_a_transaction_becomes_visible_when_it_ends_and_not_before(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 5, 1)
    producers = []
    for ids in (range(5, 10), range(100, 105)):
        producer = Producer(
            {"bootstrap.servers": broker.servers, "log_level": 0, "transactional.id": f"{topic}-{ids[0]}"}
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        for i in ids:
            producer.produce(topic, b'{"id":%d}' % i, partition=0)
        producer.flush(10)
        producers.append(producer)
    df = broker.stream(topic, **JSON)
    assert broker.run(df, tmp_path) == [list(range(5))]
    producers[1].abort_transaction(10)
    producers[0].commit_transaction(10)
    deadline = time.monotonic() + 20
    seen: list[int] = []
    while not seen and time.monotonic() < deadline:
        seen = [*chain(*broker.run(df, tmp_path))]
    assert seen == list(range(5, 10))
    assert [*chain(*broker.run(df, tmp_path))] == []


@pytest.mark.slow
def test_starting_at_the_latest_skips_what_was_there_and_nothing_that_comes(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 5, 1)
    seen: list[int] = []
    query = (
        broker.stream(topic, startingOffsets="latest", **JSON)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait(lambda: bool(query.lastProgress))  # Spark asks for the initial offset again and again until data comes
        broker.numbers(topic, 5, 10, 1)
        wait(lambda: len(seen) == 5)
    finally:
        query.stop()
    assert sorted(seen) == list(range(5, 10))


@pytest.mark.slow
def test_the_same_connections_serve_all_micro_batches(broker: Kafka, kafka_topic: Topic, tmp_path: Path) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 1000, 1)
    broker_port = int(broker.servers.rpartition(":")[2])
    ports_after: list[set[int]] = []

    def take(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("append").save()
        connections = psutil.net_connections("tcp")
        ports_after.append({c.laddr.port for c in connections if c.raddr and c.raddr.port == broker_port})

    query = (
        broker.stream(topic, maxOffsetsPerTrigger="50", **JSON)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert len(ports_after) == 20
    opened_later = set[int]().union(*ports_after[5:]) - set[int]().union(*ports_after[:5])
    assert len(opened_later) <= 3, opened_later  # a consumer for each batch would have opened 15 at least


@pytest.mark.slow
def test_deleted_records_stop_a_query_with_data_loss(broker: Kafka, kafka_topic: Topic, tmp_path: Path) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 10, 1)
    df = broker.stream(topic, **JSON)
    broker.run(df, tmp_path)
    broker.numbers(topic, 10, 30, 1)
    for done in broker.admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        done.result(10)
    with pytest.raises(Exception, match=rf"DataLoss: {topic}/0: .*still wanted is 10.*before 20"):
        broker.run(df, tmp_path)


@pytest.mark.slow
def test_a_topic_made_anew_stops_a_query_with_data_loss(broker: Kafka, kafka_topic: Topic, tmp_path: Path) -> None:
    topic = kafka_topic(partitions=1)
    broker.numbers(topic, 0, 10, 1)
    df = broker.stream(topic, **JSON)
    broker.run(df, tmp_path)
    for done in broker.admin.delete_topics([topic]).values():
        done.result(10)
    wait(lambda: topic not in broker.admin.list_topics(timeout=5).topics)
    for done in broker.admin.create_topics([NewTopic(topic, 1)]).values():
        done.result(10)
    broker.numbers(topic, 0, 30, 1)
    with pytest.raises(Exception, match=rf"DataLoss: {topic}: the topic was deleted and made anew"):
        broker.run(df, tmp_path)


@pytest.mark.slow
def test_a_bad_record_fails_with_topic_partition_offset_and_reason(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=1)
    broker.put(topic, [b'{"id":1}', b'{"id":"two"}'])
    bad = rf"BadRecord: {topic}/0 offset 1: field 'id' \(bigint\): id is a JSON string, not a number"
    with pytest.raises(Exception, match=bad):
        broker.run(broker.stream(topic, **JSON), tmp_path)
    with pytest.raises(Exception, match=bad):
        broker.read(topic, **JSON).collect()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "ConfigError: .*no topic 'no-such-topic'"),
        ({"format": "json"}, "ConfigError: format=json needs a schema"),
        ({"format": "json", "schema": "m map<string, int>"}, "ConfigError: .*'m'"),
        ({"startingOffsets": "soonest"}, "ConfigError: startingOffsets is earliest"),
        ({"startingOffsets": "ledger"}, r"ConfigError: .*\[ledger-needs-pipeline\]"),
        ({"maxOfsetsPerTrigger": "1"}, "ConfigError: .*did you mean 'maxOffsetsPerTrigger'"),
        (
            {"kafka.bootstrap.servers": "localhost:1", "timeoutMs": "2000"},
            "Retriable: Kafka at localhost:1 did not answer",
        ),
    ],
)
def test_what_is_wrong_with_the_options_is_readable_in_sparks_error(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    topic = kafka_topic(partitions=1)
    began = time.monotonic()
    with pytest.raises(Exception, match=message):
        broker.run(
            broker.spark.readStream.format("onefold_kafka").options(**broker.options(topic) | options).load(), tmp_path
        )
    assert time.monotonic() - began < 30


def wait(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


POSITIONED = {**JSON, "columns": "position"}


@pytest.mark.slow
def test_parsed_records_tell_their_positions_in_batches_and_streams(
    broker: Kafka, kafka_topic: Topic, tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=2)
    broker.numbers(topic, 0, 40, partitions=2)
    df = broker.read(topic, **POSITIONED)
    assert df.schema.simpleString() == "struct<id:bigint,kafka_topic:string,kafka_partition:int,kafka_offset:bigint>"
    wanted = [(i, topic, i % 2, i // 2) for i in range(40)]
    assert sorted(map(tuple, df.collect())) == wanted
    chosen = broker.spark.read.format("onefold_kafka").options(
        **broker.options(topic, format="json", columns="position")
    )
    some = chosen.schema("kafka_offset long, id long").load()
    assert sorted(map(tuple, some.collect())) == [(i // 2, i) for i in range(40)]
    streamed = broker.stream(topic, **POSITIONED).select("kafka_offset")
    assert broker.run(streamed, tmp_path / "checkpoint") == [sorted(i // 2 for i in range(40))]
