"""What readers and operators see of a Kafka topic, without the sink: a read_committed consumer, and what is open."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaAdminClient

__all__ = ["Reader", "open_transactions", "stable_and_end"]


class Reader:
    """Reads a topic on from where it stood, up to its last stable offset, and keeps all that it has read."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, isolation: str = "read_committed") -> None:
        self.topic = topic
        self.next = dict.fromkeys(range(partitions), 0)
        self.messages: list[Message] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )

    def read(self) -> list[Message]:
        self.consumer.assign([TopicPartition(self.topic, p, offset) for p, offset in self.next.items()])
        waiting = set(self.next)
        while waiting:
            message = self.consumer.poll(20)
            assert message is not None, f"{self.topic}: nothing came from partitions {waiting}"
            error = message.error()
            if error is None:
                self.messages.append(message)
                self.next[message.partition()] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise AssertionError(error.str())
        return self.messages

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.read()]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def close(self) -> None:
        self.consumer.close()


def open_transactions(bootstrap_servers: str) -> list[str]:
    """The attempts' transactions that are open on the server, of all pipelines."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        listed = admin.list_transactions(state_filters=["Ongoing"]).values()
        names = [listing.transactional_id for listings in listed for listing in listings]
        return [name for name in names if not name.endswith("/ledger")]
    finally:
        admin.close()


def stable_and_end(bootstrap_servers: str, topic: str, partitions: int) -> list[tuple[int, int]]:
    """The last stable offset and the end of each partition's log."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    ends = [
        {
            at.partition: future.result().offset
            for at, future in admin.list_offsets(asked, isolation_level=level).items()
        }
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return [(ends[0][p], ends[1][p]) for p in range(partitions)]
