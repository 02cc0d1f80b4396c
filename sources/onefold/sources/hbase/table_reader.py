"""Reads a part of a table as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.table import HBaseTable
from onefold.core.errors import BadRecord
from onefold.core.values.exact import Mismatch, exact_cast

__all__ = ["RegionPart", "read"]


@dataclass(frozen=True)
class RegionPart:
    """What one task reads: the rows from `start` to before `stop`, b"" for the end. Pickles."""

    settings: HBaseSettings
    mapping: TableMapping
    schema: pa.Schema
    start: bytes
    stop: bytes
    range_ms: tuple[int, int] | None
    deleted_as: str | None

    @property
    def label(self) -> str:
        until = f"{self.stop!r}" if self.stop else "the end"
        return f"reading table {self.mapping.table} of HBase from {self.start!r} to {until}"


def read(part: RegionPart) -> Iterator[pa.RecordBatch]:
    """Reads the rows of the part that have at least one of its cells, as batches of exactly its schema.

    Raises `BadRecord`, `Retriable`, `ConfigError`; batches that came before an error must not be used.
    """
    mapping = part.mapping
    marker = mapping.tombstone_column
    columns = mapping.cell_columns + ([] if marker is None else [(marker.family, marker.qualifier)])
    table = HBaseTable(part.settings, mapping.table)
    for rows in table.scan(part.start, part.stop, columns, part.range_ms):
        keys, values = rows.keys, list(rows.values)
        added = {}
        if marker is not None:
            living = mapping.living(values.pop())
            if part.deleted_as is None:
                keys, values = keys.filter(living), [array.filter(living) for array in values]
            else:
                added[part.deleted_as] = pc.invert(living)
        try:
            found = mapping.decode(keys, values)
            there = {name: found.column(name) for name in found.schema.names} | added
            # The mapping knows a decimal as it was written; the schema says as what it is read.
            arrays = [_as(there[field.name], field) for field in part.schema]
            yield pa.record_batch(arrays, schema=part.schema)
        except BadRecord as error:
            raise error.reworded(f"{part.label}: {error.message}") from error
        except ValueError as error:
            raise BadRecord("value-not-readable", f"{part.label}: {error}") from error


def _as(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return exact_cast(array, field.type)
    except Mismatch as error:
        raise ValueError(f"column {field.name}: {error}") from None
