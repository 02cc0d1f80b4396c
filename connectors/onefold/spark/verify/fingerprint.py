"""One number for a row's content, the same on both sides of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from onefold.spark.runtime.dataframe_columns import column

__all__ = ["fingerprint"]


def fingerprint(fields: Sequence[StructField]) -> Column:
    return F.xxhash64(*(_hashable(column(field.name), field.dataType) for field in fields))


def _hashable(value: Column, kind: DataType) -> Column:
    """A struct that Spark hashes to different values for different ones of `value`.

    Spark's hash passes over nulls and over the seams between elements, so that (null, 1) and (1, null), or [[1], [2]]
    and [[1, 2]], would be the same without the flags and sizes; and it refuses maps.
    """
    inner = value
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        # Sorted by hash: not every kind of value has an order.
        hashes = F.transform(F.map_entries(value), lambda item: F.xxhash64(_hashable(item, entry)))
        inner = F.struct(F.size(value), F.array_sort(hashes))
    elif isinstance(kind, ArrayType):
        inner = F.struct(F.size(value), F.transform(value, lambda item: _hashable(item, kind.elementType)))
    elif isinstance(kind, StructType):
        inner = F.struct(*(_hashable(value.getField(f.name), f.dataType) for f in kind.fields))
    return F.struct(F.isnull(value), inner)
