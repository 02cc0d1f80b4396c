"""Avro schemas as Arrow types, and the values of one as an Arrow array.

Records are decoded without logical types: what a logical type makes of its number or bytes is done here, a column at a
time, and exactly.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import fastavro
import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.sources.kafka.formats.avro.limits import BadSchema, examined, loaded

Json = Any


class Form(enum.Enum):
    """How a decoded value becomes an Arrow value."""

    PLAIN = enum.auto()
    BYTES = enum.auto()  # a default is a text, by the standard: one character a byte
    NUMBER_OF = enum.auto()  # days, milliseconds or microseconds: `Node.counted`
    DECIMAL = enum.auto()  # big-endian, two's complement
    UUID = enum.auto()  # sixteen bytes
    LIST = enum.auto()
    MAP = enum.auto()
    RECORD = enum.auto()


@dataclass(frozen=True, slots=True)
class AvroNode:
    """One type of a schema: the Arrow type that it is read as, and the types inside of it."""

    arrow: pa.DataType
    form: Form = Form.PLAIN
    counted: pa.DataType | None = None
    inside: tuple[AvroNode, ...] = ()
    names: tuple[str, ...] = ()


_UTC = "UTC"
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}
_COUNTED = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("long", "timestamp-millis"): (pa.timestamp("us", _UTC), pa.timestamp("ms", _UTC)),
    ("long", "timestamp-micros"): (pa.timestamp("us", _UTC), pa.timestamp("us", _UTC)),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
}
# What other numbers count, which come out as numbers. Read as one of the above they would be another time.
_ONLY_NUMBERS = (
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-nanos"),
    ("long", "local-timestamp-nanos"),
)
_NUMBERS = ["int", "long", "float", "double"]
_WIDER = ({"int", "long"}, {"float", "double"})


class AvroSchema:
    """A schema that records are read as: `arrow` are its columns. `expanded` has every type written out, `stripped` no
    logical types; and `decoded_as` is that, parsed by fastavro, with numbers left as they were written."""

    def __init__(self, text: str) -> None:
        """Raises `ConfigError` for what is no schema of a record, and for types that have no exact Arrow type."""
        try:
            self.json: Json = loaded(text)
            self.expanded: Json = examined(self.json)
        except BadSchema as error:
            raise ConfigError(
                "avro-schema-invalid", f"avro_schema {error}. It is JSON text, as in an .avsc file"
            ) from None
        if not isinstance(self.expanded, dict) or self.expanded.get("type") != "record":
            raise ConfigError("avro-schema-invalid", "avro_schema must be a record's: its fields are the columns")
        self.node = _node(self.expanded, "the record")
        self.stripped: Json = without_logical_types(self.json)
        self.decoded_as: Json = fastavro.parse_schema(_with_any_number(self.stripped))
        self.arrow = pa.schema(list(self.node.arrow))


def without_logical_types(schema: Json) -> Json:
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = without_logical_types(kept[name])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": without_logical_types(field["type"])} for field in kept["fields"]]
    return kept


def _with_any_number(schema: Json) -> Json:
    """The schema with a union of numbers for each float or double: what was written as a whole number is decoded as
    one, and becomes the column's where that is exact."""
    if isinstance(schema, list):
        flat = [kind for branch in schema for kind in _as_list(_with_any_number(branch))]
        return [kind for number, kind in enumerate(flat) if kind not in flat[:number]]
    if isinstance(schema, dict) and schema["type"] in ("float", "double"):
        return _with_any_number(schema["type"])
    if isinstance(schema, dict):
        made = {name: _with_any_number(schema[name]) for name in ("type", "items", "values") if name in schema}
        if "fields" in schema:
            made["fields"] = [{**field, "type": _with_any_number(field["type"])} for field in schema["fields"]]
        return {**schema, **made}
    return {"float": _NUMBERS[:3], "double": _NUMBERS}.get(schema, schema)


def _as_list(kind: Json) -> list[Json]:
    return kind if isinstance(kind, list) else [kind]


def mismatch(written: Json, wanted: Json, where: str = "") -> str | None:
    """Where a value would be read as another one than was written: times of another unit, decimals of another scale.

    Both schemas are expanded, with their logical types. What was written without any is what the reader says it is.
    """
    written, wanted = bare(written), bare(wanted)
    if not isinstance(written, dict) or not isinstance(wanted, dict):
        return None
    for part in ("items", "values"):
        if part in written and part in wanted:
            return mismatch(written[part], wanted[part], f"{where}[]")
    if "fields" in written and "fields" in wanted:
        there = {field["name"]: field["type"] for field in written["fields"]}
        pairs = ((field, there[name]) for field in wanted["fields"] for name in _names(field) if name in there)
        found = (mismatch(kind, field["type"], f"{where}.{field['name']}".lstrip(".")) for field, kind in pairs)
        return next((reason for reason in found if reason is not None), None)
    one, other = _meaning(written), _meaning(wanted)
    if one is None or other is None or one == other:
        return None
    return f"the field {where!r} was written as {one}, and is to be read as {other}"


def _meaning(schema: Json) -> str | None:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"a decimal of scale {schema.get('scale', 0)}"
    return logical if (schema.get("type"), logical) in (*_COUNTED, *_ONLY_NUMBERS) else None


def _names(field: Json) -> list[str]:
    return [field["name"], *field.get("aliases", [])]


def bare(schema: Json) -> Json:
    """The type itself, out of a union with null, or of an object around it."""
    if isinstance(schema, list):
        rest = [branch for branch in schema if branch != "null"]
        return bare(rest[0]) if len(rest) == 1 else schema
    if isinstance(schema, dict) and (set(schema) == {"type"} or isinstance(schema.get("type"), (dict, list))):
        return bare(schema["type"])
    return schema


def array_of(node: AvroNode, values: Sequence[Any]) -> pa.Array:
    """Decoded values as `node.arrow`; raises ArrowException, OverflowError or ValueError for one that does not fit."""
    match node.form:
        case Form.RECORD:
            columns = [
                array_of(part, [None if value is None else value[name] for value in values])
                for name, part in zip(node.names, node.inside, strict=True)
            ]
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(columns, fields=list(node.arrow), mask=mask)
        case Form.LIST:
            items = [item for value in values if value is not None for item in value]
            return pa.ListArray.from_arrays(_ends(values), array_of(node.inside[0], items), type=node.arrow)
        case Form.MAP:
            maps = [value for value in values if value is not None]
            keys = pa.array([key for value in maps for key in value], pa.string())
            items = array_of(node.inside[0], [item for value in maps for item in value.values()])
            return pa.MapArray.from_arrays(_ends(values), keys, items, type=node.arrow)
        case Form.NUMBER_OF:
            assert node.counted is not None, node
            storage = pa.int32() if pa.types.is_date(node.counted) else pa.int64()
            return pa.array(values, storage).cast(node.counted).cast(node.arrow)
        case Form.DECIMAL:
            return _decimals([_bytes(value) for value in values], node.arrow)
        case Form.BYTES:
            return pa.array([_bytes(value) for value in values], node.arrow)
        case Form.UUID:
            return pa.array([None if v is None else str(uuid.UUID(bytes=_bytes(v))) for v in values], node.arrow)
    return pa.array(values, node.arrow)


def _ends(values: Sequence[Any]) -> pa.Array:
    """Offsets of a list array; a null stands where a value is null."""
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    marked = [None if value is None else end for value, end in zip(values, ends[:-1], strict=True)]
    return pa.array([*marked, ends[-1]], pa.int32())


def _decimals(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    limit = 10**kind.precision
    cells = bytearray()
    for value in values:
        number = 0 if value is None else int.from_bytes(value, "big", signed=True)
        if not -limit < number < limit:
            raise ValueError(f"a decimal of more than {kind.precision} digits")
        cells += number.to_bytes(16, "little", signed=True)
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(bytes(cells))])


def _bytes(value: Any) -> Any:
    return value.encode("latin-1") if isinstance(value, str) else value


def _node(schema: Json, where: str) -> AvroNode:
    if isinstance(schema, list):
        return _union(schema, where)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _node(kind, where)
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, where)
    if (kind, logical) in _COUNTED:
        arrow, counted = _COUNTED[kind, logical]
        return AvroNode(arrow, Form.NUMBER_OF, counted)
    if kind in _PLAIN:
        return AvroNode(_PLAIN[kind])
    match kind:
        case "enum":
            return AvroNode(pa.string())
        case "fixed" if logical == "uuid" and schema["size"] == 16:
            return AvroNode(pa.string(), Form.UUID)
        case "bytes" | "fixed":
            return AvroNode(pa.binary(), Form.BYTES)
        case "array":
            items = _node(schema["items"], f"{where}[]")
            return AvroNode(pa.list_(items.arrow), Form.LIST, inside=(items,))
        case "map":
            items = _node(schema["values"], f"{where}{{}}")
            return AvroNode(pa.map_(pa.string(), items.arrow), Form.MAP, inside=(items,))
        case "record":
            names = tuple(field["name"] for field in schema["fields"])
            inside = tuple(_node(field["type"], f"{where}.{field['name']}") for field in schema["fields"])
            fields = [pa.field(name, part.arrow) for name, part in zip(names, inside, strict=True)]
            return AvroNode(pa.struct(fields), Form.RECORD, inside=inside, names=names)
    raise ConfigError(
        "avro-schema-unsupported",
        f"avro_schema: {where} is {kind!r}, which no column can be: a null that is always one, or a record within"
        " itself. Leave the field out of the schema that records are read as",
    )


def _union(branches: list[Json], where: str) -> AvroNode:
    """A value or null; numbers of two widths are the wider one."""
    rest = [branch for branch in branches if branch != "null"]
    names = {branch if isinstance(branch, str) else "" for branch in rest}
    for pair in _WIDER:
        if len(rest) == 2 and names == pair:
            return _node(max(pair, key=lambda name: name in ("long", "double")), where)
    if len(rest) != 1:
        raise ConfigError(
            "avro-schema-unsupported",
            f"avro_schema: {where} is a union of {len(rest)} types beside null, and a column has one. Leave the field"
            " out of the schema that records are read as, or read with format=raw",
        )
    return _node(rest[0], where)


def _decimal(schema: Json, where: str) -> AvroNode:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= 38 or not 0 <= scale <= precision:
        raise ConfigError(
            "avro-schema-unsupported",
            f"avro_schema: {where} is decimal({precision},{scale}): the precision may be 1 to 38",
        )
    return AvroNode(pa.decimal128(precision, scale), Form.DECIMAL)
