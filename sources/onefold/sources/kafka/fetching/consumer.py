"""Consumers of one partition at a time, which gather records until they are handed over."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.checks import require
from onefold.sources.kafka.fetching.fetched_records import (
    NO_HEADERS,
    FetchedRecords,
    Headers,
    MessageRecords,
    WantedFields,
    bytes_of,
    headers_of,
)
from onefold.sources.kafka.offsets import OffsetRange

ERRORS_MAX = 5
_CONSUME_MAX = 5_000
_AT_ONCE_MAX = 32  # of each message, confluent-kafka has all headers parsed as it comes: up to 7 MB
_UNSEEN = (
    "a record of more than 100,000 headers is read as one without any: librdkafka refuses them, and confluent-kafka"
    " does not pass that on. The compiled helper makes such a record a bad one (docs/compiled-fetch.md)"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What came: `arrived` records more are gathered; `errors` that librdkafka delivered for the partition.

    `is_full`: as many records or bytes are gathered as were asked for. `packed`: librdkafka cannot unpack what begins
    at this offset, or before it.
    """

    arrived: int
    errors: list[KafkaError]
    is_full: bool
    packed: int | None = None


class RangeConsumer(Protocol):
    """Not thread-safe, and not for the children of the process that opened it.

    `errors` are the last things that the client said of its connections. `reached`: nothing below this offset is still
    to come; it may pass offsets without a record, which control records and compaction leave.
    """

    errors: deque[KafkaError]

    @property
    def reached(self) -> int: ...

    @property
    def gathered(self) -> int:
        """How many records wait to be handed over."""
        ...

    def assign(self, wanted: OffsetRange) -> None:
        """Read from the range's start on, and forget whatever came before."""
        ...

    def want(self, wanted: WantedFields) -> None:
        """What comes along with the records from now on."""
        ...

    def take(self, end: int, records_max: int, bytes_max: int, wait_s: float) -> Taken:
        """Gather what is there below `end`; waits up to `wait_s`, and longer only while records come."""
        ...

    def hand_over(self) -> FetchedRecords:
        """All that was gathered, one record or more."""
        ...

    def close(self) -> None: ...


class MessageConsumer:
    """On confluent_kafka.Consumer, with a Python object for each record.

    `_ahead` are messages that came along with those before. `_passed`: the consumer has delivered all below it.
    `_headers`: of those that came and have any, by offset. They are Python objects, which take many times their bytes
    in a message, so they count for the batch's bound whether they are wanted or not.
    """

    _has_told: ClassVar[bool] = False  # in this process

    def __init__(self, bootstrap_servers: str, settings: Settings) -> None:
        self.errors: deque[KafkaError] = deque(maxlen=ERRORS_MAX)
        config = CONSUMER.config(bootstrap_servers, settings)
        self._consumer = CONSUMER.open(Consumer, {**config, "error_cb": self.errors.append})
        self._passed = 0
        self._at: tuple[str, int] | None = None
        self._ahead: list[Message] = []
        self._gathered: list[Message] = []
        self._headers: dict[int, Headers] = {}
        self._gathered_bytes = 0
        self._wanted = WantedFields()

    @property
    def reached(self) -> int:
        return _offset(self._ahead[0]) if self._ahead else self._passed

    @property
    def gathered(self) -> int:
        return len(self._gathered)

    def assign(self, wanted: OffsetRange) -> None:
        self._ahead, self._gathered, self._headers, self._gathered_bytes = [], [], {}, 0
        self._passed, self._at = wanted.start, (wanted.topic, wanted.partition)
        self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])

    def want(self, wanted: WantedFields) -> None:
        self._wanted = wanted  # messages carry everything
        if wanted.headers and not MessageConsumer._has_told:
            MessageConsumer._has_told = True
            CONSUMER.logger.warning(_UNSEEN)

    def take(self, end: int, records_max: int, bytes_max: int, wait_s: float) -> Taken:
        lowest = self.reached
        messages = self._next(min(_CONSUME_MAX, end - lowest), bytes_max, wait_s)
        good = [message for message in messages if message.error() is None]
        errors: list[KafkaError] = []
        packed: int | None = None
        if len(good) < len(messages):
            for message in messages:
                if (error := message.error()) is None:
                    continue
                if message.topic() is not None and (message.topic(), message.partition()) != self._at:
                    continue  # of what was read before: it means nothing to what is read now
                if error.code() == KafkaError._PARTITION_EOF:
                    self._passed = max(self._passed, _offset(message))
                else:
                    errors.append(error)
                    if error.code() == KafkaError._BAD_COMPRESSION:
                        packed = _offset(message)
        if good:
            first, last = _offset(good[0]), _offset(good[-1])
            require(first >= lowest, f"the consumer delivered offset {first}, and {lowest} was to come")
            self._passed = max(self._passed, last + 1)
            if last >= end:
                cut = next(i for i, message in enumerate(good) if _offset(message) >= end)
                good, self._ahead = good[:cut], good[cut:]
            good = self._gather(good, bytes_max)
        is_full = len(self._gathered) >= records_max or self._gathered_bytes >= bytes_max
        return Taken(len(good), errors, is_full, packed)

    def hand_over(self) -> FetchedRecords:
        messages, self._gathered, self._gathered_bytes = self._gathered, [], 0
        headers = [NO_HEADERS] * len(messages)
        if self._headers:
            headers = [self._headers.pop(_offset(message), NO_HEADERS) for message in messages]
        return MessageRecords(messages, self._wanted, headers if self._wanted.headers else None)

    def close(self) -> None:
        self._consumer.close()

    def _gather(self, messages: list[Message], bytes_max: int) -> list[Message]:
        """Those of the messages that fit, one at least; others are kept for the next batch."""
        self._gathered_bytes += sum(map(len, messages))
        if self._wanted.key:
            self._gathered_bytes += sum(len(message.key() or b"") for message in messages)
        if self._headers:
            for index, message in enumerate(messages):
                self._gathered_bytes += self._headers.get(_offset(message), NO_HEADERS)[1]
                if self._gathered_bytes >= bytes_max:
                    messages, self._ahead = messages[: index + 1], messages[index + 1 :] + self._ahead
                    break
        self._gathered += messages
        return messages

    def _next(self, count: int, bytes_max: int, wait_s: float) -> list[Message]:
        """What is there already, up to `count`, or `bytes_max` of headers; waits only if that is nothing."""
        if self._ahead:
            taken, self._ahead = self._ahead, []
            return taken
        # consume() with a timeout would wait until `count` messages are there, also at the end of the partition.
        # Messages are objects that the garbage collector counts: without the pause it took up to 40 % of the time.
        messages: list[Message] = []
        header_bytes = 0
        collects = gc.isenabled()
        gc.disable()
        try:
            while header_bytes < bytes_max and len(messages) < count:
                some = self._consumer.consume(min(count - len(messages), _AT_ONCE_MAX), 0)
                if not some:
                    break
                messages += some
                header_bytes += self._note_headers(some)
        finally:
            if collects:
                gc.enable()
        if not messages and (first := self._consumer.poll(wait_s)) is not None:
            messages = [first]
            self._note_headers(messages)
        return messages

    def _note_headers(self, messages: list[Message]) -> int:
        """Note the headers of messages that just came; returns what they count."""
        found = 0
        for message, pairs in zip(messages, map(headers_of, messages), strict=True):
            if pairs or pairs is None:
                size = bytes_of(pairs)
                self._headers[_offset(message)] = pairs, size
                found += size
        return found


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
