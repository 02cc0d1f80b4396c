"""The rows of each key of a batch, as a processor or a function gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.core.values.python_values import python_values
from onefold.flow.processing.rows import columns_of

__all__ = ["Key", "by_key"]

Key = tuple[Any, ...]
Numbers = np.ndarray[Any, Any]


def by_key(
    batch: pa.RecordBatch, key: tuple[str, ...], made: Callable[[tuple[Any, ...]], Any] | None = None
) -> tuple[Iterator[Key], Iterator[list[Any]]]:
    """The keys in the order in which they come, and for each a list of its rows in theirs: tuples, or what `made` makes
    of these. Both are made as they are asked for. Raises as `values_of` does, before the first."""
    numbers, count = _numbered(batch, key)
    first = counts = None
    ordered = batch
    if count < batch.num_rows:
        ordered = batch.take(pa.array(_order(numbers, count)))
        counts = np.bincount(numbers, minlength=count)
        first = (np.cumsum(counts) - counts).tolist()
    try:
        columns = columns_of(ordered)
    except BadRecord:
        columns_of(batch)  # so that the first of them in the batch's own order is told
        raise
    rows: Iterator[Any] = zip(*columns, strict=True)
    places = [columns[batch.schema.get_field_index(name)] for name in key]
    keys = zip(*(places if first is None else [[each[at] for at in first] for each in places]), strict=True)
    if made is not None:
        rows = map(made, rows)
    return keys, map(list, zip(rows)) if counts is None else _lists(rows, counts.tolist())


def _lists(rows: Iterator[Any], counts: Iterable[int]) -> Iterator[list[Any]]:
    for count in counts:
        yield [next(rows)] if count == 1 else [*islice(rows, count)]


def _order(numbers: Numbers, count: int) -> Numbers:
    """The rows' places, by the numbers of their keys; NumPy sorts short integers without comparing them."""
    return np.argsort(numbers.astype(np.uint16) if count <= 1 << 16 else numbers, kind="stable")


def _numbered(batch: pa.RecordBatch, key: tuple[str, ...]) -> tuple[Numbers, int]:
    """The number of each row's key, which are counted as they come; and how many there are."""
    numbers, count = _numbered_values(batch.column(key[0]))
    for name in key[1:]:
        further, different = _numbered_values(batch.column(name))
        numbers, count = _numbered_values(pa.array(numbers.astype(np.int64) * different + further))
    return numbers, count


def _numbered_values(column: pa.Array) -> tuple[Numbers, int]:
    if pa.types.is_date64(column.type) or (pa.types.is_decimal(column.type) and column.type.bit_width < 128):
        places: dict[Any, int] = {}  # different values of a date64 are one day, and Arrow counts no short decimals
        numbers = [places.setdefault(value, len(places)) for value in python_values(column)]
        return np.array(numbers, np.int32), len(places)
    found = column.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy(), len(found.dictionary)
