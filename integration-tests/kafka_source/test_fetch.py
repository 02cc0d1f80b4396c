"""The Kafka source without Spark, against a real broker: ranges are read exactly, or the reason is raised."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness.errors import raises
from harness.kafka.topics import in_order

from onefold.core.errors import BadRecord, ConfigError, DataLoss, Retriable
from onefold.core.positions import Positions
from onefold.sources import KafkaSource
from onefold.sources.kafka import RAW_COLUMNS, Broker, FetchedRecords, OffsetRange, close_consumers, fetch, read
from onefold.sources.kafka.fetching import fetcher
from onefold.sources.kafka.fetching.compiled_fetch import find
from onefold.sources.kafka.fetching.fetcher import consumers_made
from onefold.sources.native.building import compiler

pytestmark = pytest.mark.servers
Topic = Callable[..., str]


@pytest.fixture(params=["off", "required"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything here holds without the compiled fetch and with it."""
    if request.param == "required" and compiler() is None and isinstance(find(), str):
        pytest.skip("no C compiler here, so the compiled fetch was not built")
    monkeypatch.setenv("ONEFOLD_COMPILED", request.param)
    return str(request.param)


@pytest.fixture
def servers(kafka_server: Any) -> Iterator[str]:
    yield str(kafka_server.bootstrap_servers)
    close_consumers()


def produce(servers: str, topic: str, values: list[bytes | None], partition: int = 0) -> None:
    producer = in_order(servers)
    for value in values:
        producer.produce(topic, value, partition=partition)
        producer.poll(0)
    assert producer.flush(10) == 0


def offsets(servers: str, topic: str, start: int, end: int, **more: Any) -> list[int]:
    wanted = OffsetRange(topic, 0, start, end)
    return [offset for records in fetch(servers, {}, wanted, **more) for offset in offsets_of(records)]


def offsets_of(records: FetchedRecords) -> list[int]:
    offsets: list[int] = records.column(RAW_COLUMNS.field("offset")).to_pylist()
    assert len(records) == len(records.values) == len(offsets)
    return offsets


def open_transaction(servers: str, topic: str, count: int) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "transactional.id": f"{topic}-{time.time_ns()}"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for i in range(count):
        producer.produce(topic, b"t%d" % i, partition=0)
    producer.flush(10)
    return producer


def wait_for_end(servers: str, topic: str, end: int) -> None:
    broker, deadline = Broker(servers, {}), time.monotonic() + 10
    while broker.latest([(topic, 0)])[topic, 0] != end:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_range_is_read_exactly(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"%d" % i for i in range(1000)])
    assert offsets(servers, topic, 0, 1000) == list(range(1000))
    assert offsets(servers, topic, 17, 18) == [17]
    assert offsets(servers, topic, 990, 1000, messages_max=3) == list(range(990, 1000))
    assert offsets(servers, topic, 5, 5) == []


def test_a_consumer_goes_on_where_it_stands_without_a_new_connection(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"%d" % i for i in range(1000)])
    assert offsets(servers, topic, 0, 10) == list(range(10))
    made = consumers_made()
    for start in range(10, 1000, 10):
        assert offsets(servers, topic, start, start + 10) == list(range(start, start + 10))
    produce(servers, topic, [b"more"] * 5)
    assert offsets(servers, topic, 1000, 1005) == list(range(1000, 1005))
    assert consumers_made() == made


FORKING = """
import os, signal, sys
from onefold.sources.kafka import RAW_COLUMNS, OffsetRange, fetch
from onefold.sources.kafka.fetching.fetcher import consumers_made

def offsets(start, end):
    found = fetch(sys.argv[1], {}, OffsetRange(sys.argv[2], 0, start, end))
    return [offset for records in found for offset in records.column(RAW_COLUMNS.field("offset")).to_pylist()]

def in_child():
    signal.alarm(20)  # it must not outlive the test
    assert consumers_made() == 0
    assert offsets(5, 10) == list(range(5, 10))
    assert consumers_made() == 1
    os._exit(0)  # as Spark's workers end

assert offsets(0, 5) == list(range(5))
for _ in range(3):
    child = os.fork() or in_child()
    status = os.waitpid(child, 0)[1]
    if status != signal.SIGALRM:
        break
assert status == 0, status
assert offsets(5, 10) == list(range(5, 10))
assert consumers_made() == 1
"""


def test_a_child_process_opens_its_own_consumers(servers: str, kafka_topic: Topic) -> None:
    """Forked by a process that does nothing else: a child inherits the locks that any thread holds at that moment.

    librdkafka's threads may still be connecting: one child in 300 finds glibc's getaddrinfo locked, and is forked anew.
    """
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"x"] * 10)
    subprocess.run([sys.executable, "-c", FORKING, servers, topic], check=True, timeout=100)


def test_the_end_is_the_last_stable_offset_while_a_transaction_is_open(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"x"] * 10)
    producer = open_transaction(servers, topic, 5)
    produce(servers, topic, [b"after"] * 3)
    at = [(topic, 0)]
    assert Broker(servers, {}).latest(at) == {(topic, 0): 10}
    assert Broker(servers, {"isolation.level": "read_uncommitted"}).latest(at) == {(topic, 0): 18}
    assert offsets(servers, topic, 0, 10) == list(range(10))
    producer.abort_transaction(10)
    wait_for_end(servers, topic, 19)
    assert offsets(servers, topic, 10, 19) == [15, 16, 17]


def test_ranges_that_end_in_transaction_markers_or_aborted_records_end(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    open_transaction(servers, topic, 4).commit_transaction(10)  # 0..3, marker 4
    open_transaction(servers, topic, 4).abort_transaction(10)  # 5..8, marker 9
    wait_for_end(servers, topic, 10)
    began = time.monotonic()
    assert offsets(servers, topic, 0, 10) == [0, 1, 2, 3]
    assert offsets(servers, topic, 4, 5) == []
    assert offsets(servers, topic, 5, 10) == []
    assert offsets(servers, topic, 0, 3) == [0, 1, 2]
    assert offsets(servers, topic, 3, 7) == [3]
    assert offsets(servers, topic, 7, 10) == []
    assert offsets(servers, topic, 10, 10) == []
    produce(servers, topic, [b"x"])
    assert offsets(servers, topic, 8, 11) == [10]
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_every_way_to_cut_a_topic_with_gaps_into_ranges_gives_each_record_once(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    for i in range(4):
        produce(servers, topic, [b"x"] * 2)
        producer = open_transaction(servers, topic, 2)
        producer.commit_transaction(10) if i % 2 else producer.abort_transaction(10)
        wait_for_end(servers, topic, 5 * (i + 1))  # the answer may be there before the marker
    whole = offsets(servers, topic, 0, 20)
    assert whole == [0, 1, 5, 6, 7, 8, 10, 11, 15, 16, 17, 18]
    for width in range(1, 8):
        cuts = [*range(0, 20, width), 20]
        parts = [offsets(servers, topic, a, b) for a, b in itertools.pairwise(cuts)]
        assert list(itertools.chain(*parts)) == whole, width


def test_deleted_records_are_a_loss_with_the_offsets_in_the_message(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"x"] * 20)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        done.result(10)
    with pytest.raises(DataLoss) as caught:
        offsets(servers, topic, 3, 20)
    for word in (f"{topic}/0", "still wanted is 3", "before 12", "starting_offsets"):
        assert word in str(caught.value)
    assert offsets(servers, topic, 12, 20) == list(range(12, 20))


@pytest.mark.slow
def test_a_log_that_ends_before_the_range_is_a_loss(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"x"] * 5)
    with pytest.raises(DataLoss, match="ends at 5"):
        offsets(servers, topic, 8, 20)
    with pytest.raises(DataLoss, match="ends at 5"):
        offsets(servers, topic, 2, 20, timeout_s=3)


def test_a_topic_that_is_deleted_before_it_was_read_is_a_loss(
    servers: str, kafka_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "_EOF_GRACE_S", 0.3)
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"1", b"2"])
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    with raises(DataLoss, "topic-deleted", f"{topic}"):
        offsets(servers, topic, 0, 2, timeout_s=2)


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_named_in_bounded_time() -> None:
    began = time.monotonic()
    nowhere = "localhost:1"
    with pytest.raises(Retriable) as caught:
        list(fetch(nowhere, {}, OffsetRange("orders", 0, 0, 10), timeout_s=2))
    assert nowhere in str(caught.value)
    with pytest.raises(Retriable) as caught:
        KafkaSource("orders", bootstrap_servers=nowhere, timeout_s=2).initial_positions()
    assert "is bootstrap_servers right" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    with pytest.raises(Retriable):
        Broker(nowhere, {}, 1).latest([("orders", 0)])
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["off"], indirect=True)  # nothing is fetched
def test_initial_positions_are_explicit_for_every_partition(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=3)
    produce(servers, topic, [b"x"] * 7, partition=1)

    def at(starting: Any) -> Positions:
        return KafkaSource(topic, bootstrap_servers=servers, starting_offsets=starting).initial_positions()

    names = [f"{topic}/{p}" for p in range(3)]
    assert at("earliest") == at("ledger") == Positions.of(dict.fromkeys(names, 0))
    assert at("latest") == Positions.of({names[0]: 0, names[1]: 7, names[2]: 0})
    assert at({topic: {"0": -2, "1": -1, "2": 0}}) == Positions.of({names[0]: 0, names[1]: 7, names[2]: 0})
    with pytest.raises(ConfigError, match=f"leaves out {topic}/1, {topic}/2"):
        at({topic: {"0": 0}})
    with pytest.raises(ConfigError, match=f"{topic}/7"):
        at({topic: {"0": 0, "1": 0, "2": 0, "7": 0}})
    with pytest.raises(ConfigError, match="has no topic 'no-such-topic'"):
        KafkaSource("no-such-topic", bootstrap_servers=servers).initial_positions()


def test_raw_columns_carry_keys_headers_nulls_and_timestamps(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=2)
    producer = in_order(servers)
    headers: list[tuple[str, bytes | None]] = [("h", b"1"), ("h", b"2"), ("n", None)]
    producer.produce(topic, b"v", b"k", 1, timestamp=1763692380123, headers=headers)
    producer.produce(topic, None, b"", 1, timestamp=1763692380124)
    producer.flush(10)
    source = KafkaSource(topic, bootstrap_servers=servers)
    (batch,) = read(source, RAW_COLUMNS, OffsetRange(topic, 1, 0, 2))
    assert batch.schema == RAW_COLUMNS
    first, second = batch.to_pylist()
    assert first["timestamp"].timestamp() == 1763692380.123
    assert {k: v for k, v in first.items() if k != "timestamp"} == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": k, "value": v} for k, v in headers],
    }
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (b"", None, [], 1)


def test_a_bad_record_is_named_by_topic_partition_offset_and_reason(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b'{"id":%d}' % i for i in range(100)] + [b'{"id":"x' + b"y" * 500 + b'"}'])
    schema = pa.schema({"id": pa.int64()})
    source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema="id long")
    assert sum(b.num_rows for b in read(source, schema, OffsetRange(topic, 0, 0, 100))) == 100
    with pytest.raises(BadRecord) as caught:
        list(read(source, schema, OffsetRange(topic, 0, 40, 101)))
    message = str(caught.value)
    assert f"{topic}/0 offset 100: field 'id' (bigint): id is a JSON string, not a number" in message
    assert "(510 bytes)" in message
    assert len(message) < 600


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [pytest.param("off", marks=pytest.mark.soak), "required"], indirect=True)
def test_a_broker_that_comes_back_is_read_on_with_the_same_consumer(
    kafka_server: Any, servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, [b"x"] * 10)
    assert offsets(servers, topic, 0, 5) == list(range(5))
    made = consumers_made()
    kafka_server.kill()
    kafka_server.start()
    produce(servers, topic, [b"y"] * 10)
    assert offsets(servers, topic, 5, 20) == list(range(5, 20))
    assert consumers_made() == made
