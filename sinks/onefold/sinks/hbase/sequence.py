"""The sequence column of mode="incremental": its encoding in the table, and the gaps between its values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.column_encoder import KeyColumn
from onefold.core.errors import BadRecord, SchemaMismatch

__all__ = ["SequenceColumn"]

_ENCODINGS = ("integer", "string", "bytes", "timestamp")  # whose byte order is the order of values


@dataclass(frozen=True, slots=True)
class SequenceColumn:
    """`is_dense`: the values are integers, and within a row each is one more than the one before."""

    column: KeyColumn
    is_dense: bool

    @classmethod
    def bound(cls, name: str, is_dense: bool, schema: pa.Schema) -> SequenceColumn:
        """Raises SchemaMismatch."""
        if name not in schema.names:
            raise SchemaMismatch(
                "column-missing", f"sequence= names {name!r}, and the rows have {', '.join(schema.names)}"
            )
        kind = schema.field(name).type
        if is_dense and not pa.types.is_integer(kind):
            raise SchemaMismatch(
                "column-type", f"dense_sequence=True counts the gaps between integers, and {name!r} is {kind}"
            )
        column = KeyColumn(name).bound(kind)
        if column.encoding not in _ENCODINGS:
            raise SchemaMismatch(
                "column-type",
                f"sequence= names {name!r}, which is {kind}: it must be integers, texts, bytes or timestamps",
            )
        return cls(column, is_dense)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The value of each row, as bytes in the same order. Raises BadRecord."""
        ids = self.column.encode(rows.column(self.column.name))
        if ids.null_count or pc.any(pc.equal(ids, b"")).as_py():
            raise BadRecord(
                "sequence-null",
                f"a row has no {self.column.name!r}, which tells whether the row was applied before: give it a value,"
                " or filter such rows before the sink",
            )
        return ids

    def missing(
        self, stored: pa.BinaryArray, lowest: pa.BinaryArray, highest: pa.BinaryArray, count: pa.Int64Array
    ) -> pa.Int64Array:
        """How many values are missing from the stored one, or from the lowest, up to the highest; `count` came."""
        before = pc.coalesce(self._numbers(stored), pc.subtract(self._numbers(lowest), 1))
        return pc.subtract(pc.subtract(self._numbers(highest), before), count)

    def _numbers(self, ids: pa.BinaryArray) -> pa.Int64Array:
        return self.column.decode(ids).cast(pa.int64())
