"""Sums of windows that overlap, each made of the one before: with the slices that come in, less those that go out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from onefold.engine.logics.reducing import PENDING_ROWS_MAX
from onefold.engine.logics.windows.spans import key_numbers
from onefold.engine.logics.windows.window_logic import Numbers, us_of


def running_sums(
    rows: pa.RecordBatch, width: int, size_us: int, ends: Sequence[int]
) -> Iterator[pa.RecordBatch] | None:
    """The sums of the windows that end there, ascending: rows with a window's start in the place of their slices'.

    `rows` are all those of the slices of these windows, slice after slice: the first `width` columns are their key, and
    those behind the slice what is summed. None where sums may not be exact so, which are those of floats, nulls and
    numbers near the bounds.
    """
    units = [_units(values) for values in rows.columns[width + 1 :]]
    summed = [each for each in units if each is not None]
    return _sums(rows, summed, width, size_us, ends) if len(summed) == len(units) else None


def _sums(
    rows: pa.RecordBatch, units: Sequence[Numbers], width: int, size_us: int, ends: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    slices, numbers = us_of(rows.column(width)), key_numbers(rows.columns[:width], len(rows))
    places = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    places[numbers] = np.arange(len(rows))
    keys = [column.take(pa.array(places)) for column in rows.columns[:width]]
    counts, *totals = [np.zeros(len(places), np.int64) for _ in range(1 + len(units))]
    came = went = count = 0
    found: list[tuple[Numbers, list[Numbers]]] = []
    for end in ends:
        come, go = (int(at) for at in np.searchsorted(slices, [end, end - size_us]))
        coming, going = numbers[came:come], numbers[went:go]
        np.add.at(counts, coming, 1)
        np.subtract.at(counts, going, 1)
        for total, column in zip(totals, units, strict=True):
            np.add.at(total, coming, column[came:come])
            np.subtract.at(total, going, column[went:go])
        came, went = come, go
        here = np.flatnonzero(counts)
        found.append((here, [np.full(len(here), end - size_us), *(total[here] for total in totals)]))
        count += len(here)
        if count > PENDING_ROWS_MAX or end == ends[-1]:
            of_key = pa.array(np.concatenate([here for here, _ in found]))
            made = [np.concatenate(parts) for parts in zip(*(sums for _, sums in found), strict=True)]
            values = map(_values, made, [field.type for field in rows.schema][width:])
            yield pa.RecordBatch.from_arrays([*(key.take(of_key) for key in keys), *values], schema=rows.schema)
            found, count = [], 0


def _units(values: pa.Array) -> Numbers | None:
    """The values as whole numbers, any of which 64 bits and the type can sum; None where there are none."""
    kind = values.type
    if values.null_count or not (kind == pa.int64() or pa.types.is_decimal128(kind)):
        return None
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, kind.bit_width // 64)
    words = words[values.offset : values.offset + len(values)]
    units, most = words[:, 0], 2**63 if kind == pa.int64() else min(2**63, 10**kind.precision)
    if (words[:, 1:] != units[:, None] >> 63).any():
        return None
    largest = max(int(units.max(initial=0)), -int(units.min(initial=0)))
    return units if largest * len(units) < most else None


def _values(units: Numbers, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal128(kind):
        return pa.array(units).view(kind)
    return pa.Array.from_buffers(kind, len(units), [None, pa.py_buffer(np.stack([units, units >> 63], axis=1))])
