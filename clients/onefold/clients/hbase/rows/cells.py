"""Rows as they go to a table, column by column, and as they were read from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Columns = Sequence[tuple[bytes, bytes]]  # family, qualifier
KEY_BYTES_MAX = 32_767  # HBase's own: Short.MAX_VALUE


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of many rows: a value for each row key. A row whose value is null gets no cell."""

    family: bytes
    qualifier: bytes
    values: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class Rows:
    """For each column asked for, the newest value and its timestamp in ms, null where there is no cell."""

    keys: pa.BinaryArray
    values: list[pa.BinaryArray]
    timestamps: list[pa.Int64Array]

    @classmethod
    def concatenated(cls, parts: Sequence[Rows], columns: int) -> Rows:
        none = ([pa.array([], pa.binary())], [pa.array([], pa.int64())])
        return cls(
            pa.concat_arrays([part.keys for part in parts] or none[0]),
            [pa.concat_arrays([part.values[at] for part in parts] or none[0]) for at in range(columns)],
            [pa.concat_arrays([part.timestamps[at] for part in parts] or none[1]) for at in range(columns)],
        )

    @property
    def bytes(self) -> int:
        return int(self.keys.nbytes) + sum(int(values.nbytes) for values in self.values)


def rows_of(keys: pa.BinaryArray, found: Sequence[Any], columns: Columns) -> Rows:
    """Makes Rows of one TResult for each key."""
    places = {column: place for place, column in enumerate(columns)}
    values: list[list[bytes | None]] = [[None] * len(found) for _ in columns]
    stamps: list[list[int | None]] = [[None] * len(found) for _ in columns]
    for at, row in enumerate(found):
        for cell in row.columnValues:
            place = places[cell.family, cell.qualifier]
            values[place][at], stamps[place][at] = cell.value, cell.timestamp
    return Rows(
        keys, [pa.array(value, pa.binary()) for value in values], [pa.array(stamp, pa.int64()) for stamp in stamps]
    )
