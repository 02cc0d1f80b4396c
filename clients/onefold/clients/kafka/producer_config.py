"""The clients of a Kafka sink: idempotent producers, transactional or not, and its admin clients."""

from __future__ import annotations

import logging

from onefold.clients.kafka.librdkafka import ClientRole

__all__ = ["PRODUCER"]

_TUNED = {
    "log_level": "3",  # errors
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
}

PRODUCER = ClientRole(
    logger=logging.getLogger("onefold.sinks.kafka"),
    tuned=_TUNED,
    fixed=_FIXED,
    refused=_REFUSED,
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
