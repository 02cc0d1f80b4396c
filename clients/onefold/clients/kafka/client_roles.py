"""The clients of Kafka sources and sinks, and the settings that are theirs: consumers of explicit positions, idempotent
producers, transactional or not, and the admin clients of both."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel

from onefold.clients.kafka.librdkafka import ClientRole, Settings
from onefold.core.errors import ConfigError

_POSITIONS_ARE_OURS = "positions are kept in the checkpoint and the ledger, never in a consumer group: leave it out"

CONSUMER = ClientRole(
    logger=logging.getLogger("onefold.sources.kafka"),
    # Measured on a 2-core machine with 82-byte messages: librdkafka's own defaults gave 0.13-0.28 M messages/s, because
    # a queue of 100,000 messages makes the fetcher sleep for a second; these give 1.2-1.5 M/s. A small queue is as fast
    # as a large one, and wastes less when the next range of the partition is read by another process. Of small records
    # the number counts: each takes 350 bytes more in the queue. With 25-byte ones, four partitions read in turn by one
    # process, a million took 550 MB, and a hundred thousand 230 MB and a tenth less CPU.
    tuned={
        "queued.min.messages": "100000",
        "queued.max.messages.kbytes": "8192",
        "fetch.queue.backoff.ms": "2",
        "fetch.wait.max.ms": "100",  # also how long a change of partition waits for the fetch in flight
        "reconnect.backoff.max.ms": "1000",
        "isolation.level": "read_committed",
    },
    fixed={
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "group.id": "onefold",  # librdkafka wants one; the source assigns partitions itself and never joins a group
    },
    refused={
        "enable.auto.commit": _POSITIONS_ARE_OURS,
        "auto.commit.interval.ms": _POSITIONS_ARE_OURS,
        "enable.auto.offset.store": _POSITIONS_ARE_OURS,
        "group.id": _POSITIONS_ARE_OURS,
        "group.instance.id": _POSITIONS_ARE_OURS,
        "auto.offset.reset": "a position that Kafka has deleted must fail, not jump: use starting_offsets",
        "enable.partition.eof": "the source needs it to see the end of a range that ends in transaction markers",
        "bootstrap.servers": "give it once, as bootstrap_servers",
        "transactional.id": "a source reads only",
        "key.deserializer": "keys and values are read as bytes, or parsed by format=json",
        "value.deserializer": "keys and values are read as bytes, or parsed by format=json",
        "max.poll.records": "it is a setting of the Java client: use max_offsets_per_trigger",
    },
    own=frozenset(
        {
            "client.rack",
            "isolation.level",
            "fetch.max.bytes",
            "fetch.min.bytes",
            "fetch.wait.max.ms",
            "fetch.message.max.bytes",
            "max.partition.fetch.bytes",
            "queued.max.messages.kbytes",
            "queued.min.messages",
            "check.crcs",
            "receive.message.max.bytes",
        }
    ),
    acls="READ and DESCRIBE on the topic",
)

_EXACTLY_ONCE = "the sink's guarantee rests on it: leave it out"
PRODUCER = ClientRole(
    logger=logging.getLogger("onefold.sinks.kafka"),
    tuned={
        "log_level": "3",  # errors
        "partitioner": "murmur2_random",  # Java's default: a key goes where other producers send it
        "linger.ms": "20",
        "queue.buffering.max.messages": "500000",
        "queue.buffering.max.kbytes": "65536",  # librdkafka's own default is a gigabyte, in every task
        "reconnect.backoff.max.ms": "1000",
    },
    fixed={
        "enable.idempotence": "true",
        "acks": "all",
        "delivery.report.only.error": True,  # the one that confluent-kafka wants as it is, and not as a text
    },
    refused={
        "transactional.id": "the sink names its own transactions: use transactional_id_prefix",
        "transaction.timeout.ms": "use transaction_timeout_s",
        "bootstrap.servers": "give it once, as bootstrap_servers",
        "enable.idempotence": _EXACTLY_ONCE,
        "acks": _EXACTLY_ONCE,
        "request.required.acks": _EXACTLY_ONCE,
        "max.in.flight": _EXACTLY_ONCE,
        "max.in.flight.requests.per.connection": _EXACTLY_ONCE,
        "retries": _EXACTLY_ONCE,
        "message.send.max.retries": _EXACTLY_ONCE,
        "enable.gapless.guarantee": _EXACTLY_ONCE,
        "delivery.report.only.error": _EXACTLY_ONCE,
        "message.timeout.ms": "use timeout_s",
        "delivery.timeout.ms": "use timeout_s",
        "group.id": "a sink writes only",
        "isolation.level": "a sink writes only; its readers should set read_committed",
        "key.serializer": "rows become records by format=, key= and headers=",
        "value.serializer": "rows become records by format=, key= and headers=",
        "partitioner.class": "it is a setting of the Java client: use partitioner (murmur2_random is Java's default)",
        "buffer.memory": "it is a setting of the Java client: use queue.buffering.max.kbytes",
    },
    own=frozenset(
        {
            "batch.num.messages",
            "batch.size",
            "compression.codec",
            "compression.level",
            "compression.type",
            "linger.ms",
            "message.max.bytes",
            "partitioner",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.messages",
            "queue.buffering.max.ms",
            "sticky.partitioning.linger.ms",
        }
    ),
    acls="WRITE and DESCRIBE on both topics and on the transactional ids",
)


def check_consumer(settings: Settings) -> None:
    """Raise ConfigError for what would break the guarantee, and for an isolation level that is none."""
    CONSUMER.check(settings)
    if settings.get("isolation.level", "read_committed") not in ("read_committed", "read_uncommitted"):
        raise ConfigError(
            "option-value",
            f"isolation.level is read_committed or read_uncommitted, not {settings['isolation.level']!r}",
        )


def isolation(settings: Settings) -> IsolationLevel:
    """The level at which ends are asked for: the last stable offset, unless the user says otherwise."""
    if settings.get("isolation.level") == "read_uncommitted":
        return IsolationLevel.READ_UNCOMMITTED
    return IsolationLevel.READ_COMMITTED
