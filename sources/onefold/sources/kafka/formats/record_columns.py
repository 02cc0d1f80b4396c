"""The columns of Kafka's records: those of format=raw, and those that a user may add to parsed ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.ddl import ddl_of, is_same
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords

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


def check_raw(schema: pa.Schema) -> None:
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


def raw_batch(records: FetchedRecords, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each record, in order, with the columns that `schema` names."""
    return pa.RecordBatch.from_arrays([records.column(field) for field in schema], schema=schema)


Choice = Literal["key", "headers", "timestamp", "position", "topic_id", "value"]
COLUMNS: tuple[Choice, ...] = get_args(Choice)

# Each choice with the columns it adds, and whose raw column each of them is.
_ADDED: dict[Choice, dict[str, str]] = {
    "key": {"kafka_key": "key"},
    "headers": {"kafka_headers": "headers"},
    "timestamp": {"kafka_timestamp": "timestamp"},
    "position": {"kafka_topic": "topic", "kafka_partition": "partition", "kafka_offset": "offset"},
    "topic_id": {"kafka_topic_id": "topic_id"},
    "value": {"kafka_value": "value"},
}
_URL_SAFE = str.maketrans("+/", "-_")
_TYPES = RAW_COLUMNS.append(pa.field("topic_id", pa.string()))
_RAW_OF = {name: of for added in _ADDED.values() for name, of in added.items()}


def added_columns(columns: Collection[str]) -> pa.Schema:
    """What the choices add, always in the same order."""
    names = [name for choice in COLUMNS if choice in columns for name in _ADDED[choice]]
    return pa.schema([_TYPES.field(_RAW_OF[name]).with_name(name) for name in names])


POSITION_COLUMNS = added_columns(["position"])
(VALUE_COLUMN,) = added_columns(["value"]).names


def places_of(format: str, columns: Collection[str]) -> tuple[str, ...]:
    """The columns that say where in Kafka a record was: topic, partition and offset; none if they were not wanted."""
    names = tuple(_ADDED["position"])
    if format == "raw":
        return tuple(_RAW_OF[name] for name in names)
    return names if "position" in columns else ()


def columns_ddl(ddl: str, columns: Collection[str]) -> str:
    """The parsed columns' DDL text with the chosen ones behind."""
    return f"{ddl}, {ddl_of(added_columns(columns))}" if columns else ddl


def check_names(columns: Sequence[str], parsed: Sequence[str]) -> None:
    """Raise `ConfigError` for a choice that isn't one, and for names that the parsed columns have as well."""
    if unknown := [choice for choice in columns if choice not in COLUMNS]:
        raise ConfigError("option-value", f"columns are some of {', '.join(COLUMNS)}; {unknown[0]!r} is not")
    added = added_columns(columns)
    for name in parsed:
        if name.lower() in added.names:
            raise ConfigError(
                "column-name-taken", f"the schema has a column {name!r}, and columns= adds {ddl_of(added)}: rename it"
            )


def parsed_part(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The columns that come out of the values."""
    added = added_columns(columns)
    return pa.schema([field for field in schema if field.name not in added.names])


def check_types(schema: pa.Schema, columns: Collection[str]) -> None:
    """Raise `ConfigError` unless the added columns that the schema names have their own types."""
    for wanted in added_columns(columns):
        number = schema.get_field_index(wanted.name)
        if number >= 0 and not is_same(schema.field(number).type, wanted.type):
            raise ConfigError(
                "schema-type", f"the column {wanted.name!r} is {wanted.type}, not {schema.field(number).type}"
            )


def with_columns(
    parsed: pa.RecordBatch, records: FetchedRecords, good: pa.Array | None, schema: pa.Schema, topic_id: str | None
) -> pa.RecordBatch:
    """The parsed rows of one range's records with all columns of `schema`, in its order.

    `good` are the indices of the records that could be parsed; None: all. A topic's id looks as Kafka's tools show it.
    """
    there = set(parsed.schema.names)
    shown = None if topic_id is None else topic_id.translate(_URL_SAFE)

    def column(field: pa.Field) -> pa.Array:
        if field.name in there:
            return parsed.column(field.name)
        if field.name == "kafka_topic_id":
            return pa.repeat(pa.scalar(shown, field.type), parsed.num_rows)
        array = records.column(field.with_name(_RAW_OF[field.name]))
        return array if good is None else array.take(good)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def wanted_of(columns: Collection[str]) -> set[str]:
    """The raw columns that these choices are made of."""
    return {_RAW_OF[name] for choice in COLUMNS if choice in columns for name in _ADDED[choice]}
