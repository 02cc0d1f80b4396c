"""The consumer that fetch.c makes: whole batches come out of librdkafka as Arrow buffers."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.clients.kafka.librdkafka import Settings
from onefold.core.checks import present, require
from onefold.sources.formats.value_range import record_timestamps
from onefold.sources.formats.values import Lines, Values
from onefold.sources.kafka.fetching.compiled_fetch import SAID_ERROR, SAID_EVENT, Buffers, Gathered, Said
from onefold.sources.kafka.fetching.consumer import ERRORS_MAX, Taken
from onefold.sources.kafka.fetching.fetched_records import LETTER_BYTES_MAX, FetchedRecords, WantedFields
from onefold.sources.kafka.offsets import OffsetRange

# librdkafka's levels are syslog's; as confluent-kafka maps them.
_LOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
_REFUSED = "librdkafka refuses to read its headers: they are more than 100,000, or damaged. Read it without headers"


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


class BatchBuffers:
    """Buffers for one batch, of the sizes that were reported: Arrow's own memory, which C fills and never keeps."""

    def __init__(self, sizes: Gathered, wanted: WantedFields) -> None:
        self.addresses = Buffers()
        self.buffers: dict[str, pa.Buffer] = {}
        records, headers = sizes.records, sizes.headers
        self._make("offset", 8 * records)
        self._make("size", 8 * records)
        self._make_bytes("value", records, sizes.value_bytes)
        if wanted.key:
            self._make_bytes("key", records, sizes.key_bytes)
        if wanted.timestamp:
            self._make_valid("timestamp_valid", records)
            self._make("timestamp", 8 * records)
        if wanted.headers:
            self._make_valid("headers_valid", records)
            self._make("headers_ends", 4 * (records + 1))
            self._make("header_name_ends", 4 * (headers + 1))
            self._make("header_name", sizes.header_name_bytes)
            self._make_bytes("header_value", headers, sizes.header_value_bytes)

    def _make_bytes(self, name: str, count: int, length: int) -> None:
        self._make_valid(f"{name}_valid", count)
        self._make(f"{name}_ends", 4 * (count + 1))
        self._make(name, length)

    def _make_valid(self, name: str, count: int) -> None:
        self._make(name, (count + 7) // 8)
        buffer = self.buffers[name]
        ctypes.memset(buffer.address, 0, buffer.size)

    def _make(self, name: str, length: int) -> None:
        self.buffers[name] = buffer = pa.allocate_buffer(length)
        setattr(self.addresses, name, buffer.address)


@dataclass(frozen=True)
class ArrowRecords:
    """Records as arrays. See `Records`."""

    of: OffsetRange
    count: int
    wanted: WantedFields
    buffers: dict[str, pa.Buffer] = field(repr=False)
    said: Buffers = field(repr=False)

    def __len__(self) -> int:
        return self.count

    @property
    def values(self) -> Values:
        array = self._bytes("value", pa.binary(), self.count, self.said.value_nulls)
        if not self.wanted.lines:
            values: list[bytes | None] = array.to_pylist()
            return values
        return Lines(array, are_objects=bool(self.said.are_objects), is_ascii=bool(self.said.is_ascii))

    @property
    def too_large(self) -> Mapping[int, int | None]:
        if not self.said.too_large:
            return {}
        import pyarrow.compute as pc  # see `Lines.array`

        sizes = pa.Array.from_buffers(pa.int64(), self.count, [None, self.buffers["size"]])
        at = pc.indices_nonzero(pc.greater(sizes, self.wanted.record_bytes_max))
        return dict(zip(at.to_pylist(), sizes.take(at).to_pylist(), strict=True))

    @property
    def odd_headers(self) -> Mapping[int, str]:
        if not self.said.headers_nulls:
            return {}
        import pyarrow.compute as pc  # see `Lines.array`

        valid = pa.Array.from_buffers(pa.bool_(), self.count, [None, self.buffers["headers_valid"]])
        return dict.fromkeys(pc.indices_nonzero(pc.invert(valid)).to_pylist(), _REFUSED)

    def column(self, field: pa.Field) -> pa.Array:
        match field.name:
            case "topic" | "partition":
                value = self.of.topic if field.name == "topic" else self.of.partition
                return pa.repeat(pa.scalar(value, field.type), self.count)
            case "offset":
                return pa.Array.from_buffers(pa.int64(), self.count, [None, self.buffers["offset"]])
            case "timestamp":
                buffers = [self._valid("timestamp", self.said.timestamp_nulls), self.buffers["timestamp"]]
                times = pa.Array.from_buffers(pa.timestamp("ms", "UTC"), self.count, buffers)
                return record_timestamps(times, field.type)
            case "key":
                return self._bytes("key", field.type, self.count, self.said.key_nulls)
            case "value" if self.wanted.lines:
                lines = self.values
                assert isinstance(lines, Lines)
                return lines.array()
            case "value":
                return self._bytes("value", field.type, self.count, self.said.value_nulls)
            case "headers":
                return self._headers(field.type)
            case _:
                raise KeyError(field.name)

    def _headers(self, kind: pa.ListType) -> pa.Array:
        count = pa.Array.from_buffers(pa.int32(), self.count + 1, [None, self.buffers["headers_ends"]])[-1].as_py()
        pair = kind.value_type
        named = [None, self.buffers["header_name_ends"], self.buffers["header_name"]]
        name = pa.Array.from_buffers(pair[0].type, count, named)
        try:
            name.validate(full=True)
        except (
            pa.ArrowInvalid
        ):  # a name's bytes are whatever a producer sent: they are read as Java's client reads them
            names = pa.Array.from_buffers(pa.binary(), count, named).to_pylist()
            name = pa.array([bytes.decode(errors="replace") for bytes in names], pair[0].type)
        value = self._bytes("header_value", pair[1].type, count, self.said.header_value_nulls)
        pairs = pa.Array.from_buffers(pair, count, [None], children=[name, value])
        buffers = [self._valid("headers", self.said.headers_nulls), self.buffers["headers_ends"]]
        return pa.Array.from_buffers(kind, self.count, buffers, children=[pairs])

    def _bytes(self, name: str, kind: pa.DataType, count: int, nulls: int) -> pa.Array:
        buffers = [self._valid(name, nulls), self.buffers[f"{name}_ends"], self.buffers[name]]
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)

    def _valid(self, name: str, nulls: int) -> Any:
        return self.buffers[f"{name}_valid"] if nulls else None
