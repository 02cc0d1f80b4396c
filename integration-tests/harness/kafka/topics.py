"""What tests do to topics, without Spark."""

from __future__ import annotations

import time

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onefold.sources import KafkaSource
from onefold.sources.kafka import FetchedRecords, OffsetRange, Planner, fetch, ranges
from onefold.sources.kafka.offsets import OffsetSnapshot

QUIET = {"log_level": 0}


def in_order(servers: str) -> Producer:
    """A batch that is sent again, to a broker that was slow to answer, doesn't come twice or after its successors."""
    return Producer({"bootstrap.servers": servers, "enable.idempotence": True, **QUIET})


def produce(servers: str, topic: str, count: int, partition: int = 0, **more: int | bytes) -> None:
    """`count` records; `timestamp` and `value` are what `Producer.produce` takes."""
    producer = in_order(servers)
    for number in range(count):
        producer.produce(topic, **{"value": b"%d" % number, "partition": partition, **more})
    assert producer.flush(20) == 0


def open_transaction(servers: str, topic: str, count: int) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{time.time_ns()}", **QUIET})
    producer.init_transactions(10)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"t%d" % number, partition=0)
    producer.flush(10)
    return producer


def make_anew(servers: str, topic: str, partitions: int = 1) -> None:
    """Delete the topic, and create another one of its name."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    admin.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)
            return
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def offsets_in(records: FetchedRecords) -> list[int]:
    return records.column(pa.field("offset", pa.int64())).to_pylist()


class Stream:
    """The batches of a source as Spark would ask for them: plan, read, and go on from there."""

    def __init__(self, source: KafkaSource, start: OffsetSnapshot | None = None) -> None:
        self.source, self.planner = source, Planner(source, start)
        self.at = self.planner.initial()

    def batch(self, records_max: int | None = None) -> list[tuple[str, int, int]]:
        """The records of the next batch: topic, partition, offset."""
        start, seen = self.at, self.planner.ends(self.at)
        self.at = self.planner.next(start, seen, seen.offsets, records_max)
        return [record for wanted in ranges(start.offsets, self.at.offsets) for record in self.records(wanted)]

    def records(self, wanted: OffsetRange) -> list[tuple[str, int, int]]:
        found = fetch(self.source.bootstrap_servers, self.source.client_config, wanted, timeout_s=self.source.timeout_s)
        offsets = [offset for records in found for offset in offsets_in(records)]
        return [(wanted.topic, wanted.partition, offset) for offset in offsets]

    def restarted(self) -> Stream:
        """Another process, which has nothing but what the checkpoint holds."""
        return Stream(self.source, OffsetSnapshot.of(self.at.positions()))
