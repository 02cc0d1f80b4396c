"""librdkafka's settings for the sink: which of them a user may give, and what the sink itself sets."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from onefold.clients.kafka import librdkafka
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.errors import ConfigError, OnefoldError

__all__ = ["LOGGER", "admin_config", "check", "producer_config", "refused_by_client", "unreachable"]

LOGGER = logging.getLogger("onefold.sinks.kafka")
LOGGER.addHandler(logging.NullHandler())  # what librdkafka says of a fence is raised as well

_TUNED = {
    "partitioner": "murmur2_random",  # Java's default: a key goes where other producers send it
    "linger.ms": "20",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "65536",  # librdkafka's own default is a gigabyte, in every task
    "reconnect.backoff.max.ms": "1000",
}

_FIXED: dict[str, str | bool] = {
    "enable.idempotence": "true",
    "acks": "all",
    "delivery.report.only.error": True,  # the one that confluent-kafka wants as it is, and not as a text
}

_EXACTLY_ONCE = "the sink's guarantee rests on it: leave it out"
_REFUSED = {
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
    **librdkafka.JAVAS_OWN,
}

# What people set, for the nearest match of a misspelt name.
_COMMON = (
    *librdkafka.SECURITY,
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
)
_PRODUCERS_OWN = frozenset(_COMMON) - frozenset(librdkafka.SECURITY)


def check(settings: Settings) -> None:
    """Refuse, with the reason, what would break the guarantee. Asks no server."""
    librdkafka.check(settings, _REFUSED)


def producer_config(bootstrap_servers: str, settings: Settings, own: Settings) -> dict[str, Any]:
    """`own` are the settings of one producer, such as its transactional id."""
    return {**_TUNED, "log_level": "3", **settings, **_FIXED, **own, "bootstrap.servers": bootstrap_servers}


def admin_config(bootstrap_servers: str, settings: Settings) -> dict[str, Any]:
    own = {name: value for name, value in settings.items() if name not in _PRODUCERS_OWN}
    return {"log_level": "3", **own, "bootstrap.servers": bootstrap_servers}


def refused_by_client(error: KafkaException) -> ConfigError:
    """A client could not be made from these settings: a name or a value that librdkafka doesn't know."""
    return librdkafka.refused_by_client(error.args[0].str(), _COMMON)


def unreachable(what: str, bootstrap_servers: str, timeout_s: float, errors: list[KafkaError]) -> OnefoldError:
    acls = "WRITE and DESCRIBE on both topics and on the transactional ids"
    return librdkafka.unreachable(what, bootstrap_servers, timeout_s, errors, acls)
