"""Kafka messages as they are: Spark's own Kafka columns, without timestampType."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from onefold.core.errors import ConfigError

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
                f"format=raw has no column {field.name!r}: its columns are {RAW_DDL}. To parse values, use format=json"
            )
        wanted = RAW_COLUMNS.field(field.name).type
        if not is_same(field.type, wanted):
            raise ConfigError(f"format=raw: the column {field.name!r} is {wanted}, not {field.type}")


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the types hold the same: Spark names and marks nested fields in its own way."""
    return bool(_bare(one) == _bare(other))


def to_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """One row for each message, in order, with the columns that `schema` names."""
    return pa.RecordBatch.from_arrays([_column(field, messages) for field in schema], schema=schema)


def _column(field: pa.Field, messages: Sequence[Message]) -> pa.Array:
    values: list[Any]
    match field.name:
        case "topic" | "partition":
            # All messages of a range share them.
            value = messages[0].topic() if field.name == "topic" else messages[0].partition()
            return pa.repeat(pa.scalar(value, field.type), len(messages))
        case "offset":
            values = [message.offset() for message in messages]
        case "timestamp":
            # Kafka keeps milliseconds.
            values = [None if kind == TIMESTAMP_NOT_AVAILABLE else ms * 1000 for kind, ms in map(_timestamp, messages)]
            return pa.array(values, pa.int64()).cast(field.type)
        case "key":
            values = [message.key() for message in messages]
        case "value":
            values = [message.value() for message in messages]
        case _:
            values = [_headers(message) for message in messages]
    return pa.array(values, field.type)


def _timestamp(message: Message) -> tuple[int, int]:
    return message.timestamp()


def _headers(message: Message) -> list[dict[str, object]] | None:
    headers = message.headers()
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs]


def _bare(kind: pa.DataType) -> object:
    """The type without nullability and list item names."""
    if pa.types.is_list(kind):
        return ("list", _bare(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _bare(kind.key_type), _bare(kind.item_type))
    if pa.types.is_struct(kind):
        return ("struct", [(kind[i].name, _bare(kind[i].type)) for i in range(kind.num_fields)])
    return kind
