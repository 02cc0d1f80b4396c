"""Arrow arrays over the buffers that the compiled helper fills."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onefold.sources.formats.value_range import record_timestamps
from onefold.sources.formats.values import Lines, Values
from onefold.sources.kafka.fetching.fetched_records import WantedFields
from onefold.sources.kafka.native.library import Buffers, Gathered
from onefold.sources.kafka.offset_range import OffsetRange

__all__ = ["ArrowRecords", "BatchBuffers"]

_REFUSED = "librdkafka refuses to read its headers: they are more than 100,000, or damaged. Read it without headers"


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
