"""The rows of each key of a batch, as a processor or a function gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import compress, islice
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.flow.processing.rows import columns_of

ROWS_MIN = 100  # which Arrow groups sooner than Python does

Key = tuple[Any, ...]
Numbers = np.ndarray[Any, Any]
Made = Callable[[tuple[Any, ...]], Any]


def by_key(
    batch: pa.RecordBatch, key: tuple[str, ...], made: Made | None = None
) -> tuple[Iterator[Key], Iterator[list[Any]]]:
    """The keys in the order in which they come, and for each a list of its rows in theirs: tuples, or what `made` makes
    of these. Raises as `values_of` does, before the first."""
    kinds = [batch.schema.field(name).type for name in key]
    if batch.num_rows < ROWS_MIN or not all(map(_is_counted, kinds)):
        keys, rows = _tuples(columns_of(batch), batch, key, made)
        found: dict[Key, list[Any]] = {}
        for of, row in zip(keys, rows, strict=True):
            found.setdefault(of, []).append(row)
        return iter(found), iter(found.values())
    numbers, count = _numbered(batch, key)
    if count == batch.num_rows:
        keys, rows = _tuples(columns_of(batch), batch, key, made)
        return keys, map(list, zip(rows))
    counts = np.bincount(numbers)
    try:
        columns = columns_of(batch.take(pa.array(_order(numbers, count))))
    except BadRecord:
        columns_of(batch)  # so that the first of them in the batch's own order is told
        raise
    keys, rows = _tuples(columns, batch, key, made)
    starts = np.zeros(len(numbers), bool)
    starts[np.cumsum(counts) - counts] = True
    return compress(keys, starts.tolist()), _lists(rows, counts.tolist())


def _tuples(
    columns: list[list[Any]], batch: pa.RecordBatch, key: tuple[str, ...], made: Made | None
) -> tuple[Iterator[Key], Iterator[Any]]:
    """Each row's key, and the row."""
    keys = zip(*(columns[batch.schema.get_field_index(name)] for name in key), strict=True)
    rows = zip(*columns, strict=True)
    return keys, rows if made is None else map(made, rows)


def _lists(rows: Iterator[Any], counts: Iterable[int]) -> Iterator[list[Any]]:
    for count in counts:
        yield [next(rows)] if count == 1 else [*islice(rows, count)]


def _order(numbers: Numbers, count: int) -> Numbers:
    """The rows' places, by the numbers of their keys; NumPy sorts short integers without comparing them."""
    return np.argsort(numbers.astype(np.uint16) if count <= 1 << 16 else numbers, kind="stable")


def _is_counted(kind: pa.DataType) -> bool:
    """Whether Arrow tells apart what Python does: dates of milliseconds may be of one day, and it does not count short
    decimals."""
    return not pa.types.is_date64(kind) and not (pa.types.is_decimal(kind) and kind.bit_width < 128)


def _numbered(batch: pa.RecordBatch, key: tuple[str, ...]) -> tuple[Numbers, int]:
    """The number of each row's key, which are counted as they come; and how many there are."""
    numbers, count = _numbered_values(batch.column(key[0]))
    for name in key[1:]:
        further, different = _numbered_values(batch.column(name))
        numbers, count = _numbered_values(pa.array(numbers.astype(np.int64) * different + further))
    return numbers, count


def _numbered_values(column: pa.Array) -> tuple[Numbers, int]:
    found = column.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy(), len(found.dictionary)
