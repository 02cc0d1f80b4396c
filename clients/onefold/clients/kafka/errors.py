"""What librdkafka's errors mean for whoever asked. This is the one place that knows its codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable

__all__ = ["asked", "first_failure", "is_fenced", "of", "translate"]

T = TypeVar("T")

_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
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
_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION})


def translate(error: KafkaError, doing: str) -> OnefoldError:
    """`doing` says what was tried, for people."""
    code, said = error.code(), f"{doing}: {error.str()}"
    if code in _DENIED:
        return ConfigError(
            f"{said}. Check the security settings and ACLs: WRITE and DESCRIBE on the transactional ids (by prefix), "
            "on the topic and on the progress topic, READ on the progress topic too"
        )
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            f"{said}. transaction_timeout_s is above the brokers' transaction.max.timeout.ms: lower the one, or raise "
            "the other"
        )
    if code in _BAD_RECORD:
        return BadRecord(
            f"{said}. Kafka refuses a record: too large for message.max.bytes of client, topic or broker, for a "
            "partition that is not there, or without the key that a compacted topic wants. Mend or filter such rows"
        )
    if code in _NO_TOPIC:
        return Retriable(f"{said}. It was there when the sink was opened: start the pipeline again")
    if code in _FENCED:
        return Retriable(f"{said}. Its transaction was ended by somebody else, a sweep or the broker's timeout")
    return Retriable(said)


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


def _cause(error: BaseException) -> KafkaError | None:
    found = error if isinstance(error, KafkaException) else error.__cause__
    return found.args[0] if isinstance(found, KafkaException) else None


def first_failure(failures: Sequence[KafkaError], doing: str) -> OnefoldError:
    """Of several records that Kafka did not take, the one that says most: the rest only went down with it."""
    telling = [error for error in failures if error.code() != KafkaError._PURGE_QUEUE]
    more = f" ({len(failures)} records)" if len(failures) > 1 else ""
    return translate((telling or list(failures))[0], f"{doing}{more}")
