"""Exactly one range of offsets out of Kafka, with consumers that stay open from one range to the next."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from onefold.core.errors import ConfigError, DataLoss, Retriable
from onefold.sources.kafka import settings as client
from onefold.sources.kafka.offsets import Broker, OffsetRange
from onefold.sources.kafka.truncation import is_truncation, truncated

__all__ = ["close_consumers", "consumers_made", "fetch"]

MESSAGES_MAX = 10_000
BYTES_MAX = 32 << 20
_CONSUMERS_MAX = 4  # idle ones in this process; each may hold a queue of prefetched messages
_ALIKE_MAX = 4  # idle ones with the same settings: a further partition takes over the one that rested longest
_CONSUME_MAX = 5_000
_EOF_GRACE_S = 5.0  # after a change of leader, the end of a partition may lie behind for a moment

_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
_NO_TOPIC = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION},
)
_NO_ACCESS = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._SSL})

_Key = tuple[str, tuple[tuple[str, str], ...]]


class _Slot:
    """One open consumer, and where it stands.

    `stands_at` is the (topic, partition, offset) from which everything is still to come out of it: first out of
    `ahead`, messages that came along with the range before, then out of the consumer. `passed` says that the consumer
    has delivered all below it; it may pass offsets without a message, which control records and compaction leave.
    """

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.errors: deque[KafkaError] = deque(maxlen=5)
        bootstrap_servers, settings = key
        config: dict[str, object] = {
            **client.consumer_config(bootstrap_servers, dict(settings)),
            "error_cb": self.errors.append,
            "logger": client.LOGGER,
        }
        try:
            self.consumer = Consumer(config)
        except KafkaException as error:
            raise client.refused_by_client(error) from error
        self.stands_at: tuple[str, int, int] | None = None
        self.passed = 0
        self.ahead: list[Message] = []

    @property
    def reached(self) -> int:
        """Nothing below this offset is still to come."""
        return _offset(self.ahead[0]) if self.ahead else self.passed

    def go_to(self, wanted: OffsetRange) -> None:
        at = (wanted.topic, wanted.partition, wanted.start)
        if self.stands_at != at:
            self.ahead, self.passed = [], wanted.start
            self.consumer.assign([TopicPartition(*at)])
        self.stands_at = None  # until the range is complete
        self.errors.clear()

    def take(self, count: int, wait_s: float) -> list[Message]:
        """What is there already, up to `count`; waits only if that is nothing."""
        if self.ahead:
            taken, self.ahead = self.ahead, []
            return taken
        # consume() with a timeout would wait until `count` messages are there, also at the end of the partition.
        # Messages are objects that the garbage collector counts: without the pause it took up to 40 % of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            messages: list[Message] = self.consumer.consume(count, 0)
        finally:
            if collects:
                gc.enable()
        if not messages and (first := self.consumer.poll(wait_s)) is not None:
            messages = [first]
        return messages


_lock = threading.Lock()
_idle: list[_Slot] = []  # the most recently used last
_inherited: list[_Slot] = []
_made = 0


def _forget_parents() -> None:
    """In a forked child: librdkafka's threads stayed with the parent, so its clients can't even be destroyed here."""
    global _lock, _made
    _lock = threading.Lock()
    _inherited.extend(_idle)
    _idle.clear()
    _made = 0


os.register_at_fork(after_in_child=_forget_parents)


def consumers_made() -> int:
    """How many consumers this process has opened so far."""
    return _made


def close_consumers() -> None:
    """Close the consumers of this process that no range is using."""
    with _lock:
        slots, _idle[:] = list(_idle), []
    for slot in slots:
        slot.consumer.close()


def fetch(
    bootstrap_servers: str,
    settings: client.Settings,
    wanted: OffsetRange,
    *,
    timeout_s: float = 60.0,
    messages_max: int = MESSAGES_MAX,
) -> Iterator[list[Message]]:
    """The messages of one range, in order, in lists of about `messages_max` messages or `BYTES_MAX` bytes.

    Offsets inside the range may be missing: aborted transactions, transaction markers, compaction. Raises `DataLoss`
    where records of the range are gone, `Retriable` if nothing arrives for `timeout_s`.
    """
    if wanted.start >= wanted.end:
        return
    slot = _borrow((bootstrap_servers, tuple(sorted(settings.items()))), wanted)
    complete = False
    try:
        slot.go_to(wanted)
        yield from _messages(slot, wanted, bootstrap_servers, settings, timeout_s, messages_max)
        slot.stands_at = (wanted.topic, wanted.partition, wanted.end)
        complete = True
    finally:
        if complete:
            _give_back(slot)
        else:  # abandoned or failed in the middle: nobody knows where it stands
            slot.consumer.close()


def _messages(
    slot: _Slot,
    wanted: OffsetRange,
    bootstrap_servers: str,
    settings: client.Settings,
    timeout_s: float,
    messages_max: int,
) -> Iterator[list[Message]]:
    gathered: list[Message] = []
    gathered_bytes = 0
    progress_at = time.monotonic()
    check_at = progress_at + min(_EOF_GRACE_S, timeout_s)
    last_error: KafkaError | None = None
    while slot.reached < wanted.end:
        messages = slot.take(min(_CONSUME_MAX, wanted.end - slot.reached), wait_s=0.5)
        good = [message for message in messages if message.error() is None]
        if len(good) < len(messages):
            for message in messages:
                if (error := message.error()) is None:
                    continue
                if error.code() == KafkaError._PARTITION_EOF:
                    slot.passed = max(slot.passed, _offset(message))
                    continue
                last_error = error
                if error.code() in _GONE | _NO_TOPIC | _NO_ACCESS:
                    _explain(error, slot, wanted, Broker(bootstrap_servers, settings, timeout_s))
        if good:
            first, last = _offset(good[0]), _offset(good[-1])
            assert first >= wanted.start, f"{wanted}: the consumer delivered offset {first}"
            slot.passed = max(slot.passed, last + 1)
            if last >= wanted.end:
                cut = next(i for i, message in enumerate(good) if _offset(message) >= wanted.end)
                good, slot.ahead = good[:cut], good[cut:]
            gathered += good
            gathered_bytes += sum(map(len, good))
            if len(gathered) >= messages_max or gathered_bytes >= BYTES_MAX:
                yield gathered
                gathered, gathered_bytes = [], 0
            progress_at = time.monotonic()  # after the yield: what the reader did meanwhile doesn't count
            check_at = progress_at + min(_EOF_GRACE_S, timeout_s)
            continue
        waited_s = time.monotonic() - progress_at
        if time.monotonic() > check_at and slot.reached < wanted.end:
            _check_log(slot, wanted, Broker(bootstrap_servers, settings, max(1.0, timeout_s - waited_s)))
            check_at = time.monotonic() + _EOF_GRACE_S
        if waited_s > timeout_s:
            errors = [*slot.errors, *([last_error] if last_error is not None else [])]
            raise client.unreachable(f"reading {wanted} from {slot.reached}", bootstrap_servers, timeout_s, errors)
    if gathered:
        yield gathered


def _explain(error: KafkaError, slot: _Slot, wanted: OffsetRange, broker: Broker) -> NoReturn:
    if is_truncation(error):
        raise truncated(f"{wanted.topic}/{wanted.partition}", slot.reached, error.str())
    if error.code() in _NO_TOPIC:
        try:
            known = broker.partitions(
                [wanted.topic]
            )  # asks for a while: a broker that restarts knows no topic at first
        except ConfigError:
            known = []
        if (wanted.topic, wanted.partition) not in known:
            raise DataLoss(f"{wanted}: {error.str()}. The topic was deleted while its records were still to be read")
        raise Retriable(f"{wanted}: {error.str()}, but the broker knows it again: read the range again")
    if error.code() in _NO_ACCESS:
        raise ConfigError(f"{wanted}: {error.str()}. Check the security settings and the topic's ACLs")
    _check_log(slot, wanted, broker)
    raise Retriable(f"{wanted}: {error.str()}, but the broker still has this range: read it again")


def _check_log(slot: _Slot, wanted: OffsetRange, broker: Broker) -> None:
    """Raise `DataLoss` if the broker no longer has what is still to be read."""
    at = (wanted.topic, wanted.partition)
    first, end = broker.earliest([at])[at], broker.log_end([at])[at]
    if first > slot.reached:
        raise DataLoss(
            f"{wanted}: the first offset still wanted is {slot.reached}, but Kafka has deleted everything before "
            f"{first} (retention, or delete_records). Restore those records if you can (a mirror, a backup) at the "
            "same offsets; or accept the loss openly: start over under a new pipeline name with explicit "
            f"startingOffsets, this partition at {first}. Then raise retention.ms or read more often"
        )
    if end < wanted.end:
        raise DataLoss(
            f"{wanted}: the partition ends at {end}, before the range that was planned. The topic was deleted and "
            "made anew, or its log was cut (an unclean leader election). Restore it, or accept the loss openly: start "
            "over under a new pipeline name with explicit startingOffsets"
        )


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _borrow(key: _Key, wanted: OffsetRange) -> _Slot:
    """The idle consumer that stands where we want to read, else any with these settings, else a new one."""
    global _made
    at = (wanted.topic, wanted.partition, wanted.start)
    with _lock:
        same = [slot for slot in _idle if slot.key == key]
        chosen = next((slot for slot in same if slot.stands_at == at), None)
        if chosen is None and len(same) >= _ALIKE_MAX:
            chosen = same[0]
        if chosen is not None:
            _idle.remove(chosen)
            return chosen
        _made += 1
    return _Slot(key)


def _give_back(slot: _Slot) -> None:
    with _lock:
        _idle.append(slot)
        surplus = [_idle.pop(0) for _ in range(len(_idle) - _CONSUMERS_MAX)]
    for old in surplus:
        old.consumer.close()
