"""The rows of one task, folded as they come: what they take up grows with their keys, not with their number."""

from __future__ import annotations

import pyarrow as pa

from onefold.sinks.hbase.merge.aggregates import Aggregate

__all__ = ["BYTES_MAX", "Accumulator"]

BYTES_MAX = 64 << 20


class Accumulator:
    """Holds `bytes_max` of rows beside what is folded, or as much again as that, whichever is more."""

    def __init__(self, aggregate: Aggregate, bytes_max: int = BYTES_MAX) -> None:
        self._aggregate, self._bytes_max = aggregate, bytes_max
        self._keys: list[pa.BinaryArray] = []
        self._partials: list[pa.RecordBatch] = []
        self._waiting = self._folded = 0  # bytes

    @property
    def bytes(self) -> int:
        return self._waiting + self._folded

    def add(self, keys: pa.BinaryArray, rows: pa.RecordBatch) -> None:
        """Raises BadRecord for a row that has no place among the others."""
        partials = self._aggregate.lift(rows)
        self._keys.append(keys)
        self._partials.append(partials)
        self._waiting += keys.nbytes + partials.nbytes
        if self._waiting > max(self._bytes_max, self._folded):  # so a row is folded again a few times at most
            self.folded()

    def folded(self) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        """Each key once. After at least one `add`; more may follow."""
        if self._waiting:
            keys, partials = self._aggregate.fold(pa.concat_arrays(self._keys), pa.concat_batches(self._partials))
            self._keys, self._partials = [keys], [partials]
            self._waiting, self._folded = 0, keys.nbytes + partials.nbytes
        return self._keys[0], self._partials[0]
