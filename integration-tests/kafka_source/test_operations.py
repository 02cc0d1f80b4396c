"""The Kafka source in operation: logins, crashes of the broker, cut logs, limits, lag, and a group for dashboards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.certificates import secure_kafka
from harness.kafka.topics import QUIET, Stream, offsets_in, open_transaction, produce

from onefold.core.contract import EpochRecord, EpochState
from onefold.core.errors import ConfigError, DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.protocol.epoch import Outcome
from onefold.sources import KafkaSource
from onefold.sources.kafka import Broker, LagMeter, OffsetRange, close_consumers, fetch
from onefold.sources.kafka.offsets import OffsetSnapshot
from onefold.sources.kafka.planning.group_positions import GroupPositions

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka_operations")]
Topic = Callable[..., str]


@dataclass
class Secure:
    """A broker that alice logs in to, over TLS; and its address for everybody."""

    server: Any
    settings: dict[str, str]

    @property
    def servers(self) -> str:
        return self.server.bootstrap_servers

    def create(self, topic: str, config: dict[str, str] | None = None) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        admin.create_topics([NewTopic(topic, 1, config=config or {})])[topic].result(20)
        return topic

    def source(self, topic: str, **more: Any) -> KafkaSource:
        return KafkaSource(topic, bootstrap_servers=self.servers, **more)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    quick = {"log.cleaner.backoff.ms": "200"}
    with secure_kafka(tmp_path_factory.mktemp("secure"), quick) as (server, settings):
        yield Secure(server, settings)
        close_consumers()


def test_a_login_over_tls_serves_planning_reading_lag_and_the_group(secure: Secure) -> None:
    topic = secure.create("orders")
    produce(secure.servers, topic, 10)
    source = KafkaSource(
        topic, bootstrap_servers=secure.server.secure_servers, client_config=secure.settings, commit_to_group="shown"
    )
    stream = Stream(source)
    assert len(stream.batch(4)) == 4
    assert LagMeter(source).read().behind == 10
    group = GroupPositions(source)
    group.show(stream.at.positions())
    group.close()
    assert committed(secure.servers, "shown", topic) == 4


@pytest.mark.slow
def test_a_wrong_password_is_said_to_be_refused(secure: Secure) -> None:
    wrong = {**secure.settings, "sasl.password": "guessed"}
    source = KafkaSource("orders", bootstrap_servers=secure.server.secure_servers, client_config=wrong, timeout_s=5)
    with pytest.raises(ConfigError, match=r"refused us .*sasl"):
        source.initial_positions()


@pytest.mark.slow
def test_a_compacted_topic_with_holes_and_tombstones_is_read_to_its_end(secure: Secure) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "1"}
    topic = secure.create("compacted", config)
    for key in (b"a", b"b", b"c", b"a", b"b"):
        produce(secure.servers, topic, 1, key=key)
    produce(secure.servers, topic, 1, key=b"c", value=None)
    produce(secure.servers, topic, 1, key=b"end")
    deadline, offsets = time.monotonic() + 30, list(range(7))
    while offsets != [3, 4, 5, 6]:  # it may come more than once
        assert time.monotonic() < deadline, f"the cleaner left {offsets}"
        time.sleep(0.1)
        close_consumers()  # what they have fetched, they keep
        offsets = [offset for *_, offset in Stream(secure.source(topic)).batch()]
    for records_max in (1, 2, 3):
        stream, found = Stream(secure.source(topic)), []
        while stream.at.offsets[topic, 0] < 7:
            found += [offset for *_, offset in stream.batch(records_max)]
        assert found == offsets


@dataclass
class Crashed:
    """The broker died while a range of `mid` was being read, and lost the tail of the log of `cut`."""

    mid_read: list[int]
    cut_at: OffsetSnapshot


@pytest.fixture(scope="module")
def crashed(secure: Secure) -> Crashed:
    mid, cut = secure.create("mid"), secure.create("cut")
    produce(secure.servers, mid, 3000, value=b"x" * 5000)
    stream = Stream(secure.source(cut))
    for _ in range(10):
        produce(secure.servers, cut, 5)
    stream.batch()
    reading = fetch(
        secure.servers, {"queued.max.messages.kbytes": "1024"}, OffsetRange(mid, 0, 0, 3000), messages_max=100
    )
    found = offsets_in(next(reading))
    secure.server.kill()
    (log,) = Path(secure.server.home / "data" / "cut-0").glob("*.log")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 2)  # the last batch that is left is torn: the broker drops it
    secure.server.start()
    found += [offset for records in reading for offset in offsets_in(records)]
    return Crashed(found, stream.at)


@pytest.mark.slow
def test_a_broker_that_crashes_in_the_middle_of_a_range_is_read_on_without_loss_or_repeat(crashed: Crashed) -> None:
    assert crashed.mid_read == list(range(3000))


@pytest.mark.slow
def test_a_log_that_was_cut_and_written_on_is_a_loss_though_it_is_longer_than_the_positions(
    secure: Secure, crashed: Crashed
) -> None:
    source = secure.source("cut")
    assert crashed.cut_at.offsets["cut", 0] == 50
    end = source.broker().log_end([("cut", 0)])["cut", 0]
    assert 15 <= end < 30
    with pytest.raises(DataLoss, match=r"cut/0: the next offset to read is 50, but the partition now ends at"):
        Stream(source, crashed.cut_at).batch()
    produce(secure.servers, "cut", 100)
    with pytest.raises(DataLoss, match=r"cut/0: the log was cut below 50, up to where it had been read"):
        Stream(source, crashed.cut_at).batch()
    below = OffsetSnapshot({("cut", 0): end - 1}, crashed.cut_at.ids, crashed.cut_at.epochs)
    assert len(Stream(source, below).batch()) == 101  # nothing of it had been read


@pytest.fixture
def servers(kafka_server: Any) -> Iterator[str]:
    yield str(kafka_server.bootstrap_servers)
    close_consumers()


def committed(servers: str, group: str, topic: str) -> int:
    return Broker(servers, {}, 20).group(group, [(topic, 0)])[1][topic, 0]


def test_a_group_shows_the_positions_and_one_with_members_only_costs_a_warning(
    servers: str, kafka_topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = kafka_topic(partitions=1), f"group-{time.time_ns()}"
    shown = GroupPositions(KafkaSource(topic, bootstrap_servers=servers, commit_to_group=group))
    shown.show(Positions.of({f"{topic}/0": 7}, {f"{topic}/id": "x"}))
    shown.close()
    assert committed(servers, group, topic) == 7
    member = Consumer({"bootstrap.servers": servers, "group.id": group, **QUIET})
    member.subscribe([topic])
    deadline = time.monotonic() + 20
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.1)
    caplog.clear()  # the first may have been sent twice, where the group's coordinator had just moved
    with caplog.at_level(logging.WARNING):
        shown.show(Positions.of({f"{topic}/0": 9}))
        while f"the consumer group '{group}' was not told the positions" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    member.close()
    assert committed(servers, group, topic) == 7


@pytest.mark.slow
def test_batches_stay_near_the_limit_in_bytes_while_the_records_grow_and_shrink(
    servers: str, kafka_topic: Topic
) -> None:
    topic, other = kafka_topic(partitions=1), kafka_topic(partitions=2)
    for size in (100, 2000, 20):
        produce(servers, topic, 1000, value=b"x" * size)
    produce(servers, other, 1000, 1, value=b"x" * 500)
    source = KafkaSource([topic, other], bootstrap_servers=servers, max_bytes_per_trigger=100_000)
    stream, sizes, taken = Stream(source), [], 0
    while taken < 4000:
        records = stream.batch()
        taken += len(records)
        sizes.append(sum(500 if t == other else 100 if o < 1000 else 2000 if o < 2000 else 20 for t, _, o in records))
    assert max(sizes) < 500_000  # where records become 20 times as large within one batch, it shows in the next
    assert sorted(sizes)[len(sizes) // 2] == pytest.approx(100_000, rel=0.3)


def test_the_meter_tells_lag_what_open_transactions_hold_back_and_what_retention_may_still_delete(
    servers: str, kafka_topic: Topic
) -> None:
    topic = kafka_topic(partitions=1)
    produce(servers, topic, 10)
    producer = open_transaction(servers, topic, 3)
    meter = LagMeter(KafkaSource(topic, bootstrap_servers=servers))
    assert meter.read().behind == 10
    span = Range(Positions(), Positions.of({f"{topic}/0": 4}))
    record = EpochRecord("p", 1, 1, EpochState.COMPLETE, span, 1, "q", 0, "f", ("s",))
    meter(Outcome(record, replayed=False))
    figures = meter.read()
    (partition,) = figures.partitions
    assert (figures.epoch, figures.behind, figures.held_back, partition.headroom) == (1, 6, 3, 4)
    producer.abort_transaction(10)
