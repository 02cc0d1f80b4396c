"""Sends records through one producer: in order, with a bounded queue. Delivery errors are raised."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.client_roles import PRODUCER
from onefold.clients.per_process import PerProcess
from onefold.core.checks import require
from onefold.core.errors import OnefoldError
from onefold.sinks.kafka.encoding import EncodedRecords
from onefold.sinks.kafka.sink_options import KafkaSinkConfig

_POLL_S = 0.01
_FLUSH_S = 0.2
_IDLE_MAX = 4  # a task needs one, and an executor's process runs one task at a time

# A reader drops an id below the last one, so a record that is skipped while later ones are written would be lost: what
# arrives of an attempt must be its beginning. The first setting does not cover a message that times out.
_GAPLESS = {"enable.gapless.guarantee": "true", "message.timeout.ms": "0"}


class RecordProducer:
    """A plain producer, of one attempt at a time. `doing` says in errors whose records these are."""

    @classmethod
    def borrowed(cls, settings: KafkaSinkConfig, doing: str) -> RecordProducer:
        """An idle producer of this process, or a new one: a new one takes up to a second to begin."""
        with _idle.lock:
            for producer in _idle.now:
                if producer._settings == settings:
                    _idle.now.remove(producer)
                    producer._doing = doing
                    return producer
        return cls(settings, _GAPLESS, doing)

    def give_back(self) -> None:
        """Keep it for the next attempt, once all is acknowledged. A producer that failed is dropped instead."""
        require(not self._failures and not len(self.client), "only what is flushed can be another attempt's")
        self._said.clear()
        with _idle.lock:
            if len(_idle.now) < _IDLE_MAX:
                _idle.now.append(self)

    def __init__(self, settings: KafkaSinkConfig, own: dict[str, str], doing: str) -> None:
        self._settings, self._doing = settings, doing
        failures: list[KafkaError] = []
        said: list[KafkaError] = []

        def failed(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        self._failures, self._said = failures, said  # not through self: a cycle would keep the producer alive
        self.client = opened(settings, {**own, "on_delivery": failed, "error_cb": said.append})
        connect(self.client, settings, doing)

    def send(self, topic: str, records: EncodedRecords) -> None:
        """Hand these to the producer, in order; waits where its queue is full."""
        if self._failures:
            raise self._failed()
        rows = len(records.values)
        keys = [None] * rows if records.keys is None else records.keys
        client = self.client

        def put(value: bytes | None, key: bytes | None, **more: Any) -> None:
            try:
                client.produce(topic, value, key, **more)
            except BufferError:
                self._wait_for_room()
                client.produce(topic, value, key, **more)

        try:
            if records.is_plain:
                for value, key in zip(records.values, keys, strict=True):
                    put(value, key)
            else:
                headers = [None] * rows if records.headers is None else records.headers
                partitions = [-1] * rows if records.partitions is None else records.partitions
                timestamps = [0] * rows if records.timestamps is None else records.timestamps
                parts = zip(records.values, keys, headers, partitions, timestamps, strict=True)
                for value, key, header, partition, timestamp in parts:
                    put(value, key, headers=header or [], partition=partition, timestamp=timestamp)
        except KafkaException as error:
            raise error_codes.of(error, self._doing) from error
        self._asked(lambda: client.poll(0))

    def flush(self) -> None:
        """All that was sent is with the brokers when this returns."""
        until_s = time.monotonic() + self._settings.timeout_s
        while left := self._asked(lambda: self.client.flush(_FLUSH_S)):  # an error shows when the call is over only
            if self._failures or time.monotonic() > until_s:
                break
        if self._failures:
            raise self._failed()
        if left:
            raise self._unanswered(f"{left} records were not acknowledged")

    def _wait_for_room(self) -> None:
        """Until half of what is queued is gone."""
        size = enough = len(self.client)
        until_s = time.monotonic() + self._settings.timeout_s
        while (now := len(self.client)) > enough // 2:
            self._asked(lambda: self.client.poll(_POLL_S))
            if self._failures:
                raise self._failed()
            if now < size:
                size, until_s = now, time.monotonic() + self._settings.timeout_s
            elif time.monotonic() > until_s:
                raise self._unanswered("its queue stays full")

    def _asked(self, call: Callable[[], int]) -> int:
        return error_codes.asked(call, self._doing)

    def _failed(self) -> OnefoldError:
        return error_codes.first_failure(self._failures, self._doing)

    def _unanswered(self, what: str) -> OnefoldError:
        settings = self._settings
        return PRODUCER.unreachable(
            f"{self._doing}: {what}", settings.bootstrap_servers, settings.timeout_s, self._said
        )


_idle = PerProcess(list[RecordProducer])


def opened(settings: KafkaSinkConfig, own: dict[str, Any]) -> Producer:
    """A producer with the sink's settings and those of its own."""
    return PRODUCER.open(Producer, PRODUCER.config(settings.bootstrap_servers, settings.client_config, own))


def connect(producer: Producer, settings: KafkaSinkConfig, doing: str) -> None:
    """Connect a producer before its first record, by a request for metadata: then it has its id in 50 ms.

    An idempotent producer asks for its id when it is made, before any broker is connected, and not again for up to a
    second.
    """
    error_codes.asked(lambda: producer.list_topics(settings.topic, timeout=settings.timeout_s), doing)


def initialize(producer: Producer, settings: KafkaSinkConfig, doing: str) -> None:
    """Call `init_transactions` so that it takes 60 ms and not 500.

    It asks for the coordinator at once, and again after 500 ms if no broker was connected by then. So we ask for
    metadata before, twice: librdkafka drops its first connection, to a bootstrap server, after the first answer.
    """
    for _ in range(2):
        connect(producer, settings, doing)
    error_codes.asked(lambda: producer.init_transactions(settings.timeout_s), doing)
