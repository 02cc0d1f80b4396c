"""The topic as an auditor reads it: with a plain consumer, committed records only, up to the end of every partition."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_READ_S_MAX = 60.0


def _consumer(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onefold-audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )


def end_offsets(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, int]:
    """The last stable offset of each partition. Raises KafkaException."""
    consumer = _consumer(bootstrap_servers)
    try:
        return {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=_READ_S_MAX)[1]
            for p in range(partitions)
        }
    finally:
        consumer.close()


def read(
    bootstrap_servers: str, topic: str, start: Mapping[int, int], end: Mapping[int, int] | None = None
) -> dict[tuple[int, int], bytes]:
    """Committed values by partition and offset, from `start` to before `end`, or to where each partition ends now."""
    consumer = _consumer(bootstrap_servers)
    found: dict[tuple[int, int], bytes] = {}
    open_partitions = {p for p, offset in start.items() if end is None or offset < end[p]}
    try:
        consumer.assign([TopicPartition(topic, p, start[p]) for p in sorted(open_partitions)])
        while open_partitions:
            message = consumer.poll(_READ_S_MAX)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the topic's end was not reached"))
            error, partition = message.error(), message.partition()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                open_partitions.discard(partition)
                continue
            offset, value = message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None, "an order was delivered"
            if end is not None and offset >= end[partition]:
                open_partitions.discard(partition)
                continue
            found[partition, offset] = value
    finally:
        consumer.close()
    return found
