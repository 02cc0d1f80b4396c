"""Spans of time by key: those of a key that overlap or touch are one session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.logics.windows.window_logic import Numbers, us_of

_WIDE = 2**62


def is_of_keys(rows: pa.RecordBatch | pa.Table, keys: pa.RecordBatch, width: int) -> pa.BooleanArray:
    """Which rows may have a key that is in `keys`: not those with a value in it which none of these has. The first
    `width` columns of both are the key."""
    found = pa.array(np.ones(len(rows), bool))
    for at in range(width):
        if pa.types.is_decimal32(keys.column(at).type) or pa.types.is_decimal64(keys.column(at).type):
            continue  # Arrow does not look these up
        found = pc.and_(found, pc.is_in(rows.column(at), value_set=keys.column(at)))
    return found


def key_numbers(keys: Sequence[pa.Array], count: int) -> Numbers:
    """A number under `count` for each of so many rows: the same for rows of one key."""
    found: Numbers = np.zeros(count, np.int64)
    for at, column in enumerate(keys):
        codes, size = _coded(column)
        found = codes if at == 0 else _coded(pa.array(found * size + codes))[0]
    return found


def keys_of_both(rows: pa.RecordBatch, others: pa.RecordBatch, width: int) -> Numbers:
    """The numbers of the keys of both, the others' behind the rows'. The first `width` columns of both are the key."""
    keys = [pa.concat_arrays([rows.column(at), others.column(at)]) for at in range(width)]
    return key_numbers(keys, len(rows) + len(others))


def sessions_of(keys: Sequence[pa.Array], starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """The session of each span, by number; and the start of each session."""
    of_key = key_numbers(keys, len(starts))
    if not len(starts):
        return of_key, starts
    first, last, count = int(starts.min()), int(ends.max()), int(of_key.max()) + 1
    if (last - first + 1) * count < _WIDE:
        begins, reach, span = starts - first, ends - first, last - first + 1
    else:  # of so many keys and times that their order has to do
        known = np.unique([starts, ends])
        begins, reach, span = np.searchsorted(known, starts), np.searchsorted(known, ends), len(known)
    begins, reach = of_key * span + begins, of_key * span + reach
    order = np.argsort(begins)
    is_new = np.ones(len(order), bool)
    is_new[1:] = begins[order[1:]] > np.maximum.accumulate(reach[order])[:-1]  # the end of all before it
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return numbers, starts[order[is_new]]


def joined(rows: pa.RecordBatch, width: int) -> tuple[pa.RecordBatch, Numbers]:
    """Each row with the start of its session in the place of its own; and the session's number. Behind `width` columns
    of the key they have the start and the end of their span."""
    own, ends = rows.column(width), rows.column(width + 1)
    numbers, starts = sessions_of(rows.columns[:width], us_of(own), us_of(ends))
    return rows.set_column(width, rows.schema.field(width), pa.array(starts[numbers]).view(own.type)), numbers


def newest_of(rows: pa.RecordBatch, width: int) -> Numbers:
    """The place of the last one of those that touch, of each session; ascending."""
    spans = joined(rows, width)[1]
    found = np.zeros(spans.max(initial=-1) + 1, np.int64)
    np.maximum.at(found, spans, np.arange(len(rows)))
    return np.sort(found)


def holders(sessions: pa.RecordBatch, rows: pa.RecordBatch, width: int) -> Numbers:
    """The place of the session that has the span of each row, or -1. No two of the sessions touch, and no row reaches
    beyond the one that has it."""
    *keys, starts, ends = [pa.concat_arrays([sessions.column(at), rows.column(at)]) for at in range(width + 2)]
    numbers, _ = sessions_of(keys, us_of(starts), us_of(ends))
    places = np.full(len(numbers), -1, np.int64)
    places[numbers[: len(sessions)]] = np.arange(len(sessions))
    found: Numbers = places[numbers[len(sessions) :]]
    return found


def _coded(column: pa.Array) -> tuple[Numbers, int]:
    """A number for each value, the same for equal ones; and how many there are."""
    kind = column.type
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        column = column.cast(pa.decimal128(kind.precision, kind.scale))  # Arrow does not look the others up
    coded = column.dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy().astype(np.int64), len(coded.dictionary)
