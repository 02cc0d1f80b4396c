"""Detects a log that was cut below our position and written on since, by its leader epochs (KIP-101, KIP-320).

A position keeps the leader epoch that it was found under. While the leader is the same, nothing was cut. A new leader
is asked where that epoch ended. If it ended before the position, records that were read have left the log, and others
below the position were never read. librdkafka asks this on every seek.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.errors import DataLoss
from onefold.core.values.remedies import RESET
from onefold.sources.kafka.offsets import OffsetSnapshot, Partition
from onefold.sources.kafka.source_options import KafkaSourceConfig

_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
_ANSWERS = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)
_ASKED_MAX = 100  # partitions at once: each seek is a request of its own


def is_truncation(error: KafkaError) -> bool:
    """librdkafka reports it as the reason of an offset reset."""
    return error.code() == KafkaError._LOG_TRUNCATION or _TRUNCATED in error.str()


def truncated(partition: str, offset: int, said: str) -> DataLoss:
    return DataLoss(
        "log-truncated",
        f"{partition}: the log was cut below {offset}, up to where it had been read, and written on since ({said}): an"
        " unclean leader election, or a lost disk. Records that were read are gone from Kafka, and others with lower"
        " offsets were never read. Compare with `onefold verify`, or accept the loss, with explicit"
        f" starting_offsets: {RESET}",
    )


def deleted(where: object, offset: int, first: int) -> DataLoss:
    return DataLoss(
        "records-deleted",
        f"{where}: the first offset still wanted is {offset}, but Kafka has deleted everything before "
        f"{first} (retention, or delete_records). Restore those records if you can (a mirror, a backup) at the "
        "same offsets; or accept the loss openly, with explicit starting_offsets, "
        f"this partition at {first}: {RESET}. Then raise retention.ms or read more often",
    )


def check_not_truncated(source: KafkaSourceConfig, start: OffsetSnapshot, seen: OffsetSnapshot) -> None:
    """Raise `DataLoss` if a partition's log was cut below its start. Asks only where the leader epoch has changed."""
    suspects = [
        p for p, epoch in start.epochs.items() if start.offsets.get(p, 0) > 0 and seen.epochs.get(p, epoch) != epoch
    ]
    for first in range(0, len(suspects), _ASKED_MAX):
        some = sorted(suspects)[first : first + _ASKED_MAX]
        _ask(source, {p: TopicPartition(*p, start.offsets[p], leader_epoch=start.epochs[p]) for p in some})


def _ask(source: KafkaSourceConfig, at: Mapping[Partition, TopicPartition]) -> None:
    said: list[KafkaError] = []
    # A read_committed reader is not told the end of a partition while a transaction is open there.
    settings = {**source.client_config, "isolation.level": "read_uncommitted"}
    config = CONSUMER.config(source.bootstrap_servers, settings, {"fetch.message.max.bytes": "1"})
    consumer = CONSUMER.open(Consumer, {**config, "error_cb": said.append})
    deadline = time.monotonic() + source.timeout_s
    try:
        consumer.assign(list(at.values()))
        to_seek, waiting = dict(at), set(at)
        while waiting:
            to_seek = {p: where for p, where in to_seek.items() if not _sought(consumer, where)}
            for message in consumer.consume(100, 0.1):
                failed, partition = message.error(), (message.topic() or "", message.partition() or 0)
                if failed is not None and is_truncation(failed):
                    raise truncated(f"{partition[0]}/{partition[1]}", at[partition].offset, failed.str())
                if failed is not None and failed.code() not in _ANSWERS:
                    said.append(failed)
                elif partition in waiting and partition not in to_seek:
                    waiting.discard(partition)  # a record, the end, or an offset that is gone, which the reader reports
                    consumer.incremental_unassign([at[partition]])
            if time.monotonic() > deadline:
                names = ", ".join(f"{topic}/{number}" for topic, number in sorted(waiting)[:5])
                raise CONSUMER.unreachable(
                    f"asking whether {names} was cut", source.bootstrap_servers, source.timeout_s, said[-5:]
                )
    finally:
        consumer.close()


def _sought(consumer: Consumer, where: TopicPartition) -> bool:
    """Whether the seek, which makes librdkafka ask, is under way: a partition must have been started before."""
    try:
        consumer.seek(where)
    except KafkaException as error:
        if error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS):
            return False
        raise
    return True
