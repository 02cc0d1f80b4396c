"""Arrow schemas as Spark writes them down, there and back: `id bigint, tags array<string>`."""

from __future__ import annotations

import re

import pyarrow as pa

from onefold.core.errors import ConfigError

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
    "real": pa.float32(),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
}
_DECIMALS = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"""\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|([<>(),:]))""")
_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")


def ddl_of(schema: pa.Schema) -> str:
    """The columns as a Spark DDL text. Raises ConfigError for a column of a type that none is written for."""
    return ", ".join(f"{_quoted(field.name)} {_named(field)}" for field in schema)


def type_name(kind: pa.DataType) -> str:
    """The type as an error names it: by Spark's name, or by Arrow's where Spark has none."""
    try:
        return _type(kind)
    except ConfigError:
        return str(kind)


def _named(field: pa.Field) -> str:
    try:
        return _type(field.type)
    except ConfigError as error:
        raise error.reworded(
            f"the column {field.name!r} is {field.type}: {error.message}. Cast it to one that a schema has, such as"
            " long for uint32, decimal(20,0) for uint64, string for a time; or leave it out"
        ) from None


def column_names(ddl: str) -> list[str]:
    """The names of the columns of a Spark DDL text."""
    flat = ddl
    while (fewer := _NESTED.sub("", flat)) != flat:
        flat = fewer
    return [re.split(r"[\s:]", column.strip(), maxsplit=1)[0].strip("`") for column in flat.split(",")]


def schema_of(ddl: str) -> pa.Schema:
    """The columns of a Spark DDL text, as Spark itself has them in Arrow: `a long NOT NULL, b array<decimal(12,2)>`.

    Names and nullability are kept, comments are not. Raises ConfigError for a text that is none, and for a type that
    no record is parsed to (intervals, variants, char and varchar).
    """
    return pa.schema(_Reader(ddl).columns())


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the types hold the same: Spark names and marks nested fields in its own way."""
    return bool(_bare(one) == _bare(other))


class _Reader:
    """Reads one text from its first token to its last: Spark's `colTypeList`, or its `struct<...>`."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._at = 0
        self._next()

    def columns(self) -> list[pa.Field]:
        is_struct = re.match(r"\s*struct\s*<", self._ddl, re.IGNORECASE)
        found = list(self._type()) if is_struct else self._fields()
        if self._token:
            raise self._refused(f"{self._token!r} is one word too many")
        return found

    def _next(self) -> str:
        """The token to be read now; makes the one behind it the next."""
        token = getattr(self, "_token", "")
        self._token, self._is_quoted, self._is_word = "", False, False
        if not self._ddl[self._at :].strip():
            return token
        found = _TOKEN.match(self._ddl, self._at)
        if found is None:
            raise self._refused(f"{self._ddl[self._at :].strip()[:20]!r} is no name and no type")
        quoted, word, text, sign = found.groups()
        self._at = found.end()
        self._is_quoted, self._is_word = quoted is not None, word is not None
        self._token = quoted.replace("``", "`") if quoted is not None else word or text or sign
        return token

    def _is(self, word: str) -> bool:
        return not self._is_quoted and self._token.lower() == word

    def _takes(self, word: str) -> bool:
        """Whether this is the next token, which is then read."""
        if not self._is(word):
            return False
        self._next()
        return True

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._refused(f"{word!r} is missing{self._before()}")

    def _expect_text(self) -> None:
        if self._token[:1] not in ("'", '"') or self._is_quoted:
            raise self._refused("COMMENT has no text in quotes")
        while self._token[:1] in ("'", '"') and not self._is_quoted:  # several are one, as in SQL
            self._next()

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._takes(","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        if not (self._is_quoted or self._is_word):
            raise self._refused(f"the name of a column is missing{self._before()}")
        name = self._next()
        self._takes(":")
        kind, nullable = self._type(), True
        if self._takes("not"):
            self._expect("null")
            nullable = False
        if self._takes("comment"):
            self._expect_text()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        if self._is_quoted or not self._is_word:
            raise self._refused("a column has no type")
        name = self._next().lower()
        if name == "array":
            return pa.list_(pa.field("element", *self._inside(1)))
        if name == "map":
            key, value = self._inside(2)
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
        if name == "struct":
            self._expect("<")
            fields = [] if self._is(">") else self._fields()
            self._expect(">")
            return pa.struct(fields)
        if name in _DECIMALS:
            return self._decimal()
        if name not in _TYPES or self._is("("):
            raise self._refused(f"{name!r} is no type that records are parsed to")
        return _TYPES[name]

    def _inside(self, count: int) -> list[pa.DataType]:
        self._expect("<")
        kinds = [self._type()]
        while len(kinds) < count:
            self._expect(",")
            kinds.append(self._type())
        self._expect(">")
        return kinds

    def _decimal(self) -> pa.DataType:
        if not self._takes("("):
            return pa.decimal128(10, 0)
        numbers = [self._number()]
        if self._takes(","):
            numbers.append(self._number())
        self._expect(")")
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise self._refused(f"decimal({precision},{scale}) is none: a precision is 1 to 38, a scale no more")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if not self._token.isdigit():
            raise self._refused("a decimal has whole numbers in parentheses")
        return int(self._next())

    def _before(self) -> str:
        return f" before {self._token!r}" if self._token else " at the end"

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            "option-value", f"the schema {self._ddl!r} is none: {why}. Write it as in 'id long, amount decimal(12,2)'"
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
        raise ConfigError("type-unsupported", f"a schema has no name for the type {kind}")
    return _NAMES[kind]


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _bare(kind: pa.DataType) -> object:
    """The type without nullability and list item names."""
    if pa.types.is_list(kind):
        return ("list", _bare(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _bare(kind.key_type), _bare(kind.item_type))
    if pa.types.is_struct(kind):
        return ("struct", [(kind[i].name, _bare(kind[i].type)) for i in range(kind.num_fields)])
    return kind
