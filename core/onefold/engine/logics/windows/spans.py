"""Spans of time by key: those of a key that overlap or touch are one session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.logics.windows.window_logic import Numbers, us_of

__all__ = ["holders", "is_of_keys", "joined", "key_numbers", "sessions_of"]

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
    """A number for each of `count` rows: the same for rows of one key."""
    found: Numbers = np.zeros(count, np.int64)
    if keys and count:
        names = [str(at) for at in range(len(keys))]
        table = pa.Table.from_arrays([*keys, pa.array(np.arange(count))], [*names, "place"])
        grouped = table.group_by(names, use_threads=False).aggregate([("place", "list")])
        places = grouped.column("place_list").combine_chunks()
        lengths = np.diff(places.offsets.to_numpy())
        found[places.values.to_numpy()] = np.repeat(np.arange(len(places)), lengths)
    return found


def sessions_of(keys: Sequence[pa.Array], starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """The session of each span, by number; and the start of each session."""
    of_key = key_numbers(keys, len(starts))
    order = np.lexsort((starts, of_key))
    of_key, starts, ends = of_key[order], starts[order], ends[order]
    is_new = np.ones(len(order), bool)
    if len(order):
        begins, reach, span = starts - ends.min(), ends - ends.min(), int(ends.max()) - int(ends.min()) + 1
        if span * (int(of_key[-1]) + 1) >= _WIDE:  # of so many keys and times that their order has to do
            known = np.unique(ends)
            begins, reach, span = np.searchsorted(known, starts), np.searchsorted(known, ends), len(known)
        reach = np.maximum.accumulate(of_key * span + reach) - of_key * span  # the end of all before it, of its key
        is_new[1:] = (of_key[1:] != of_key[:-1]) | (begins[1:] > reach[:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return numbers, starts[is_new]


def joined(rows: pa.RecordBatch, width: int) -> tuple[pa.RecordBatch, Numbers]:
    """Each row with the start of its session in the place of its own; and the session's number. Behind `width` columns
    of the key they have the start and the end of their span."""
    own, ends = rows.column(width), rows.column(width + 1)
    numbers, starts = sessions_of(rows.columns[:width], us_of(own), us_of(ends))
    return rows.set_column(width, rows.schema.field(width), pa.array(starts[numbers]).cast(own.type)), numbers


def holders(sessions: pa.RecordBatch, rows: pa.RecordBatch, width: int) -> Numbers:
    """The place of the session that has the span of each row, or -1. No two of the sessions touch, and no row reaches
    beyond the one that has it."""
    *keys, starts, ends = [pa.concat_arrays([sessions.column(at), rows.column(at)]) for at in range(width + 2)]
    numbers, _ = sessions_of(keys, us_of(starts), us_of(ends))
    places = np.full(len(numbers), -1, np.int64)
    places[numbers[: len(sessions)]] = np.arange(len(sessions))
    found: Numbers = places[numbers[len(sessions) :]]
    return found
