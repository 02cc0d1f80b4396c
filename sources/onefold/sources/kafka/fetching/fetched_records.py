"""Batches of fetched records, in order, of one partition: what the formats parse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import methodcaller
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from onefold.sources.formats.record_options import RECORD_BYTES_MAX
from onefold.sources.formats.value_range import record_timestamps
from onefold.sources.formats.values import Values
from onefold.sources.kafka.offsets import OffsetRange

HEADER_BYTES = 16  # what a header counts beside its bytes, so that empty ones have a bound, too; as in fetch.c
# Of a dead letter's key, value and headers together: with the rest, it fits into what a Kafka topic takes by default.
LETTER_BYTES_MAX = 768 << 10

Pairs = Sequence[tuple[str, bytes | None]]
Headers = tuple[Pairs | None, int]  # of a record, None where they cannot be read; and what they count
NO_HEADERS: Headers = ((), 0)
_NO_TEXT = (
    "the name of a header is not UTF-8, and confluent-kafka cannot read it. The compiled helper can"
    " (docs/compiled-fetch.md); or read without headers"
)
# Where a name cannot be decoded, confluent-kafka's method returns a list with a hole in it *and* sets an error. A call
# that the interpreter has specialised, after some rounds, does not look for that, and the process ends at the hole.
_asked = methodcaller("headers")


@dataclass(frozen=True, slots=True)
class WantedFields:
    """What comes along with the offsets and values of the records."""

    key: bool = False
    timestamp: bool = False
    headers: bool = False
    lines: bool = False  # `values` may be `Lines`, for who can make use of them
    record_bytes_max: int = RECORD_BYTES_MAX  # what of a record is wanted has no more bytes, or the record is too large

    @classmethod
    def of(
        cls, names: Collection[str], *, lines: bool = False, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> WantedFields:
        """For these columns, named as the raw ones are."""
        return cls("key" in names, "timestamp" in names, "headers" in names, lines, record_bytes_max)


class FetchedRecords(Protocol):
    """A batch. Its columns have the names and types of format=raw; only those that were wanted are there."""

    def __len__(self) -> int: ...

    @property
    def too_large(self) -> Mapping[int, int | None]:
        """Which records are too large, and how many bytes they have; None where they cannot be unpacked. Their keys and
        values are cut to `LETTER_BYTES_MAX` each, and their headers left out."""
        ...

    @property
    def odd_headers(self) -> Mapping[int, str]:
        """Which records have headers that cannot be read, and are null; and why."""
        ...

    @property
    def values(self) -> Values:
        """The bytes of each value; None for a null one."""
        ...

    def column(self, field: pa.Field) -> pa.Array:
        """The raw column of this name, as this type (which may name and mark nested fields in its own way)."""
        ...


class MessageRecords:
    """A Python object for each record, as confluent-kafka delivers them, and the headers of each."""

    def __init__(self, messages: list[Message], wanted: WantedFields, headers: list[Headers] | None) -> None:
        self.messages = messages
        self.headers = [pairs for pairs, _ in headers or ()]
        sizes = [*map(len, messages)]
        if wanted.key:
            sizes = [size + len(message.key() or b"") for size, message in zip(sizes, messages, strict=True)]
        if headers is not None:
            sizes = [size + counted for size, (_, counted) in zip(sizes, headers, strict=True)]
        self.too_large: Mapping[int, int | None] = (
            {index: size for index, size in enumerate(sizes) if size > wanted.record_bytes_max}
            if max(sizes) > wanted.record_bytes_max
            else {}
        )

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def odd_headers(self) -> Mapping[int, str]:
        return {index: _NO_TEXT for index, found in enumerate(self.headers) if found is None}

    @property
    def values(self) -> Values:
        return self._cut([message.value() for message in self.messages])

    def column(self, field: pa.Field) -> pa.Array:
        messages = self.messages
        values: Sequence[Any]
        match field.name:
            case "topic" | "partition":
                # All messages of a range share them.
                value = messages[0].topic() if field.name == "topic" else messages[0].partition()
                return pa.repeat(pa.scalar(value, field.type), len(messages))
            case "offset":
                values = [message.offset() for message in messages]
            case "timestamp":
                # Kafka keeps milliseconds.
                stamps = [message.timestamp() for message in messages]
                values = [None if kind == TIMESTAMP_NOT_AVAILABLE else ms for kind, ms in stamps]
                return record_timestamps(pa.array(values, pa.timestamp("ms", "UTC")), field.type)
            case "key":
                values = self._cut([message.key() for message in messages])
            case "value":
                values = self.values
            case "headers":
                return self._told(field.type)
            case _:
                raise KeyError(field.name)
        return pa.array(values, field.type)

    def _told(self, kind: pa.DataType) -> pa.Array:
        # Where there are none, not null: Spark 4.2 takes quadratic time to hand a column of null lists to Python.
        each = [() if at in self.too_large else pairs for at, pairs in enumerate(self.headers)]
        ends = [*accumulate((len(pairs or ()) for pairs in each), initial=0)]
        inside = kind.value_type
        parts = [pa.array([pair[at] for pairs in each for pair in pairs or ()], inside[at].type) for at in (0, 1)]
        found = pa.StructArray.from_arrays(parts, fields=[inside[0], inside[1]])
        unread = pa.array([pairs is None for pairs in each], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), found, type=kind, mask=unread)

    def _cut(self, texts: list[bytes | None]) -> list[bytes | None]:
        for index in self.too_large:
            text = texts[index]
            texts[index] = None if text is None else text[:LETTER_BYTES_MAX]
        return texts


@dataclass(frozen=True)
class CompressedRecord:
    """A record that librdkafka cannot unpack within receive.message.max.bytes: only its position is known."""

    of: OffsetRange
    offset: int

    def __len__(self) -> int:
        return 1

    @property
    def too_large(self) -> Mapping[int, int | None]:
        return {0: None}

    @property
    def odd_headers(self) -> Mapping[int, str]:
        return {}

    @property
    def values(self) -> Values:
        return [None]

    def column(self, field: pa.Field) -> pa.Array:
        known = {"topic": self.of.topic, "partition": self.of.partition, "offset": self.offset, "headers": []}
        return pa.array([known.get(field.name)], field.type)


def bytes_of(pairs: Pairs | None) -> int:
    """What they count."""
    if not pairs:
        return 0
    found = HEADER_BYTES * len(pairs)
    for name, value in pairs:
        found += (len(name) if name.isascii() else len(name.encode())) + len(value or b"")
    return found


def headers_of(message: Message) -> Pairs | None:
    """None where they cannot be read. A message is asked only once: the second answer is a list with a hole."""
    try:
        headers: Any = _asked(message)
    except (SystemError, UnicodeDecodeError):  # of a name that cannot be decoded the former, by version
        return None
    return list(headers.items()) if isinstance(headers, dict) else headers or []
