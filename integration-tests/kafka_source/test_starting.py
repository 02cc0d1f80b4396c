"""Where the Kafka source starts, and what it refuses to go on from, against a real broker, without Spark."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic
from harness.errors import raises
from harness.kafka.topics import QUIET, Stream, make_anew, open_transaction, produce

from onefold.core.errors import ConfigError, DataLoss
from onefold.core.positions import Positions, Relation
from onefold.sources import KafkaSource
from onefold.sources.kafka import Broker, OffsetRange, close_consumers, fetch
from onefold.sources.kafka.fetching.fetcher import consumers_made
from onefold.sources.kafka.offsets import OffsetSnapshot

pytestmark = pytest.mark.servers
Topic = Callable[..., str]
T0_MS = 1_763_600_000_000


@pytest.fixture
def servers(kafka_server: Any) -> Iterator[str]:
    yield str(kafka_server.bootstrap_servers)
    close_consumers()


@pytest.fixture
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, **QUIET})


def starts(servers: str, topic: str, starting: Any) -> dict[int, int]:
    found = KafkaSource(topic, bootstrap_servers=servers, starting_offsets=starting).initial_positions()
    return found.topics()[topic]


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


@pytest.mark.slow
def test_a_time_starts_at_the_first_record_from_then_on_in_every_partition(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=3)
    for number in range(10):
        produce(servers, topic, 1, 0, timestamp=T0_MS + number * 1000)
    produce(servers, topic, 4, 1, timestamp=T0_MS)
    assert starts(servers, topic, iso(T0_MS + 4500)) == {0: 5, 1: 4, 2: 0}  # at the end where there is none
    assert starts(servers, topic, datetime.fromtimestamp(T0_MS / 1000, UTC)) == {0: 0, 1: 0, 2: 0}
    options = {"subscribe": topic, "kafka.bootstrap.servers": servers}
    spark = KafkaSource.from_options({**options, "startingTimestamp": str(T0_MS + 4000)})
    assert spark.initial_positions().topics()[topic] == {0: 4, 1: 4, 2: 0}


@pytest.mark.slow
def test_each_partition_may_start_in_its_own_way(servers: str, kafka_topic: Topic) -> None:
    topic, other = kafka_topic(partitions=4), kafka_topic(partitions=2)
    for partition in range(4):
        for number in range(5):
            produce(servers, topic, 1, partition, timestamp=T0_MS + number * 1000)
    produce(servers, other, 3, 1)
    mixed = {topic: {"0": "earliest", "1": -1, "2": 2, "3": iso(T0_MS + 3000)}, other: "latest"}
    source = KafkaSource([topic, other], bootstrap_servers=servers, starting_offsets=mixed)
    assert source.initial_positions().topics() == {topic: {0: 0, 1: 5, 2: 2, 3: 3}, other: {0: 0, 1: 3}}
    assert KafkaSource.from_options(source.options()) == source


def test_a_record_of_an_open_transaction_is_not_passed_over_by_a_start_at_its_time(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 3, timestamp=T0_MS)
    producer = open_transaction(servers, topic, 2)
    assert starts(servers, topic, iso(T0_MS + 1)) == {0: 3}
    producer.abort_transaction(10)


def test_a_start_beyond_the_end_and_one_that_expired_are_refused_by_name(
    servers: str, kafka_topic: Topic, admin: AdminClient
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 20)
    for done in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        done.result(10)
    with raises(ConfigError, "starting-offset-beyond-end", f"{topic}"):
        starts(servers, topic, {topic: {"0": 21}})
    with raises(DataLoss, "records-deleted", f"{topic}"):
        starts(servers, topic, {topic: {"0": 11}})
    assert starts(servers, topic, {topic: {"0": 20}}) == {0: 20}
    assert starts(servers, topic, "earliest") == {0: 12}


def test_positions_know_their_topic_and_take_it_along_to_store_and_checkpoint(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=2)
    source = KafkaSource(topic, bootstrap_servers=servers)
    initial, topic_id = source.initial_positions(), Broker(servers, {}).topics([topic])[topic].id
    assert topic_id is not None
    assert Positions.from_json(initial.to_json()).topic_ids() == initial.topic_ids() == {topic: topic_id}
    stream = Stream(source)
    produce(servers, topic, 5, 1)
    stream.batch()
    kept = stream.at.positions().to_json()
    assert json.loads(kept) == {
        f"{topic}/{name}": at for name, at in (("0", 0), ("1", 5), ("epochs", "0:0 1:0"), ("id", topic_id))
    }
    stream.batch()
    assert stream.at.positions().to_json() == kept  # to Spark, nothing new


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_made_anew_is_refused_also_where_it_is_longer_than_the_positions(
    servers: str, kafka_topic: Topic, restarts: bool
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers))
    assert len(stream.batch()) == 5
    make_anew(servers, topic)
    produce(servers, topic, 50)
    with raises(DataLoss, "topic-recreated", f"{topic}"):
        (stream.restarted() if restarts else stream).batch()


def test_a_batch_that_was_planned_before_its_topic_was_made_anew_is_not_read_from_the_new_one(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers))
    start = stream.at
    stream.batch()
    make_anew(servers, topic)
    produce(servers, topic, 50)
    with raises(DataLoss, "topic-recreated"):
        stream.restarted().planner.check_again(start, stream.at)


def test_positions_from_before_there_were_ids_go_on_and_know_their_topic_from_the_next_record_on(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers), OffsetSnapshot({(topic, 0): 3}))
    stream.at = OffsetSnapshot({(topic, 0): 5})
    assert stream.batch() == []
    assert stream.at == OffsetSnapshot({(topic, 0): 5})
    produce(servers, topic, 1)
    assert len(stream.batch()) == 1
    assert stream.at.ids.keys() == {topic}
    old, new = OffsetSnapshot({(topic, 0): 6}).positions(), stream.at.positions()
    assert old.relation_to(new) is Relation.SAME


@pytest.mark.slow
def test_a_deleted_topic_is_a_loss_and_one_that_was_never_there_a_mistake(
    servers: str, kafka_topic: Topic, admin: AdminClient
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers, timeout_s=3))
    stream.batch()
    admin.delete_topics([topic])[topic].result(10)
    with pytest.raises(DataLoss, match=f"{topic}: the topic was deleted"):
        stream.batch()
    with pytest.raises(ConfigError, match=f"has no topic '{topic}'"):
        stream.source.initial_positions()


def test_a_topic_that_is_gone_for_good_can_be_forgotten_also_where_another_has_its_name_now(
    servers: str, kafka_topic: Topic
) -> None:
    topic, gone = kafka_topic(partitions=1), kafka_topic(partitions=1)
    for name in (topic, gone):
        produce(servers, name, 5)
    stream = Stream(KafkaSource([topic, gone], bootstrap_servers=servers))
    assert len(stream.batch()) == 10
    make_anew(servers, gone)
    for name in (topic, gone):
        produce(servers, name, 9)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers, forget_topics=[gone]), stream.at)
    assert stream.batch() == [(topic, 0, offset) for offset in range(5, 14)]
    assert stream.at.offsets[gone, 0] == 5


@pytest.mark.slow
def test_topics_of_a_pattern_join_with_their_first_record_and_partitions_in_flight_too(
    servers: str, admin: AdminClient
) -> None:
    family = f"fam-{uuid.uuid4().hex[:8]}"
    names = [f"{family}-{number}" for number in range(3)]

    def create(name: str) -> None:
        admin.create_topics([NewTopic(name, 1)])[name].result(10)

    create(names[0])
    produce(servers, names[0], 3)
    source = KafkaSource(topics_pattern=f"{family}-[0-9]+", bootstrap_servers=servers, starting_offsets="latest")
    stream = Stream(source)
    create(f"not-{names[0]}")
    create(names[1])
    produce(servers, names[1], 2)
    assert stream.batch() == [(names[1], 0, 0), (names[1], 0, 1)]
    admin.create_partitions([NewPartitions(names[1], 2)])[names[1]].result(10)
    create(names[2])
    deadline = time.monotonic() + 10
    while len(Broker(servers, {}).topics([names[1]])[names[1]].partitions) < 2:
        assert time.monotonic() < deadline
    produce(servers, names[1], 1, 1)
    produce(servers, names[2], 1)
    stream = stream.restarted()
    assert stream.batch() == [(names[1], 1, 0), (names[2], 0, 0)]
    assert stream.at.ids.keys() == {*names}
    make_anew(servers, names[2])
    with pytest.raises(DataLoss, match=f"{names[2]}: the topic was deleted and made anew"):
        stream.restarted().batch()
    other = KafkaSource(topics_pattern="orders-.*", bootstrap_servers=servers)
    with pytest.raises(ConfigError, match=f"holds positions of the topic '{names[0]}'"):
        Stream(other, stream.at).batch()


def test_a_position_beyond_the_stable_end_waits_for_the_open_transaction(servers: str, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 5)
    producer = open_transaction(servers, topic, 3)
    source = KafkaSource(topic, bootstrap_servers=servers, starting_offsets={topic: {"0": 7}})
    stream = Stream(source)
    assert stream.batch() == []
    producer.commit_transaction(10)
    deadline, found = time.monotonic() + 10, []
    while not found:
        assert time.monotonic() < deadline
        found = stream.batch()
    assert found == [(topic, 0, 7)]


def test_ranges_made_of_aborted_records_only_and_ends_held_back_by_an_open_transaction_lose_nothing(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    stream = Stream(KafkaSource(topic, bootstrap_servers=servers))
    open_transaction(servers, topic, 4).abort_transaction(10)
    while not stream.at.offsets[topic, 0]:
        assert stream.batch(2) == []
    produce(servers, topic, 2)
    held = open_transaction(servers, topic, 1)
    produce(servers, topic, 2)
    found = [record for _ in range(4) for record in stream.batch(2)]
    assert [offset for *_, offset in found] == [5, 6]
    assert stream.at.offsets[topic, 0] == 7
    held.abort_transaction(10)
    deadline = time.monotonic() + 10
    while stream.at.offsets[topic, 0] < 11:
        found += stream.batch(1)
        assert time.monotonic() < deadline
    assert [offset for *_, offset in found] == [5, 6, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_what_befell_one_topic_is_not_told_of_the_next_that_the_same_consumer_reads(
    servers: str, kafka_topic: Topic, compiled: str
) -> None:
    gone, topic = kafka_topic(partitions=1), kafka_topic(partitions=1)
    for name in (gone, topic):
        produce(servers, name, 20)

    def read(name: str) -> int:
        wanted = OffsetRange(name, 0, 0, 20)
        return sum(map(len, fetch(servers, {"client.id": compiled}, wanted, compiled=compiled, timeout_s=20)))

    assert read(gone) == 20
    made = consumers_made()
    make_anew(servers, gone)
    time.sleep(1.5)  # the idle consumer asks for what comes behind its range, and finds that it is out of range
    for _ in range(4):  # a consumer of its own for the first, then ours in turn
        assert read(topic) == 20
    assert consumers_made() <= made + 3
