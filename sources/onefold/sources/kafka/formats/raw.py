"""Kafka records as they are: Spark's own Kafka columns, without timestampType."""

from __future__ import annotations

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords

__all__ = ["RAW_COLUMNS", "RAW_DDL", "check", "is_same", "to_batch"]

RAW_DDL = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)

RAW_COLUMNS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


def check(schema: pa.Schema) -> None:
    """Raise `ConfigError` unless the schema is made of raw columns, in any order."""
    for field in schema:
        if RAW_COLUMNS.get_field_index(field.name) < 0:
            raise ConfigError(
                "no-such-column",
                f"format=raw has no column {field.name!r}: its columns are {RAW_DDL}. To parse values, use format=json",
            )
        wanted = RAW_COLUMNS.field(field.name).type
        if not is_same(field.type, wanted):
            raise ConfigError("schema-type", f"format=raw: the column {field.name!r} is {wanted}, not {field.type}")


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the types hold the same: Spark names and marks nested fields in its own way."""
    return bool(_bare(one) == _bare(other))


def to_batch(records: FetchedRecords, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each record, in order, with the columns that `schema` names."""
    return pa.RecordBatch.from_arrays([records.column(field) for field in schema], schema=schema)


def _bare(kind: pa.DataType) -> object:
    """The type without nullability and list item names."""
    if pa.types.is_list(kind):
        return ("list", _bare(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _bare(kind.key_type), _bare(kind.item_type))
    if pa.types.is_struct(kind):
        return ("struct", [(kind[i].name, _bare(kind[i].type)) for i in range(kind.num_fields)])
    return kind
