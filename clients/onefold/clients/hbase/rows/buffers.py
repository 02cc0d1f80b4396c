"""Binary Arrow arrays as numpy sees them: whole columns of bytes, without a Python object for any value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def _crc32_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_CRC32 = _crc32_table()


def from_fixed(matrix: Bytes, like: pa.Array) -> pa.BinaryArray:
    """The rows of a matrix as values of equal length; null where `like` is."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{count} rows at once are more than Arrow's 2 GiB a column: use smaller batches")
    validity = like.is_valid().buffers()[1] if like.null_count else None
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def lengths(array: pa.BinaryArray) -> Places:
    """The length of each value. No value may be null."""
    return np.diff(_parts(array)[0])


def to_fixed(array: pa.BinaryArray, width: int) -> Bytes:
    """A matrix with a row for each value, zeros for null. Raises ValueError for a value of another length."""
    there = array.drop_null()
    if len(other := there.filter(pc.not_equal(pc.binary_length(there), width))):
        raise ValueError(f"{other[0].as_py()!r}, which is not {width} bytes long")
    offsets, data = _parts(there)
    matrix = data[offsets[0] : offsets[-1]].reshape(len(there), width)
    if not array.null_count:
        return matrix
    whole = np.zeros((len(array), width), dtype=np.uint8)
    whole[array.is_valid().to_numpy(zero_copy_only=False)] = matrix
    return whole


def sliced(array: pa.BinaryArray, starts: Places, ends: Places) -> pa.BinaryArray:
    """The bytes of each value from its start to its end. No value may be null."""
    offsets, data = _parts(array)
    sizes = ends - starts
    targets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    index = np.repeat(offsets[:-1] + starts - targets[:-1], sizes) + np.arange(targets[-1])
    buffers = [None, pa.py_buffer(targets.astype(np.int32)), pa.py_buffer(data[index])]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def crc32(array: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """The CRC-32 (zlib's, and Java's) of each value, none of which may be null."""
    offsets, data = _parts(array)
    sizes = np.diff(offsets)
    sums = np.full(len(array), 0xFFFFFFFF, dtype=np.uint32)
    place = 0
    longer = np.flatnonzero(sizes > 0)
    while longer.size:  # once for each byte of the longest value, over all that are so long
        now = sums[longer]
        sums[longer] = _CRC32[(now ^ data[offsets[longer] + place]) & 0xFF] ^ (now >> 8)
        place += 1
        longer = longer[sizes[longer] > place]
    return sums ^ np.uint32(0xFFFFFFFF)


def _parts(array: pa.BinaryArray) -> tuple[Places, Bytes]:
    """The offsets of the values, and the bytes of all of them."""
    if not len(array):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return places.astype(np.int64), np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
