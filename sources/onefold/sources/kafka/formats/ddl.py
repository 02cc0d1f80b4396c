"""Arrow schemas as Spark writes them down: `id bigint, tags array<string>`."""

from __future__ import annotations

import re

import pyarrow as pa

from onefold.core.errors import ConfigError

__all__ = ["columns_of", "ddl_of"]

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

_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")


def ddl_of(schema: pa.Schema) -> str:
    """The columns as a Spark DDL text."""
    return ", ".join(f"{_quoted(field.name)} {_type(field.type)}" for field in schema)


def columns_of(ddl: str) -> list[str]:
    """The names of the columns of a Spark DDL text."""
    flat = ddl
    while (fewer := _NESTED.sub("", flat)) != flat:
        flat = fewer
    return [re.split(r"[\s:]", column.strip(), maxsplit=1)[0].strip("`") for column in flat.split(",")]


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
