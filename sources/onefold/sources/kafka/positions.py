"""Where each parsed record was, as three further columns."""

from __future__ import annotations

import re

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.sources.kafka.records import Records

__all__ = ["POSITION_COLUMNS", "POSITION_DDL", "check_positions", "clash", "parsed_part", "with_positions"]

POSITION_DDL = "kafka_topic string, kafka_partition int, kafka_offset bigint"

POSITION_COLUMNS = pa.schema(
    {"kafka_topic": pa.string(), "kafka_partition": pa.int32(), "kafka_offset": pa.int64()},
)

_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")


def clash(ddl: str) -> str | None:
    """The column of a Spark DDL text that has the name of a position's, in any case, if there is one."""
    flat = ddl
    while (fewer := _NESTED.sub("", flat)) != flat:
        flat = fewer
    names = (re.split(r"[\s:]", column.strip(), maxsplit=1)[0].strip("`") for column in flat.split(","))
    return next((name for name in names if name.lower() in POSITION_COLUMNS.names), None)


def parsed_part(schema: pa.Schema) -> pa.Schema:
    """The columns that come out of the values."""
    return pa.schema([field for field in schema if field.name not in POSITION_COLUMNS.names])


def check_positions(schema: pa.Schema) -> None:
    """Raise `ConfigError` unless the positions that the schema names have their own types."""
    for field in schema:
        number = POSITION_COLUMNS.get_field_index(field.name)
        if number >= 0 and field.type != POSITION_COLUMNS.field(number).type:
            wanted = POSITION_COLUMNS.field(number).type
            raise ConfigError(f"positions: the column {field.name!r} is {wanted}, not {field.type}")


def with_positions(parsed: pa.RecordBatch, records: Records, schema: pa.Schema) -> pa.RecordBatch:
    """The parsed rows of one range's records with all columns of `schema`, in its order."""
    arrays = [
        records.column(field.with_name(field.name.removeprefix("kafka_")))
        if field.name in POSITION_COLUMNS.names
        else parsed.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
