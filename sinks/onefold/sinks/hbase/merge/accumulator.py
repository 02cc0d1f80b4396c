"""Folds the rows of one task as they come, so that memory grows with their keys and not with their number."""

from __future__ import annotations

import pyarrow as pa

from onefold.sinks.hbase.merge.aggregates import RowMerge

__all__ = ["BYTES_MAX", "Accumulator"]

BYTES_MAX = 64 << 20


class Accumulator:
    """Folds when the rows that wait exceed `bytes_max` and the size of what is folded already."""

    def __init__(self, aggregate: RowMerge, bytes_max: int = BYTES_MAX) -> None:
        self._aggregate, self._bytes_max = aggregate, bytes_max
        self._keys: list[pa.BinaryArray] = []
        self._partials: list[pa.RecordBatch] = []
        self._waiting = self._folded = 0  # bytes

    @property
    def bytes(self) -> int:
        return self._waiting + self._folded

    def add(self, keys: pa.BinaryArray, rows: pa.RecordBatch) -> None:
        """Adds rows. Raises BadRecord for a row that cannot be ordered among the others."""
        partials = self._aggregate.lift(rows)
        self._keys.append(keys)
        self._partials.append(partials)
        self._waiting += keys.nbytes + partials.nbytes
        if self._waiting > max(self._bytes_max, self._folded):  # so a row is folded again a few times at most
            self.folded()

    def folded(self) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        """Folds, and returns each key once. Call it after at least one `add`; more may follow."""
        if self._waiting:
            keys, partials = self._aggregate.fold(pa.concat_arrays(self._keys), pa.concat_batches(self._partials))
            self._keys, self._partials = [keys], [partials]
            self._waiting, self._folded = 0, keys.nbytes + partials.nbytes
        return self._keys[0], self._partials[0]
