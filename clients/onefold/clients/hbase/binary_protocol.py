"""Requests in Thrift's strict binary protocol, built from Arrow's buffers without a Python object for each cell.

Every function returns one binary value a row: a struct of the interface, encoded. Values of neighbouring rows lie
side by side in one buffer, so a request for rows i to j is a head and a slice of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.cells import Cells, Columns

_STRING, _LIST, _STRUCT, _I64, _I32 = 11, 15, 12, 10, 8
_STOP = b"\0"
_DELETE_COLUMNS = 1
_NUMBERS = pa.binary(4)


def puts(keys: pa.BinaryArray, cells: Sequence[Cells], timestamp_ms: int | None) -> pa.BinaryArray:
    """TPut. Cells without a timestamp get the region server's clock."""
    parts: list[pa.Array | bytes] = [_field(_STRING, 1), _lengths(keys), keys, _field(_LIST, 2) + bytes([_STRUCT])]
    parts.append(_counts(len(keys), cells))
    for column in cells:
        head = _field(_STRING, 1) + _text(column.family) + _field(_STRING, 2) + _text(column.qualifier)
        head += _field(_STRING, 3)
        parts += _present(column.values, head, _STOP)
    parts.append((b"" if timestamp_ms is None else _field(_I64, 3) + struct.pack(">q", timestamp_ms)) + _STOP)
    return _joined(parts)


def gets(keys: pa.BinaryArray, columns: Columns) -> pa.BinaryArray:
    """TGet, of the newest values."""
    wanted = b"".join(_column(family, qualifier) + _STOP for family, qualifier in columns)
    tail = _field(_LIST, 2) + _list(len(columns)) + wanted + _STOP
    return _joined([_field(_STRING, 1), _lengths(keys), keys, tail])


def deletes(keys: pa.BinaryArray, columns: Columns, timestamp_ms: int) -> pa.BinaryArray:
    """TDelete of all versions up to the timestamp. It is on each column, since that of the struct would be ignored."""
    stamp = _field(_I64, 3) + struct.pack(">q", timestamp_ms) + _STOP
    wanted = b"".join(_column(family, qualifier) + stamp for family, qualifier in columns)
    tail = _field(_LIST, 2) + _list(len(columns)) + wanted + _field(_I32, 4) + struct.pack(">i", _DELETE_COLUMNS)
    return _joined([_field(_STRING, 1), _lengths(keys), keys, tail + _STOP])


def checks(
    table: bytes,
    keys: pa.BinaryArray,
    guard: Cells,
    operator: int,
    values: pa.BinaryArray,
    cells: Sequence[Cells],
) -> pa.BinaryArray:
    """The arguments of one checkAndMutate a row: its cells are put if `values` compare so to guard's cell."""
    column = _field(_STRING, 3) + _text(guard.family) + _field(_STRING, 4) + _text(guard.qualifier)
    column += _field(_I32, 5) + struct.pack(">i", operator) + _field(_STRING, 6)
    row = [_lengths(keys), keys]
    parts: list[pa.Array | bytes] = [_field(_STRING, 1) + _text(table) + _field(_STRING, 2), *row, column]
    parts += [_lengths(values), values, _field(_STRUCT, 7) + _field(_STRING, 1), *row]
    parts += [_field(_LIST, 2) + _list(1) + _field(_STRUCT, 1), puts(keys, cells, None), _STOP + _STOP + _STOP]
    return _joined(parts)


def rows_head(table: bytes, rows: int) -> bytes:
    """What comes before the rows in the arguments of putMultiple, getMultiple, deleteMultiple; after them: STOP."""
    return _field(_STRING, 1) + _text(table) + _field(_LIST, 2) + _list(rows)


def bytes_of(keys: pa.BinaryArray, cells: Sequence[Cells]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How long each row's TPut is, at most, in either protocol; a conditional write has as much again for its check."""
    total = _sizes(keys) + 32
    for column in cells:
        here = np.asarray(pc.is_valid(column.values).cast(pa.int8()).to_numpy(zero_copy_only=False), np.int64)
        total += _sizes(column.values) + here * (len(column.family) + len(column.qualifier) + 22)
    return total


def cuts(sizes: np.ndarray[tuple[int], np.dtype[np.int64]], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows, as many as have room in `bytes_max`, or the one that has not."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        stop = max(int(np.searchsorted(ends, before + bytes_max, side="right")), start + 1)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def slice_of(rows: pa.BinaryArray, start: int = 0, stop: int | None = None) -> memoryview:
    """The bytes of consecutive values, which have no nulls among them."""
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset :]
    first, last = offsets[start], offsets[len(rows) if stop is None else stop]
    return memoryview(rows.buffers()[2] or b"")[first:last]


def _present(values: pa.BinaryArray, head: bytes, tail: bytes) -> list[pa.Array | bytes]:
    """A string between what says what it is; nothing at all where it is null."""
    if values.null_count == 0:
        return [head, _lengths(values), values, tail]
    here = values.is_valid()
    none = pa.scalar(b"", pa.binary())
    length = pc.if_else(here, _lengths(values), none)
    return [
        *(pc.if_else(here, pa.scalar(head, pa.binary()), none), length, pc.fill_null(values, b"")),
        pc.if_else(here, pa.scalar(tail, pa.binary()), none),
    ]


def _counts(rows: int, cells: Sequence[Cells]) -> pa.Array | bytes:
    if all(column.values.null_count == 0 for column in cells):
        return struct.pack(">i", len(cells))
    counts = np.zeros(rows, ">i4")
    for column in cells:
        counts += column.values.is_valid().to_numpy(zero_copy_only=False)
    return _numbers(counts)


def _lengths(values: pa.BinaryArray) -> pa.Array:
    return _numbers(_sizes(values).astype(">i4"))


def _sizes(values: pa.BinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64)


def _numbers(big_endian: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(_NUMBERS, len(big_endian), [None, pa.py_buffer(big_endian.tobytes())])
    return fixed.cast(pa.binary())


def _joined(parts: Sequence[pa.Array | bytes]) -> pa.BinaryArray:
    columns: list[pa.Array | pa.Scalar] = []
    fixed = b""
    for part in parts:
        if isinstance(part, bytes):
            fixed += part
            continue
        if fixed:
            columns.append(pa.scalar(fixed, pa.binary()))
        columns.append(part)
        fixed = b""
    return pc.binary_join_element_wise(*columns, pa.scalar(fixed, pa.binary()), pa.scalar(b"", pa.binary()))


def _field(kind: int, number: int) -> bytes:
    return struct.pack(">bh", kind, number)


def _list(count: int) -> bytes:
    return struct.pack(">bi", _STRUCT, count)


def _text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _column(family: bytes, qualifier: bytes) -> bytes:
    return _field(_STRING, 1) + _text(family) + _field(_STRING, 2) + _text(qualifier)
