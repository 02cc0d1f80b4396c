"""How large rows are, by their values."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.exact.kinds import Family, family, is_encoded

Sizes: TypeAlias = np.ndarray[Any, Any]


def row_bytes(batch: pa.RecordBatch) -> Sizes:
    """How many bytes each row has: of its values alone, whatever buffers they happen to be in. Never more, all rows
    together, than the batch's `nbytes`. What is encoded (dictionaries, run ends) counts for nothing."""
    return _sum(batch.columns, batch.num_rows)


def _sum(columns: list[pa.Array], rows: int) -> Sizes:
    return reduce(np.add, map(_sizes, columns), np.zeros(rows, np.int64))


def _sizes(column: pa.Array) -> Sizes:
    kind = column.type
    if is_encoded(kind):
        return np.zeros(len(column), np.int64)
    match family(kind):
        case Family.TEXT | Family.BINARY:
            return _numbers(pc.binary_length(column))
        case Family.STRUCT:
            return _sum(column.flatten(), len(column))
        case Family.MAP:
            return _sizes(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
        case Family.LIST:
            ends = np.cumsum(_numbers(pc.list_value_length(column)))
            within = np.concatenate(([0], np.cumsum(_sizes(column.flatten()))))[ends]
            return np.diff(within, prepend=0)
        case Family.NULL | Family.BOOLEAN | Family.OTHER:
            return np.zeros(len(column), np.int64)
        case _:
            return np.full(len(column), kind.bit_width // 8, np.int64)


def _numbers(lengths: pa.Array) -> Sizes:
    found: Sizes = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
