"""The clients of a Kafka source: consumers of explicit positions, and the admin clients that ask for them."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel

from onefold.clients.kafka.librdkafka import ClientRole, Settings
from onefold.core.errors import ConfigError

__all__ = ["CONSUMER", "check", "isolation"]

# Measured on a 2-core machine with 82-byte messages: librdkafka's own defaults gave 0.13-0.28 M messages/s, because
# a queue of 100,000 messages makes the fetcher sleep for a second; these give 1.2-1.5 M/s. A small queue is as fast as
# a large one, and wastes less when the next range of the partition is read by another process. Of small records the
# number counts: each takes 350 bytes more in the queue. With 25-byte ones, four partitions read in turn by one process,
# a million took 550 MB, and a hundred thousand 230 MB and a tenth less CPU.
_TUNED = {
    "queued.min.messages": "100000",
    "queued.max.messages.kbytes": "8192",
    "fetch.queue.backoff.ms": "2",
    "fetch.wait.max.ms": "100",  # also how long a change of partition waits for the fetch in flight
    "reconnect.backoff.max.ms": "1000",
    "isolation.level": "read_committed",
}

_FIXED = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "group.id": "onefold",  # librdkafka wants one; the source assigns partitions itself and never joins a group
}

_POSITIONS_ARE_OURS = "positions are kept in the checkpoint and the ledger, never in a consumer group: leave it out"

_REFUSED = {
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
}

CONSUMER = ClientRole(
    logger=logging.getLogger("onefold.sources.kafka"),
    tuned=_TUNED,
    fixed=_FIXED,
    refused=_REFUSED,
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


def check(settings: Settings) -> None:
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
