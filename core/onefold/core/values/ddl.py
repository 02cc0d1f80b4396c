"""Arrow schemas as Spark writes them down, there and back: `id bigint, tags array<string>`."""

from __future__ import annotations

import re

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.decimals import DIGITS_MAX

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
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])")
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
    """The columns of a Spark DDL text. Raises ConfigError for a text that is none."""
    return pa.schema(_Reader(ddl).fields())


class _Reader:
    """Reads a DDL text from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = [found[1] for found in _TOKEN.finditer(ddl)]
        if "".join(self._tokens).replace(" ", "") != re.sub(r"\s", "", ddl):
            raise self._refused()
        self._at = 0

    def fields(self, end: str = "") -> list[pa.Field]:
        """`name type, ...`, up to that token, or to the text's end."""
        found = []
        while True:
            name = self._name()
            self._is_next(":")
            found.append(pa.field(name, self._type()))
            if not self._is_next(","):
                break
        if self._next() != end:
            raise self._refused()
        return found

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name == "decimal":
            precision, scale = self._numbers()
            return pa.decimal128(precision, scale)
        if name == "array":
            (item,) = self._types(1)
            return pa.list_(item)
        if name == "map":
            key, item = self._types(2)
            return pa.map_(key, item)
        if name == "struct" and self._is_next("<"):
            return pa.struct(self.fields(">"))
        if name not in _TYPES:
            raise self._refused()
        return _TYPES[name]

    def _types(self, count: int) -> list[pa.DataType]:
        found = []
        for number in range(count):
            if self._next() != ("," if number else "<"):
                raise self._refused()
            found.append(self._type())
        if self._next() != ">":
            raise self._refused()
        return found

    def _numbers(self) -> tuple[int, int]:
        left, precision, comma, scale, right = (self._next() for _ in range(5))
        is_sound = (left, comma, right) == ("(", ",", ")") and precision.isdecimal() and scale.isdecimal()
        if not is_sound or not 0 <= int(scale) <= int(precision) <= DIGITS_MAX or not int(precision):
            raise self._refused()
        return int(precision), int(scale)

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._refused()
        return token

    def _next(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        self._at += 1
        return token

    def _is_next(self, token: str) -> bool:
        is_it = self._at < len(self._tokens) and self._tokens[self._at] == token
        self._at += is_it
        return is_it

    def _refused(self) -> ConfigError:
        return ConfigError(
            "option-value",
            f"{self._ddl!r} is no list of columns with their types, as in"
            " 'id long, amount decimal(12,2), tags array<string>'",
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
