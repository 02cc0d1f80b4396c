"""The ids of mode="incremental": how they are compared in the table, and what is missing between them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.columns import KeyColumn
from onefold.core.errors import BadRecord, SchemaMismatch

__all__ = ["Ids"]

_ENCODINGS = ("integer", "string", "bytes", "timestamp")  # of which byte order is the values' order, for ever


@dataclass(frozen=True, slots=True)
class Ids:
    """`is_dense`: they are integers, and within a row each is one more than the one before."""

    column: KeyColumn
    is_dense: bool

    @classmethod
    def bound(cls, name: str, is_dense: bool, schema: pa.Schema) -> Ids:
        """Raises SchemaMismatch."""
        if name not in schema.names:
            raise SchemaMismatch(f"id= names {name!r}, and the rows have {', '.join(schema.names)}")
        kind = schema.field(name).type
        if is_dense and not pa.types.is_integer(kind):
            raise SchemaMismatch(f"dense_ids=True counts what is missing between integers, and {name!r} is {kind}")
        column = KeyColumn(name).bound(kind)
        if column.encoding not in _ENCODINGS:
            raise SchemaMismatch(f"id= names {name!r}, which is {kind}: ids are integers, texts, bytes or timestamps")
        return cls(column, is_dense)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Of each row, so that byte order is the ids' order. Raises BadRecord."""
        ids = self.column.encode(rows.column(self.column.name))
        if ids.null_count or pc.any(pc.equal(ids, b"")).as_py():
            raise BadRecord(
                f"a row has no {self.column.name!r}, by which is told whether it was applied before: it must be neither"
                " null nor empty. Filter such rows before the sink, or mend them"
            )
        return ids

    def missing(
        self, stored: pa.BinaryArray, lowest: pa.BinaryArray, highest: pa.BinaryArray, count: pa.Int64Array
    ) -> pa.Int64Array:
        """How many ids there are between the stored one, or the lowest, and the highest, that none of `count` had."""
        before = pc.coalesce(self._numbers(stored), pc.subtract(self._numbers(lowest), 1))
        return pc.subtract(pc.subtract(self._numbers(highest), before), count)

    def _numbers(self, ids: pa.BinaryArray) -> pa.Int64Array:
        return self.column.decode(ids).cast(pa.int64())
