"""The Kafka sink in the field: logins, ACLs, old brokers, topics as they are found, records of every sort."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from harness.certificates import self_signed
from harness.errors import raises
from harness.kafka.guarded import Guarded, guarded_kafka
from harness.kafka.life import SCHEMA, batches
from harness.kafka.reading import Reader, open_transactions
from harness.pipeline_drivers import Epochs
from harness.support import wait_until
from kafka import KafkaAdminClient

from onefold.clients.kafka.cluster import Cluster
from onefold.core import BadRecord, ConfigError, Decided, EpochRecord, EpochState, Positions, Range, Retriable, TaskId
from onefold.sinks import KafkaSink

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka_sink_field")]
UPGRADE, DOWNGRADE = 1, 2

Topic = Callable[..., str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest.mark.slow
def test_with_acls_by_prefix_a_login_over_tls_writes_epochs_and_without_them_is_told_what_is_missing(
    guarded: Guarded, tmp_path: Path
) -> None:
    topic, store = guarded.topic(), f"sqlite:///{tmp_path / 'store.db'}"
    sink = guarded.sink(topic, transactional_id_prefix="alices", ledger="alices_progress")
    write = (AclOperation.WRITE, AclOperation.DESCRIBE)
    with pytest.raises(ConfigError, match="alices_progress"):
        sink.recover("p")
    guarded.allow(ResourceType.TOPIC, "alices_progress", *write, AclOperation.READ, AclOperation.CREATE)
    with pytest.raises(ConfigError, match=r"transactional id 'alices/"):
        sink.recover("p")
    guarded.allow(ResourceType.TRANSACTIONAL_ID, "alices/", *write, prefixed=True)
    with pytest.raises(ConfigError, match=topic):
        sink.recover("p")
    guarded.allow(ResourceType.TOPIC, topic, *write)
    sink.recover("p").close()
    with Epochs(sink, SCHEMA, store=store) as life:
        life.run(*batches(0))
    reader = Reader(guarded.servers, topic, 2)
    assert sorted(reader.ids()) == list(range(10))
    reader.close()
    assert open_transactions(guarded.servers) == []


@pytest.mark.slow
def test_a_decided_transaction_that_we_may_no_longer_end_is_a_matter_of_acls_and_is_ended_with_them(
    guarded: Guarded, tmp_path: Path
) -> None:
    topic, store = guarded.topic(), f"sqlite:///{tmp_path / 'store.db'}"
    sink = guarded.sink(topic, transactional_id_prefix="denied", ledger="denied_progress")
    write = (AclOperation.WRITE, AclOperation.DESCRIBE)
    guarded.allow(ResourceType.TOPIC, "denied_progress", *write, AclOperation.READ, AclOperation.CREATE)
    guarded.allow(ResourceType.TOPIC, topic, *write)
    guarded.allow(ResourceType.TRANSACTIONAL_ID, "denied/", *write, prefixed=True)
    with Epochs(sink, SCHEMA, store=store) as life:
        deny = partial(guarded.deny, ResourceType.TRANSACTIONAL_ID, "denied/", AclOperation.WRITE)
        with pytest.raises(ConfigError, match=r"denies us transaction denied/.* \(error 53\)"):
            life.run(*batches(0), doing=deny)
    guarded.allow(ResourceType.TRANSACTIONAL_ID, "denied/", *write, prefixed=True)
    with Epochs(sink, SCHEMA, store=store) as life:
        assert life.started is not None and life.started.finished == 1
    reader = Reader(guarded.servers, topic, 2)
    assert sorted(reader.ids()) == list(range(10))
    reader.close()


def test_who_may_write_to_the_ledger_topic_and_not_read_it_is_told_by_an_examination(guarded: Guarded) -> None:
    topic, progress = guarded.topic(), guarded.topic()
    for name in (topic, progress):
        guarded.allow(ResourceType.TOPIC, name, AclOperation.WRITE, AclOperation.DESCRIBE)
    sink = guarded.sink(topic, ledger=progress)
    with raises(ConfigError, "kafka-access-denied"):
        list(sink.checks("p", None))


@pytest.mark.slow
def test_a_wrong_password_and_a_certificate_of_nobody_known_are_said_to_be_refused(
    guarded: Guarded, tmp_path: Path
) -> None:
    wrong = guarded.sink("orders", client_config={"sasl.password": "guessed"}, timeout_s=5)
    with pytest.raises(ConfigError, match="refused us"):
        wrong.recover("p")
    stranger = self_signed(tmp_path, "stranger", "stranger")
    for asked in ({"sasl.password": "guessed"}, {"ssl.ca.location": str(stranger)}):
        sink = guarded.sink("orders", client_config=asked, timeout_s=5)
        with pytest.raises(ConfigError, match=r"refuses user 'alice'|not to be trusted"):
            Cluster(*sink.settings.cluster).brokers()


def test_brokers_that_end_transactions_in_the_old_way_are_refused(guarded: Guarded) -> None:
    """With the feature as Kafka 3 had it, a late repeat of a commit could commit the next transaction half-written."""
    admin = KafkaAdminClient(bootstrap_servers=guarded.servers)
    sink = KafkaSink(guarded.topic(), bootstrap_servers=guarded.servers)
    try:
        _set_transaction_version(admin, DOWNGRADE, 1)
        with raises(ConfigError, "transaction-version-too-low", "version=2"):
            sink.open("p", SCHEMA)
    finally:
        _set_transaction_version(admin, UPGRADE, 2)
        admin.close()


def _set_transaction_version(admin: KafkaAdminClient, how: int, level: int) -> None:
    """The controller takes it at once; the broker says so when it has heard of it."""
    assert admin.update_features({"transaction.version": (how, level)}) == {"transaction.version": "OK"}

    def heard() -> bool:
        return bool(admin.describe_features()["transaction.version"].get("finalized") == (level, level))

    wait_until(heard, f"transaction.version={level}")


@pytest.mark.slow
def test_a_missing_topic_is_an_error_with_the_command_that_makes_it(kafka_server: Any) -> None:
    sink = KafkaSink("nowhere", bootstrap_servers=kafka_server.bootstrap_servers, timeout_s=5)
    with pytest.raises(ConfigError, match=r"no topic 'nowhere': create it.*create_topics"):
        sink.open("p", SCHEMA)


@pytest.mark.parametrize(
    "config", [{"cleanup.policy": "delete"}, {"cleanup.policy": "compact", "compression.type": "zstd"}]
)
def test_a_ledger_topic_that_forgets_or_cannot_be_read_is_refused(
    kafka_server: Any, kafka_topic: Topic, config: dict[str, str]
) -> None:
    progress = kafka_topic(partitions=1, config=config)
    sink = KafkaSink(kafka_topic(), bootstrap_servers=kafka_server.bootstrap_servers, ledger=progress)
    wanted = "compression.type=uncompressed" if "compression.type" in config else "cleanup.policy=compact"
    with raises(ConfigError, "ledger-topic-unsuitable", f"{wanted}"):
        sink.recover("p")


def test_a_timeout_above_the_brokers_is_refused_when_the_sink_is_opened(kafka_server: Any, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    sink = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, transaction_timeout_s=901)
    with raises(ConfigError, "transaction-timeout-too-long"):
        sink.open("p", SCHEMA)


def test_a_server_that_is_not_there_is_waited_for() -> None:
    sink = KafkaSink("orders", bootstrap_servers="127.0.0.1:1", timeout_s=1)
    for ask in (lambda: sink.recover("p"), lambda: sink.open("p", SCHEMA)):
        with raises(Retriable, "kafka-unreachable"):
            ask()


def test_raw_rows_arrive_with_every_part(kafka_server: Any, kafka_topic: Topic) -> None:
    headers = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    rows = pa.record_batch(
        {
            "value": pa.array([b"v", None, b""], pa.binary()),
            "key": pa.array([b"k", None, b"k"], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], headers),
            "partition": pa.array([1, 0, 2], pa.int32()),
            "timestamp": pa.array([dt.datetime(2020, 1, 1)] * 3, pa.timestamp("us", "UTC")),
        }
    )
    topic = kafka_topic(partitions=3)
    write(KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, format="raw"), rows)
    reader = Reader(kafka_server.bootstrap_servers, topic, 3)
    found = {m.partition(): (m.value(), m.key(), m.headers(), m.timestamp()[1]) for m in reader.read()}
    reader.close()
    at = 1_577_836_800_000
    assert found == {
        1: (b"v", b"k", [("h", b"1"), ("h", None)], at),
        0: (None, None, None, at),
        2: (b"", b"k", None, at),
    }


@pytest.mark.parametrize("mode", ["transactional", "keyed"])
def test_raw_timestamps_of_all_times_arrive_as_they_are(
    kafka_server: Any, kafka_topic: Topic, tmp_path: Path, mode: str
) -> None:
    times_ms = [1, 2, 999, -2, -1000, -(2**40), 1_577_836_800_000]
    rows = pa.record_batch(
        {
            "value": pa.array([str(at).encode() for at in times_ms], pa.binary()),
            "key": pa.array([str(at).encode() for at in times_ms], pa.binary()),
            "timestamp": pa.array([1000 * at for at in times_ms]).cast(pa.timestamp("us", "UTC")),
        }
    )
    topic = kafka_topic(partitions=1)
    sink = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, format="raw", delivery=mode)
    with Epochs(sink, rows.schema, pipeline=topic, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        life.run(rows)
    reader = Reader(kafka_server.bootstrap_servers, topic, 1)
    found = [(m.value(), m.timestamp()[1]) for m in reader.read()]
    reader.close()
    assert found == [(str(at).encode(), at) for at in times_ms]


def test_more_rows_than_the_producers_queue_holds_arrive_in_order(kafka_server: Any, kafka_topic: Topic) -> None:
    topic = kafka_topic(partitions=1)
    small = {"queue.buffering.max.messages": "500", "linger.ms": "1"}
    write(
        KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, client_config=small),
        pa.record_batch({"id": pa.array(range(20_000), pa.int64())}),
    )
    reader = Reader(kafka_server.bootstrap_servers, topic, 1)
    assert reader.ids() == list(range(20_000))
    reader.close()


@pytest.mark.parametrize("rows", [{"value": ["x" * 2_000_000]}, {"value": ["x"], "partition": [7]}])
def test_a_record_that_kafka_does_not_take_is_a_bad_record_and_leaves_nothing_open(
    kafka_server: Any, kafka_topic: Topic, rows: dict[str, Any]
) -> None:
    topic = kafka_topic(partitions=1)
    sink = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, format="raw", timeout_s=10)
    with raises(BadRecord, "kafka-record-refused"):
        write(sink, pa.record_batch(rows))
    assert [name for name in open_transactions(kafka_server.bootstrap_servers) if topic in name] == []


def write(sink: KafkaSink, rows: pa.RecordBatch) -> None:
    """One epoch of one task, ended as it should be."""
    committer = sink.open("p", rows.schema)
    writer = sink.writer(TaskId("p", 1, 1, 1000, uuid.uuid4()))
    try:
        writer.write(rows)
        prepared = writer.prepare()
        assert prepared is not None and prepared.rows == rows.num_rows
        committer.verify([prepared])
        span = Range(Positions(), Positions.of({"t/0": 1}))
        record = EpochRecord("p", 1, 1, EpochState.DECIDED, span, 1000, "q", 0, "job", (prepared,), (sink.name,))
        committer.commit(Decided(record), [prepared])
    finally:
        writer.abort()
        committer.close()
