"""Fetches exactly one range of offsets, with consumers that stay open from one range to the next."""

from __future__ import annotations

import atexit
import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace

from confluent_kafka import KafkaError

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.clients.kafka.error_codes import DENIED, NO_TOPIC
from onefold.clients.kafka.librdkafka import Settings
from onefold.clients.per_process import PerProcess
from onefold.core.errors import ConfigError, DataLoss, Retriable
from onefold.core.values.remedies import RESET
from onefold.sources.kafka.fetching.compiled_consumer import CompiledConsumer
from onefold.sources.kafka.fetching.compiled_fetch import helper
from onefold.sources.kafka.fetching.consumer import MessageConsumer, RangeConsumer
from onefold.sources.kafka.fetching.fetched_records import CompressedRecord, FetchedRecords, WantedFields
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.subscription import Subscription
from onefold.sources.kafka.planning.truncation import deleted, is_truncation, truncated

MESSAGES_MAX = 30_000  # a parser of whole batches takes a tenth less for each record than with 10,000
BYTES_MAX = 32 << 20
_CONSUMERS_MAX = 4  # idle ones in this process; each may hold a queue of prefetched messages
_ALIKE_MAX = 4  # idle ones with the same settings: a further partition takes over the one that rested longest
_EOF_GRACE_S = 5.0  # after a change of leader, the end of a partition may lie behind for a moment

_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
_NO_TOPIC = NO_TOPIC | {KafkaError._UNKNOWN_PARTITION}

_Key = tuple[str, tuple[tuple[str, str], ...], bool]


class _Slot:
    """One open consumer, and where it stands.

    `stands_at` is the (topic, partition, offset) from which everything is still to come out of it.
    """

    def __init__(self, key: _Key, library: ctypes.CDLL | None) -> None:
        self.key = key
        bootstrap_servers, settings, _ = key
        self.consumer: RangeConsumer = (
            MessageConsumer(bootstrap_servers, dict(settings))
            if library is None
            else CompiledConsumer(library, bootstrap_servers, dict(settings))
        )
        self.stands_at: tuple[str, int, int] | None = None

    def go_to(self, wanted: OffsetRange, columns: WantedFields) -> None:
        if self.stands_at != (wanted.topic, wanted.partition, wanted.start):
            self.consumer.assign(wanted)
        self.consumer.want(columns)
        self.stands_at = None  # until the range is complete
        self.consumer.errors.clear()


class _Consumers:
    """The consumers of a process: the idle ones, the most recently used last, and how many it has opened so far."""

    def __init__(self) -> None:
        self.idle: list[_Slot] = []
        self.made = 0


_consumers = PerProcess(_Consumers)


def consumers_made() -> int:
    """How many consumers this process has opened so far."""
    return _consumers.now.made


def close_consumers() -> None:
    """Close the consumers of this process that no range is using."""
    with _consumers.lock:
        slots, _consumers.now.idle = _consumers.now.idle, []
    for slot in slots:
        slot.consumer.close()


atexit.register(close_consumers)  # librdkafka's threads must not outlive the libraries that they use


def fetch(
    bootstrap_servers: str,
    settings: Settings,
    wanted: OffsetRange,
    *,
    columns: WantedFields = WantedFields(),  # noqa: B008  # frozen
    timeout_s: float = 60.0,
    messages_max: int = MESSAGES_MAX,
    compiled: str = "auto",
) -> Iterator[FetchedRecords]:
    """The records of one range, in order, in batches of about `messages_max` records or `BYTES_MAX` bytes.

    Offsets inside the range may be missing: aborted transactions, transaction markers, compaction. `compiled` is
    "auto", "off" or "required". Raises `DataLoss` where records of the range are gone, `Retriable` if nothing arrives
    for `timeout_s`.
    """
    if wanted.start >= wanted.end:
        return
    library = helper(compiled)
    slot = _borrow((bootstrap_servers, tuple(sorted(settings.items())), library is not None), wanted, library)
    complete = False
    try:
        slot.go_to(wanted, columns)
        yield from _records(slot.consumer, wanted, bootstrap_servers, settings, timeout_s, messages_max)
        slot.stands_at = (wanted.topic, wanted.partition, wanted.end)
        complete = True
    finally:
        if complete:
            _give_back(slot)
        else:  # abandoned or failed in the middle: where it stands is unknown
            slot.consumer.close()


def _records(
    consumer: RangeConsumer,
    wanted: OffsetRange,
    bootstrap_servers: str,
    settings: Settings,
    timeout_s: float,
    messages_max: int,
) -> Iterator[FetchedRecords]:
    progress_at = time.monotonic()
    check_at = progress_at + min(_EOF_GRACE_S, timeout_s)
    last_error: KafkaError | None = None
    packed, has_begun_again = -1, False
    while consumer.reached < wanted.end:
        taken = consumer.take(wanted.end, messages_max, BYTES_MAX, wait_s=0.5)
        refused = None
        for error in taken.errors:
            if error.code() == KafkaError._BAD_COMPRESSION:
                continue
            last_error = error
            if error.code() in _GONE | _NO_TOPIC | DENIED:
                refused = _explained(error, consumer.reached, wanted, Broker(bootstrap_servers, settings, timeout_s))
        if refused is not None:
            # It may be said of what this consumer read before. Once records have come, they may be of a topic that was
            # made anew meanwhile: then all of the range is to be read again.
            if has_begun_again or consumer.reached > wanted.start:
                raise refused
            consumer.assign(wanted)
            has_begun_again = True
            continue
        if taken.is_full:
            yield consumer.hand_over()
        if taken.packed is not None:
            at = max(taken.packed, consumer.reached)
            if at == packed:  # fetched again, and no other: so it is not what came over the wire
                if consumer.gathered:
                    yield consumer.hand_over()
                if at < wanted.end:
                    yield CompressedRecord(wanted, at)
                consumer.assign(replace(wanted, start=min(at + 1, wanted.end)))  # all below it has come
                progress_at = time.monotonic()
            packed = at
        if taken.arrived:
            progress_at = time.monotonic()  # after the yield: what the reader did meanwhile doesn't count
            check_at = progress_at + min(_EOF_GRACE_S, timeout_s)
        elif consumer.reached < wanted.end:
            waited_s = time.monotonic() - progress_at
            if time.monotonic() > check_at:
                _check_log(
                    consumer.reached, wanted, Broker(bootstrap_servers, settings, max(1.0, timeout_s - waited_s))
                )
                check_at = time.monotonic() + _EOF_GRACE_S
            if waited_s > timeout_s:
                errors = [*consumer.errors, *([last_error] if last_error is not None else [])]
                what = f"reading {wanted} from {consumer.reached}"
                raise CONSUMER.unreachable(what, bootstrap_servers, timeout_s, errors)
    if consumer.gathered:
        yield consumer.hand_over()


def _explained(error: KafkaError, reached: int, wanted: OffsetRange, broker: Broker) -> Retriable:
    """The error where the broker has the range all the same; raises what is final."""
    if is_truncation(error):
        raise truncated(f"{wanted.topic}/{wanted.partition}", reached, error.str())
    if error.code() in _NO_TOPIC:
        _check_there(wanted, broker)
        return Retriable(
            "read-interrupted", f"{wanted}: {error.str()}, but the broker knows it again: read the range again"
        )
    if error.code() in DENIED:
        raise ConfigError(
            "kafka-access-denied", f"{wanted}: {error.str()}. Check the security settings and the topic's ACLs"
        )
    _check_log(reached, wanted, broker)
    return Retriable("read-interrupted", f"{wanted}: {error.str()}, but the broker still has this range: read it again")


def _check_there(wanted: OffsetRange, broker: Broker) -> None:
    """Raise `DataLoss` if the topic is gone. Asks for a while: a broker that restarts knows no topic at first."""
    found = Subscription((wanted.topic,)).find(broker, known=(wanted.topic,))
    if wanted.partition not in found[wanted.topic].partitions:
        raise DataLoss(
            "topic-recreated",
            f"{wanted}: the topic was deleted and made anew, with fewer partitions, while its records were still to be"
            f" read. What was not read of it is lost: restore it, or {RESET}",
        )


def _check_log(reached: int, wanted: OffsetRange, broker: Broker) -> None:
    """Raise `DataLoss` if the broker no longer has what is still to be read."""
    _check_there(wanted, broker)  # of a topic that is gone it would only say that nobody leads it
    at = (wanted.topic, wanted.partition)
    first, end = broker.earliest([at])[at], broker.log_end([at])[at]
    if first > reached:
        raise deleted(wanted, reached, first)
    if end < wanted.end:
        raise DataLoss(
            "partition-too-short",
            f"{wanted}: the partition ends at {end}, before the range that was planned. The topic was deleted and "
            "made anew, or its log was cut (an unclean leader election). Restore it, or accept the loss openly, "
            f"with explicit starting_offsets: {RESET}",
        )


def _borrow(key: _Key, wanted: OffsetRange, library: ctypes.CDLL | None) -> _Slot:
    """An idle consumer that stands at the range's start, else one with these settings, else a new one."""
    at = (wanted.topic, wanted.partition, wanted.start)
    with _consumers.lock:
        ours = _consumers.now
        same = [slot for slot in ours.idle if slot.key == key]
        chosen = next((slot for slot in same if slot.stands_at == at), None)
        if chosen is None and len(same) >= _ALIKE_MAX:
            chosen = same[0]
        if chosen is not None:
            ours.idle.remove(chosen)
            return chosen
        ours.made += 1
    return _Slot(key, library)


def _give_back(slot: _Slot) -> None:
    with _consumers.lock:
        idle = _consumers.now.idle
        idle.append(slot)
        surplus = [idle.pop(0) for _ in range(len(idle) - _CONSUMERS_MAX)]
    for old in surplus:
        old.consumer.close()
