"""One number for a row's content, the same on both sides of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

__all__ = ["fingerprint"]


def fingerprint(fields: Sequence[StructField]) -> Column:
    return F.xxhash64(*(_hashable(F.col(f"`{field.name}`"), field.dataType) for field in fields))


def _hashable(column: Column, kind: DataType) -> Column:
    """A struct that Spark hashes to different values for different ones of `column`.

    Spark's hash passes over nulls and over the seams between elements, so that (null, 1) and (1, null), or [[1], [2]]
    and [[1, 2]], would be the same without the flags and sizes; and it refuses maps.
    """
    inner = column
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        # Sorted by hash: not every kind of value has an order.
        hashes = F.transform(F.map_entries(column), lambda item: F.xxhash64(_hashable(item, entry)))
        inner = F.struct(F.size(column), F.array_sort(hashes))
    elif isinstance(kind, ArrayType):
        inner = F.struct(F.size(column), F.transform(column, lambda item: _hashable(item, kind.elementType)))
    elif isinstance(kind, StructType):
        inner = F.struct(*(_hashable(column.getField(f.name), f.dataType) for f in kind.fields))
    return F.struct(F.isnull(column), inner)
