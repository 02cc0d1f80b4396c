"""librdkafka's settings: which of them a user may give, and what the source itself sets."""

from __future__ import annotations

import logging

from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from onefold.clients.kafka import librdkafka
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.errors import ConfigError, OnefoldError

__all__ = ["LOGGER", "Settings", "admin_config", "check", "consumer_config", "isolation", "unreachable"]

LOGGER = logging.getLogger("onefold.sources.kafka")

# Measured on a 2-core machine with 82-byte messages: librdkafka's own defaults gave 0.13-0.28 M messages/s, because
# a queue of 100,000 messages makes the fetcher sleep for a second; these give 1.2-1.5 M/s. A small queue is as fast as
# a large one, and wastes less when the next range of the partition is read by another process.
_TUNED = {
    "queued.min.messages": "1000000",
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
    "auto.offset.reset": "a position that Kafka has deleted must fail, not jump: use startingOffsets",
    "enable.partition.eof": "the source needs it to see the end of a range that ends in transaction markers",
    "bootstrap.servers": "give it once, as bootstrap_servers",
    "transactional.id": "a source reads only",
    "key.deserializer": "keys and values are read as bytes, or parsed by format=json",
    "value.deserializer": "keys and values are read as bytes, or parsed by format=json",
    "max.poll.records": "it is a setting of the Java client: use maxOffsetsPerTrigger",
    **librdkafka.JAVAS_OWN,
}

# What people set, for the nearest match of a misspelt name.
_COMMON = (
    *librdkafka.SECURITY,
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
)


def check(settings: Settings) -> None:
    """Refuse, with the reason, what would break the guarantee. Asks no server."""
    librdkafka.check(settings, _REFUSED)
    if settings.get("isolation.level", "read_committed") not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolation.level is read_committed or read_uncommitted, not {settings['isolation.level']!r}")


def consumer_config(bootstrap_servers: str, settings: Settings) -> dict[str, str]:
    return {**_TUNED, **settings, **_FIXED, "bootstrap.servers": bootstrap_servers}


def admin_config(bootstrap_servers: str, settings: Settings) -> dict[str, str]:
    own = {name: value for name, value in settings.items() if name != "isolation.level"}
    # Level 3 is errors: a consumer's settings are none of an admin client's, which it would warn about.
    return {"log_level": "3", **own, "bootstrap.servers": bootstrap_servers}


def isolation(settings: Settings) -> IsolationLevel:
    """The level at which ends are asked for: the last stable offset, unless the user says otherwise."""
    if settings.get("isolation.level") == "read_uncommitted":
        return IsolationLevel.READ_UNCOMMITTED
    return IsolationLevel.READ_COMMITTED


def refused_by_client(error: KafkaException) -> ConfigError:
    """A client could not be made from these settings: a name or a value that librdkafka doesn't know."""
    return librdkafka.refused_by_client(error.args[0].str(), _COMMON)


def unreachable(what: str, bootstrap_servers: str, timeout_s: float, errors: list[KafkaError]) -> OnefoldError:
    return librdkafka.unreachable(what, bootstrap_servers, timeout_s, errors, "READ and DESCRIBE on the topic")
