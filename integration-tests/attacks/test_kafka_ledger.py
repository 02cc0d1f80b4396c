"""Another tenant's records in the topic where a Kafka sink keeps what it has committed."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation, ResourceType
from harness.errors import raises
from harness.kafka.guarded import guarded_kafka
from harness.kafka.life import SCHEMA as ROWS
from harness.kafka.life import batches
from harness.kafka.reading import Reader
from harness.pipeline_drivers import Epochs
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

from onefold.clients.kafka.cluster import cluster
from onefold.core import (
    CheckpointMismatch,
    Committable,
    Committer,
    Damaged,
    Decided,
    EpochRecord,
    EpochState,
    LedgerEntry,
    Positions,
    Range,
    TaskId,
)
from onefold.core.contract import Binding
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.naming import Handle

pytestmark = pytest.mark.servers
SCHEMA = pa.schema([("id", pa.int64())])
PIPELINE = "payments"


@dataclass
class Victim:
    """A sink whose epoch 1 was prepared and decided, and the stranger, who may write to its ledger topic."""

    servers: str
    sink: KafkaSink
    progress: str

    def __post_init__(self) -> None:
        self.ids = self.sink.settings.names(PIPELINE)
        self.sink.open(PIPELINE, SCHEMA).close()
        self.committer().bind(Binding("store", 1))
        self.prepared = self.prepare()

    def committer(self) -> Committer:
        return self.sink.recover(PIPELINE)

    def prepare(self) -> Committable:
        writer = self.sink.writer(TaskId(PIPELINE, 1, 1, int(time.time() * 1000), uuid.uuid4()))
        writer.write(pa.RecordBatch.from_pylist([{"id": 1}], schema=SCHEMA))
        prepared = writer.prepare()
        assert prepared is not None
        return prepared

    def lose(self) -> None:
        """As the broker does, once the transaction's timeout is over."""
        self.committer().abort([self.prepared])

    def commit(self) -> None:
        span = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 1}))
        record = EpochRecord(
            *(PIPELINE, 1, 1, EpochState.DECIDED, span, 1000, "q", 0, "job"),
            sinks=(self.sink.name,),
            manifest=(self.prepared,),
        )
        self.committer().commit(Decided(record), [self.prepared])

    def forge(self, key: str, value: bytes | None) -> None:
        """In a transaction of the stranger's own."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": f"evil-{uuid.uuid4().hex}", "log_level": 0}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.progress, value, key, partition=0)
        producer.commit_transaction(30)

    def break_in(self, key: str, value: bytes) -> None:
        """Into the prepared transaction, behind its two records: the broker asks for a right on the id that the request
        names, and takes the number of another's producer in it."""
        handle, kafka = Handle.parse(self.prepared.handle), cluster(self.servers, {}, 20.0)
        own = f"evil-{uuid.uuid4().hex}"
        Producer({"bootstrap.servers": self.servers, "transactional.id": own, "log_level": 0}).init_transactions(30)
        batch = DefaultRecordBatchBuilder(2, 0, 1, handle.producer_id, handle.producer_epoch, 2, 1 << 16)
        batch.append(0, int(time.time() * 1000), key.encode(), value, [])
        topic = ProduceRequest.TopicProduceData
        part = topic.PartitionProduceData(index=0, records=bytes(batch.build()))
        data = [topic(name=self.progress, partition_data=[part])]
        request = ProduceRequest(transactional_id=own, acks=-1, timeout_ms=10_000, topic_data=data)
        answer = kafka.ask(kafka.leader(self.progress), request, ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def put(self, key: str, value: bytes) -> None:
        """Without any transaction."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        producer.produce(self.progress, value, key, partition=0)
        assert producer.flush(20) == 0


@pytest.fixture
def victim(kafka_server: Any, kafka_topic: Callable[..., str]) -> Victim:
    topic = kafka_topic(partitions=1)
    progress = f"{topic}-progress"
    servers = kafka_server.bootstrap_servers
    return Victim(servers, KafkaSink(topic, bootstrap_servers=servers, ledger=progress), progress)


def said(epoch: int, generation: int = 1) -> bytes:
    told = {"epoch": epoch, "generation": generation, "timestamp_ms": 1, "attempt": "x", "rows": 1}
    return json.dumps(told).encode()


def row(epoch: int, generation: int) -> bytes:
    told = {"epoch": epoch, "generation": generation, "timestamp_ms": 1, "positions": "{}", "store_id": "x"}
    return json.dumps(told).encode()


@pytest.mark.attack(
    who="who may write to the ledger topic",
    does="writes a newer record under the key of a decided transaction that was lost",
    gets="nothing: the loss shows, as Damaged",
)
def test_a_lost_transaction_does_not_count_as_committed_for_a_strangers_record_under_its_key(victim: Victim) -> None:
    victim.lose()
    victim.forge(victim.prepared.handle.rpartition("#")[0], said(2))
    with raises(Damaged, "decided-work-gone"):
        victim.commit()
    ledger = victim.committer().ledger()
    assert ledger is not None and ledger.members == ()


@pytest.mark.attack(
    who="who may write to the ledger topic",
    does="writes a ledger row of a later epoch and generation",
    gets="nothing: the row is passed over, with a warning",
)
def test_a_strangers_ledger_row_neither_hides_a_loss_nor_fences_the_pipeline(
    victim: Victim, caplog: pytest.LogCaptureFixture
) -> None:
    victim.lose()
    victim.forge(victim.ids.ledger, row(epoch=2, generation=99))
    with raises(Damaged, "decided-work-gone"):
        victim.commit()
    with caplog.at_level(logging.WARNING):
        mine = LedgerEntry(1, 1, 1, Positions.of({"t/0": 1}), "store")
        victim.committer().write_ledger(mine)
    assert victim.committer().ledger() == mine
    assert f"{victim.progress!r} has a ledger row" in caplog.text and "evil" not in caplog.text


@pytest.mark.attack(
    who="who may write to the ledger topic",
    does="writes into an open transaction of the pipeline's, by its producer's number, that it is of a later epoch",
    gets="nothing: what a transaction is, its first record says",
)
def test_a_record_in_the_middle_of_an_open_transaction_makes_it_none_of_another_epoch(victim: Victim) -> None:
    victim.break_in(victim.prepared.handle.rpartition("#")[0], said(7))
    victim.commit()
    ledger = victim.committer().ledger()
    assert ledger is not None and [member.epoch for member in ledger.members] == [1]


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write to the ledger topic",
    does="writes what is no record of a sink under its keys, in transactions and without",
    gets="nothing: it is passed over, with a warning",
)
def test_junk_under_a_sinks_keys_is_passed_over_and_reported(victim: Victim, caplog: pytest.LogCaptureFixture) -> None:
    key = f"{victim.ids.ids}1/{uuid.uuid4().hex}/0"
    for value in (b"not json", b"{}", b'{"epoch": "x"}', b"[" * 100_000, said(-1), b"\xff\x00"):
        victim.forge(key, value)
        victim.put(key, value)
        victim.forge(victim.ids.ledger, value)
        victim.put(victim.ids.ledger, value)
    with caplog.at_level(logging.WARNING):
        ledger = victim.committer().ledger()
    assert ledger == LedgerEntry(0, 1, 0, Positions(), "store")
    assert "that no sink wrote" in caplog.text
    victim.commit()


@pytest.mark.slow
@pytest.mark.attack(
    who="another pipeline's login, with the rights that its own pipeline needs and no more",
    does="writes to a pipeline's ledger topic, and takes its transactional ids",
    gets="nothing: the broker denies both",
)
def test_with_the_rights_of_one_pipeline_nobody_writes_to_anothers_ledger(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    write = (AclOperation.WRITE, AclOperation.DESCRIBE)
    with guarded_kafka(tmp_path_factory.mktemp("tenants")) as broker:
        topic, hers = broker.topic(), broker.topic()
        sink = KafkaSink(topic, bootstrap_servers=broker.servers)
        with Epochs(sink, ROWS, pipeline=PIPELINE, store=f"sqlite:///{tmp_path / 'payments.db'}") as life:
            life.run(*batches(0))
        # As docs/security.md has it.
        broker.allow(ResourceType.TOPIC, hers, *write)
        broker.allow(ResourceType.TOPIC, "onefold_progress-hers", *write, AclOperation.READ, AclOperation.CREATE)
        broker.allow(ResourceType.TRANSACTIONAL_ID, "onefold/hers/", *write, prefixed=True)
        with Epochs(broker.sink(hers), ROWS, pipeline="hers", store=f"sqlite:///{tmp_path / 'hers.db'}") as life:
            life.run(*batches(0))
        reader = Reader(broker.servers, hers, 2)
        assert sorted(reader.ids()) == list(range(10))
        reader.close()
        alice = {"bootstrap.servers": broker.server.secure_servers, "log_level": 0, **broker.settings}
        denied: list[object] = []
        producer = Producer({**alice, "on_delivery": lambda error, _: denied.append(error)})
        ids = sink.settings.names(PIPELINE)
        producer.produce(f"onefold_progress-{PIPELINE}", row(9, 9), ids.ledger, partition=0)
        producer.flush(20)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(denied)
        assert all(error is not None for error in denied)  # "None in" makes the client compare, which it cannot
        with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            Producer({**alice, "transactional.id": ids.ledger}).init_transactions(20)


@pytest.mark.attack(
    who="who may write to the ledger topic",
    does="writes what is no note under the key of a keyed sink's note",
    gets="a stop with the key, and the way out: a tombstone",
)
def test_junk_in_place_of_a_keyed_sinks_note_is_named_and_a_tombstone_is_the_way_out(
    kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, servers = kafka_topic(partitions=2), kafka_server.bootstrap_servers
    sink = KafkaSink(topic, bootstrap_servers=servers, delivery="keyed", id="name", ledger=f"{topic}-progress")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    first, second = (pa.record_batch({"id": [n], "name": [f"id {n}"]}, schema=ROWS) for n in (1, 2))
    with Epochs(sink, ROWS, store=store) as life:
        life.run(first)
    key = f"{sink.settings.names('p').notes}1"
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(f"{topic}-progress", b'{"entry": 1}', key, partition=0)
    assert producer.flush(20) == 0
    with raises(CheckpointMismatch, "ledger-unreadable", f"{key}"):
        Epochs(sink, ROWS, store=store)
    producer.produce(f"{topic}-progress", None, key, partition=0)
    assert producer.flush(20) == 0
    with Epochs(sink, ROWS, store=store) as life:
        life.run(second)
    reader = Reader(servers, topic, 2)
    assert sorted(reader.ids()) == [1, 2]
    reader.close()
