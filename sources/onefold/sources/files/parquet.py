"""Columns of Parquet files, as those of the source."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.sources.files.listing import Folder
from onefold.sources.formats.value_range import YEAR_OUT_OF_RANGE, has_year_out_of_range

__all__ = ["as_columns", "columns_of"]


def columns_of(folder: Folder, name: str) -> pa.Schema:
    """The columns of a file, as a schema of Spark's types has them."""
    with folder.opened(name) as opened, folder.decoding(name, "Parquet"):
        found = pq.read_schema(opened)
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in found])


def as_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A file's rows with exactly this schema: a column that the file lacks is null.

    Raises ArrowInvalid for values that are not of their column's type, and for a null where none may be.
    """
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        arrays.append(array if array.type == field.type else array.cast(field.type))
        if has_year_out_of_range(arrays[-1]):
            raise pa.ArrowInvalid(f"the column {field.name!r} has {YEAR_OUT_OF_RANGE}")
        if not field.nullable and arrays[-1].null_count:
            raise pa.ArrowInvalid(f"the column {field.name!r} has nulls, and the schema says NOT NULL")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) else kind
