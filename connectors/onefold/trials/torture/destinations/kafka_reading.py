"""Reads Kafka for an audit, with another library than the pipeline's: committed records and open transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

READ_S_MAX = 60.0
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"
_OVER = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class TopicRecord:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class TopicLog:
    """All that a read_committed consumer sees of a topic. Reads on from where it stood."""

    bootstrap_servers: str
    topic: str
    partitions: int
    records: list[TopicRecord] = field(default_factory=list)  # in each partition's order
    _next: dict[int, int] = field(default_factory=dict)

    def read(self) -> list[TopicRecord]:
        """Read up to the last stable offset of each partition, as it is now."""
        parts = [TopicPartition(self.topic, p) for p in range(self.partitions)]
        deadline_s = time.monotonic() + READ_S_MAX
        with _consumer(self.bootstrap_servers, _COMMITTED) as consumer:
            consumer.assign(parts)
            for part in parts:
                consumer.seek(part, self._next.get(part.partition, 0))
            ends = consumer.end_offsets(parts)
            while any(consumer.position(part) < ends[part] for part in parts):
                for part, records in consumer.poll(timeout_ms=500).items():
                    self.records += [
                        TopicRecord(part.partition, r.offset, r.key, r.value, tuple(r.headers)) for r in records
                    ]
                    self._next[part.partition] = records[-1].offset + 1
                if time.monotonic() > deadline_s:
                    raise KafkaTimeoutError(f"the end of {self.topic!r} was not reached in {READ_S_MAX:.0f} s")
        return self.records


def open_transactions(bootstrap_servers: str, prefix: str) -> list[str]:
    """The transactional ids of this prefix whose transaction has not ended, or whose end is not marked yet."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        listed = [listing for listings in admin.list_transactions().values() for listing in listings]
    return sorted(
        found.transactional_id
        for found in listed
        if found.transactional_id.startswith(prefix) and str(found.state.value) not in _OVER
    )


def unstable(bootstrap_servers: str, topics: Mapping[str, int]) -> list[str]:
    """The partitions whose last stable offset is not their log's end; `topics` have so many partitions."""
    parts = [TopicPartition(topic, p) for topic, partitions in topics.items() for p in range(partitions)]
    stable, ends = (_ends(bootstrap_servers, parts, level) for level in (_COMMITTED, _UNCOMMITTED))
    return [f"{p.topic}/{p.partition} stable up to {stable[p]} of {ends[p]}" for p in parts if stable[p] != ends[p]]


def _ends(bootstrap_servers: str, parts: list[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
    with _consumer(bootstrap_servers, isolation) as consumer:
        found: dict[TopicPartition, int] = consumer.end_offsets(parts)
        return found


@contextmanager
def _consumer(bootstrap_servers: str, isolation: str) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation,
        fetch_max_wait_ms=50,
    )
    try:
        yield consumer
    finally:
        consumer.close()
