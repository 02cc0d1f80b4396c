"""Timestamps of 96 bits (INT96), as Spark, Hive and Impala write them: days, and nanoseconds within one.

They say nothing of a zone: they are instants, or none, as the schema says. Arrow reads them as nanoseconds of 64 bits,
which wrap beyond the year 2262, or as microseconds, which lose nanoseconds: both together tell whether it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from onefold.sources.files.parquet.nested import inside

__all__ = ["blurred", "columns_with_int96", "timed"]


def columns_with_int96(metadata: pa.parquet.FileMetaData, there: pa.Schema) -> set[str]:
    """The columns of a file that are such, or have such inside."""
    found = map(metadata.schema.column, range(metadata.num_columns))
    paths = [f"{column.path}." for column in found if column.physical_type == "INT96"]
    return {name for name in there.names if any(path.startswith(f"{name}.") for path in paths)}


def timed(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type of such a column with microseconds, and with the zones that the schema's type has."""
    is_ = pa.types
    if is_.is_timestamp(kind):
        zone = wanted.tz if kind.tz is None and is_.is_timestamp(wanted) else kind.tz
        return pa.timestamp("us", zone)
    if is_.is_list(kind) and is_.is_list(wanted):
        return pa.list_(kind.value_field.with_type(timed(kind.value_type, wanted.value_type)))
    if is_.is_map(kind) and is_.is_map(wanted):
        return pa.map_(
            kind.key_field.with_type(timed(kind.key_type, wanted.key_type)),
            kind.item_field.with_type(timed(kind.item_type, wanted.item_type)),
        )
    if is_.is_struct(kind) and is_.is_struct(wanted):
        types = {wanted[at].name: wanted[at].type for at in range(wanted.num_fields)}
        fields = [kind[at] for at in range(kind.num_fields)]
        return pa.struct([field.with_type(timed(field.type, types.get(field.name, field.type))) for field in fields])
    return kind


def blurred(microseconds: pa.RecordBatch, nanoseconds: pa.RecordBatch) -> list[int]:
    """The rows in which microseconds are not all that there is."""
    rows = set[int]()
    for name in nanoseconds.schema.names:
        exact, read = nanoseconds.column(name), microseconds.column(name)
        if not _differs(exact, read):
            continue
        rows.update(row for row in range(len(exact)) if _differs(exact.slice(row, 1), read.slice(row, 1)))
    return sorted(rows)


def _differs(exact: pa.Array, read: pa.Array) -> bool:
    """Products wrap at 2^64 as the nanoseconds do."""
    return any(
        pc.any(pc.not_equal(ns.view(pa.int64()), pc.multiply(us.view(pa.int64()), 1000))).as_py()
        for ns, us in zip(_times(exact), _times(read), strict=True)
        if ns.type.unit == "ns"
    )


def _times(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_timestamp(array.type):
        yield array
    for part in inside(array):
        yield from _times(part)
