"""Bounds for what rows of Parquet take in memory: a few bytes of a file may stand for many, by encoding.

A value that is in a dictionary once may be in each row. So texts of columns whose pages are indices are read as
dictionaries, which is the quicker way, too, and written out for so many rows at a time as fit the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

_ROWS = 64 << 10
_BATCH_BYTES = 128 << 20  # as the file has them
_PIECE_BYTES = 64 << 20  # written out
_INDEX_BYTES = 4  # of a value in a page, at most
_PACKED_INDEX_BYTES = 2
_HEADER_BYTES = 1 << 10  # of pages


def rows_max(metadata: pa.parquet.FileMetaData, groups: range) -> int:
    """How many rows are read at a time."""
    found = [metadata.row_group(group) for group in groups]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    return int(min(_ROWS, max(1, _BATCH_BYTES // max(row_bytes, 1))))


def read_as_dictionaries(
    metadata: pa.parquet.FileMetaData, groups: range, names: Sequence[str], there: pa.Schema
) -> list[str]:
    """Which columns of texts or bytes are nothing but indices of a dictionary in all these row groups."""
    wanted = {name for name in names if _is_bytes(there.field(name).type)}
    columns = [at for at in range(metadata.num_columns) if metadata.schema.column(at).path in wanted]
    return [
        metadata.schema.column(at).path
        for at in columns
        if all(_is_indices(metadata.row_group(group).column(at)) for group in groups)
    ]


def pieces_of(batch: pa.RecordBatch, row_bytes_max: int) -> Iterator[tuple[int, pa.RecordBatch, dict[int, str]]]:
    """A batch in parts that are no larger than the bound when they are written out: the first row of each, and which
    of its rows are too large, and why."""
    packed = [array for array in batch.columns if _is_packed(array)]
    if not packed and batch.nbytes <= row_bytes_max:
        yield 0, batch, {}
        return
    others = pa.RecordBatch.from_arrays(
        [array for array in batch.columns if not _is_packed(array)],
        names=[f"{at}" for at in range(batch.num_columns - len(packed))],
    )
    lengths = _lengths(packed, batch.num_rows, min(row_bytes_max, _PIECE_BYTES))
    ends = [*accumulate(lengths, initial=0)] if lengths is not None else None
    for start, end in pairwise(_cuts(lengths, batch.num_rows)):

        def size_of(first: int, last: int, start: int = start) -> int:
            first, last = start + first, start + last
            return (others.slice(first, last - first).nbytes if len(packed) < batch.num_columns else 0) + (
                0 if ends is None else ends[last] - ends[first]
            )

        yield start, batch.slice(start, end - start), dict(_too_large(size_of, 0, end - start, row_bytes_max))


def _lengths(packed: Sequence[pa.DictionaryArray], rows: int, enough: int) -> list[int] | None:
    """How many bytes each row has in columns that are read as dictionaries; None where all of them surely have no more
    than `enough`."""
    longest = [pc.max(pc.binary_length(array.dictionary)).as_py() or 0 for array in packed]
    if sum(longest) * rows <= enough:
        return None
    total = pa.array([0], pa.int64()).take(pa.array([0] * rows, pa.int64()))
    for array in packed:
        each = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
        total = pc.add(total, pc.fill_null(each, 0))
    lengths: list[int] = total.to_pylist()
    return lengths


def _cuts(lengths: Sequence[int] | None, rows: int) -> list[int]:
    if lengths is None:
        return [0, rows]
    cuts, size = [0], 0
    for row, length in enumerate(lengths):
        size += length
        if size > _PIECE_BYTES and row > cuts[-1]:
            cuts.append(row)
            size = length
    return [*cuts, rows]


def _too_large(size_of: Callable[[int, int], int], first: int, last: int, most: int) -> Iterator[tuple[int, str]]:
    """By halves."""
    size = size_of(first, last)
    if size <= most or first == last:
        return
    if last - first == 1:
        yield first, f"the row has {size} bytes, more than record_bytes_max={most}"
        return
    half = (first + last) // 2
    yield from _too_large(size_of, first, half, most)
    yield from _too_large(size_of, half, last, most)


def _is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_binary(kind) or is_.is_large_binary(kind))


def _is_packed(array: pa.Array) -> bool:
    return pa.types.is_dictionary(array.type) and _is_bytes(array.type.value_type)


def _is_indices(chunk: pa.parquet.ColumnChunkMetaData) -> bool:
    """Whether pages have few bytes a value beside the dictionary's own, of which only the packed size is known."""
    if {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}.isdisjoint(chunk.encodings):
        return False
    dictionary = max(0, chunk.data_page_offset - (chunk.dictionary_page_offset or chunk.data_page_offset))
    is_packed = chunk.total_compressed_size - dictionary <= _PACKED_INDEX_BYTES * chunk.num_values + _HEADER_BYTES
    return bool(is_packed or chunk.total_uncompressed_size <= _INDEX_BYTES * chunk.num_values)
