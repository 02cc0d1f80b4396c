"""The consumer that fetch.c makes: whole batches come out of librdkafka as Arrow buffers."""

from __future__ import annotations

import ctypes
import os
from collections import deque

from confluent_kafka import KafkaError, KafkaException

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.checks import present, require
from onefold.sources.kafka.fetching.consumer import ERRORS_MAX, Taken
from onefold.sources.kafka.fetching.fetched_records import LETTER_BYTES_MAX, FetchedRecords, WantedFields
from onefold.sources.kafka.native.arrow_buffers import ArrowRecords, BatchBuffers
from onefold.sources.kafka.native.library import SAID_ERROR, SAID_EVENT, Gathered, Said
from onefold.sources.kafka.offset_range import OffsetRange

__all__ = ["CompiledConsumer"]

# librdkafka's levels are syslog's; as confluent-kafka maps them.
_LOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


class CompiledConsumer:
    """See `RangeConsumer`. What it owns in C goes with `close` only, and never in a forked child, where librdkafka's
    threads are missing."""

    def __init__(self, library: ctypes.CDLL, bootstrap_servers: str, settings: Settings) -> None:
        self.errors: deque[KafkaError] = deque(maxlen=ERRORS_MAX)
        self._c = library
        self._process = os.getpid()
        self._gathered = Gathered()
        self._range: OffsetRange | None = None
        self._wanted = WantedFields()
        given = CONSUMER.config(bootstrap_servers, settings)
        texts = [text.encode() for pair in given.items() for text in pair]
        why = ctypes.create_string_buffer(512)
        self._handle: int | None = library.onefold_open(
            (ctypes.c_char_p * len(texts))(*texts), len(given), why, len(why)
        )
        if self._handle is None:
            raise CONSUMER.refusal(why.value.decode(errors="replace"))

    @property
    def reached(self) -> int:
        return int(self._gathered.reached)

    @property
    def gathered(self) -> int:
        return int(self._gathered.records)

    def assign(self, wanted: OffsetRange) -> None:
        self._range = wanted
        code = self._c.onefold_assign(self._handle, wanted.topic.encode(), wanted.partition, wanted.start)
        if code != 0:
            raise KafkaException(KafkaError(code))
        self._gathered = Gathered(reached=wanted.start)

    def want(self, wanted: WantedFields) -> None:
        self._wanted = wanted
        flags = wanted.key | wanted.timestamp << 1 | wanted.headers << 2 | wanted.lines << 3
        self._c.onefold_want(self._handle, flags, wanted.record_bytes_max, LETTER_BYTES_MAX)

    def take(self, end: int, records_max: int, bytes_max: int, wait_s: float) -> Taken:
        require(self._handle is not None, "a consumer that is closed takes nothing")
        gathered = self._gathered
        if self._c.onefold_gather(
            self._handle, end, records_max, bytes_max, int(wait_s * 1000), ctypes.byref(gathered)
        ):
            raise MemoryError
        require(gathered.stray < 0, f"{self._range}: the consumer delivered offset {gathered.stray}")
        errors, packed = self._listen() if gathered.said else ([], None)
        return Taken(gathered.arrived, errors, bool(gathered.full), packed)

    def hand_over(self) -> FetchedRecords:
        wanted, sizes = present(self._range, "records without a range"), self._gathered
        require(self._handle is not None and sizes.records > 0, f"nothing was gathered of {wanted}")
        buffers = BatchBuffers(sizes, self._wanted)
        self._gathered = Gathered(reached=sizes.reached)
        self._c.onefold_hand_over(self._handle, ctypes.byref(buffers.addresses))
        return ArrowRecords(wanted, sizes.records, self._wanted, buffers.buffers, buffers.addresses)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and os.getpid() == self._process:
            self._c.onefold_close(handle)

    def _listen(self) -> tuple[list[KafkaError], int | None]:
        """Pass on what librdkafka said meanwhile; returns the events of the partition, and where it cannot unpack."""
        events, packed = [], None
        said = Said()
        while self._c.onefold_said(self._handle, ctypes.byref(said)):
            text = said.text.decode(errors="replace")
            if said.kind == SAID_EVENT:
                events.append(KafkaError(said.code, text))
                if said.code == KafkaError._BAD_COMPRESSION:
                    packed = said.offset
            elif said.kind == SAID_ERROR:
                self.errors.append(KafkaError(said.code, text))
            else:
                CONSUMER.said.log(_LOG_LEVELS[said.code], "%s", text)
        return events, packed
