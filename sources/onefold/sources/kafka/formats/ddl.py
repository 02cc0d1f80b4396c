"""Arrow schemas as Spark writes them down, there and back: `id bigint, tags array<string>`."""

from __future__ import annotations

import re

import pyarrow as pa

from onefold.core.errors import ConfigError

__all__ = ["column_names", "ddl_of", "schema_of"]

_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}

_TYPES = {name: kind for kind, name in _NAMES.items()} | {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
}
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|(\w+))[\s:]+(\w+)\s*(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*")
_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")


def ddl_of(schema: pa.Schema) -> str:
    """The columns as a Spark DDL text."""
    return ", ".join(f"{_quoted(field.name)} {_type(field.type)}" for field in schema)


def column_names(ddl: str) -> list[str]:
    """The names of the columns of a Spark DDL text."""
    flat = ddl
    while (fewer := _NESTED.sub("", flat)) != flat:
        flat = fewer
    return [re.split(r"[\s:]", column.strip(), maxsplit=1)[0].strip("`") for column in flat.split(",")]


def schema_of(ddl: str) -> pa.Schema:
    """The columns of a Spark DDL text, of scalar types. Raises ConfigError for a text that is none."""
    return pa.schema([_field(column, ddl) for column in re.split(r",(?![^(]*\))", ddl)])


def _field(column: str, ddl: str) -> pa.Field:
    found = _COLUMN.fullmatch(column)
    if found is not None:
        quoted, plain, name, precision, scale = found.groups()
        if name.lower() == "decimal" and precision is not None:
            return pa.field(quoted or plain, pa.decimal128(int(precision), int(scale)))
        if name.lower() in _TYPES and precision is None:
            return pa.field(quoted or plain, _TYPES[name.lower()])
    raise ConfigError(
        "option-value",
        f"{ddl!r}: {column.strip()!r} is no column of a scalar type, as in 'id long, amount decimal(12,2)'."
        " Of rows with lists and structs, call onefold.doctor.diagnose from Python with their schema",
    )


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_type)}, {_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind[number] for number in range(kind.num_fields))
        return f"struct<{', '.join(f'{_quoted(field.name)}: {_type(field.type)}' for field in fields)}>"
    if kind not in _NAMES:
        raise ConfigError("type-unsupported", f"Spark has no name for the type {kind}")
    return _NAMES[kind]


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
