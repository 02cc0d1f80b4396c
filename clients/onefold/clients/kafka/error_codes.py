"""What the errors of Kafka and of librdkafka mean, by their codes, and what to do. The one place that knows these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable

T = TypeVar("T")

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
# What a broker answers to a question for settings, where we may not see them.
NOT_SHOWN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
# The coordinator is loading, not there, or another broker by now.
MOVED = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
# No such topic, no leader, another leader, out of time, no replica, no offset: for now.
NOT_READY = MOVED | {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
}

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_BAD_RECORD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._UNKNOWN_PARTITION,
    }
)


def translate(error: KafkaError, doing: str) -> OnefoldError:
    """`doing` says what was tried, for people."""
    error = _before_the_gap(error)
    code, said = error.code(), f"{doing}: {error.str()}"
    if code in DENIED:
        return ConfigError(
            "kafka-access-denied",
            f"{said}. Check the security settings and ACLs: WRITE and DESCRIBE on the transactional ids (by prefix), "
            "on the topic and on the ledger topic, READ on the ledger topic too",
        )
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            "transaction-timeout-too-long",
            f"{said}. transaction_timeout_s is above the brokers' transaction.max.timeout.ms: lower the one, or raise "
            "the other",
        )
    if code in _BAD_RECORD:
        return BadRecord(
            "kafka-record-refused",
            f"{said}. Kafka refuses a record: too large for message.max.bytes of client, topic or broker, for a "
            "partition that is not there, or without the key that a compacted topic wants. Mend or filter such rows",
        )
    if code in NO_TOPIC or code == KafkaError.TOPIC_EXCEPTION:
        return Retriable(
            "topic-disappeared", f"{said}. It was there when the sink was opened: start the pipeline again"
        )
    if code in _FENCED:
        return Retriable(
            "transaction-ended-elsewhere",
            f"{said}. Its transaction was ended by somebody else, a sweep or the broker's timeout",
        )
    return Retriable("kafka-request-failed", said)


def asked(call: Callable[[], T], doing: str) -> T:
    """The answer of a librdkafka call, or what its error means."""
    try:
        return call()
    except (KafkaException, SystemError) as error:
        raise of(error, doing) from error


def of(error: KafkaException | SystemError, doing: str) -> OnefoldError:
    """What an exception means. A call that also ran callbacks raises SystemError, and the real one is its cause."""
    cause = _cause(error)
    if cause is None:
        raise error
    return translate(cause, doing)


def is_fenced(error: BaseException) -> bool:
    cause = _cause(error)
    return cause is not None and cause.code() in _FENCED


def _before_the_gap(error: KafkaError) -> KafkaError:
    """Where librdkafka stopped so as to leave no gap, the text alone says at which error it stopped."""
    if error.code() != KafkaError._GAPLESS_GUARANTEE:
        return error
    known = (KafkaError(code) for code in sorted(_BAD_RECORD | NOT_SHOWN))
    return next((reason for reason in known if reason.str() in error.str()), error)


def _cause(error: BaseException) -> KafkaError | None:
    found = error if isinstance(error, KafkaException) else error.__cause__
    return found.args[0] if isinstance(found, KafkaException) else None


def first_failure(failures: Sequence[KafkaError], doing: str) -> OnefoldError:
    """Of several records that Kafka did not take, the one that says most: the rest only went down with it."""
    telling = [error for error in failures if error.code() != KafkaError._PURGE_QUEUE]
    more = f" ({len(failures)} records)" if len(failures) > 1 else ""
    return translate((telling or list(failures))[0], f"{doing}{more}")


def unreachable(
    what: str, bootstrap_servers: str, timeout_s: float, said: Sequence[KafkaError], acls: str
) -> OnefoldError:
    """The error for brokers that gave no answer, from what the client `said` of its connections."""
    for error in said:
        if error.code() in DENIED:
            return ConfigError(
                "kafka-access-denied",
                f"Kafka at {bootstrap_servers} refused us while {what}: {error.str()}. Check security.protocol, the "
                f"sasl.* and ssl.* settings, and the ACLs ({acls})",
            )
    why = "; ".join(dict.fromkeys(error.str() for error in said)) or "no answer"
    return Retriable(
        "kafka-unreachable",
        f"Kafka at {bootstrap_servers} did not answer within {timeout_s:g} s while {what} ({why}). Is the broker up, "
        "is bootstrap_servers right, and are its advertised.listeners reachable from this machine?",
    )


_PARTITIONS = 6


def creating(topic: str, bootstrap_servers: str) -> str:
    """The command that makes a topic: it needs nothing that is not installed with the Kafka client."""
    return (
        'python -c "from confluent_kafka.admin import AdminClient, NewTopic; AdminClient({'
        f"'bootstrap.servers': '{bootstrap_servers}'"
        f"}}).create_topics([NewTopic('{topic}', {_PARTITIONS})])['{topic}'].result()\""
    )
