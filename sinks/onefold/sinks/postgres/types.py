"""Which Postgres type takes which Arrow type without losing anything, and columns as COPY's binary format wants them.

`default_type` is what a new table gets; `fit` is what an existing column accepts; `to_wire` turns a batch's column
into the one that pgpq encodes. All of it works on whole columns.
"""

from __future__ import annotations

import enum
from array import array as machine_array
from dataclasses import dataclass
from sys import byteorder
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pgpq import encoders, schema

from onefold.sinks.postgres.jsontext import json_text

__all__ = ["Column", "PostgresType", "Wire", "builder", "default_type", "fit", "own", "plain", "to_wire"]


class Wire(enum.Enum):
    """How a column's values travel."""

    PLAIN = "plain"  # cast to `Column.arrow`, encoded by pgpq
    JSON = "json"
    JSONB = "jsonb"
    JSONB_TEXT = "jsonb text"  # a string that is JSON already
    INSTANTS = "timestamptz[]"  # pgpq knows arrays of timestamps without a zone only
    UUID = "uuid"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A column's type as the catalogue has it. `typmod` is -1 where the type has none."""

    name: str  # pg_type.typname, of a domain its base type's
    typmod: int
    element: str | None  # the element's typname, of an array
    is_enum: bool
    sql: str  # as format_type() writes it


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows, resolved against the target: its own Arrow type, how it travels, its type in SQL."""

    name: str
    source: pa.DataType
    wire: Wire
    arrow: pa.DataType
    sql: str


_INTEGERS = {pa.int8(): ("int2", 3), pa.int16(): ("int2", 5), pa.int32(): ("int4", 10), pa.int64(): ("int8", 19)}
_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_BY_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_TEXTS = ("text", "varchar", "bpchar", "citext", "name")
_EXACT = {
    pa.bool_(): "bool",
    pa.float32(): "float4",
    pa.float64(): "float8",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.duration("us"): "interval",
}
_SQL_NAMES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
}


def plain(kind: pa.DataType) -> pa.DataType | None:
    """The type that stands for `kind` here: views, units and small or unsigned integers folded. None if unknown."""
    t = pa.types
    if t.is_dictionary(kind):
        return plain(kind.value_type)
    if kind in _INTEGERS or kind in _EXACT or t.is_null(kind) or t.is_struct(kind) or t.is_map(kind):
        return kind
    if t.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if t.is_float16(kind):
        return pa.float32()
    if t.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return kind
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_date64(kind):
        return pa.date32()
    if t.is_time(kind):
        return pa.time64("us")
    if t.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if t.is_duration(kind):
        return pa.duration("us")
    if _is_list(kind):
        inner = plain(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or t.is_list_view(kind))


def _scalar_name(kind: pa.DataType) -> str | None:
    """The typname that holds the plain scalar `kind` exactly; None for what is not a scalar."""
    if kind in _INTEGERS:
        return _INTEGERS[kind][0]
    if pa.types.is_decimal(kind):
        return "numeric"
    if pa.types.is_fixed_size_binary(kind):
        return "bytea"
    return _EXACT.get(kind)


def default_type(kind: pa.DataType) -> str | None:
    """The SQL type of a new table's column for `kind`; None where no type fits."""
    folded = plain(kind)
    if folded is None:
        return None
    if pa.types.is_null(folded):
        return "text"
    if pa.types.is_struct(folded) or pa.types.is_map(folded):
        return "jsonb"
    if pa.types.is_list(folded):
        inner = _scalar_name(folded.value_type)
        return "jsonb" if inner is None else f"{_SQL_NAMES.get(inner, inner)}[]"
    name = _scalar_name(folded)
    assert name is not None, folded
    if name == "numeric" and folded.scale >= 0:
        return f"numeric({folded.precision},{folded.scale})"
    return _SQL_NAMES.get(name, name)


def fit(name: str, kind: pa.DataType, target: PostgresType) -> Column | None:
    """How rows of `kind` travel into a column of type `target` without loss; None where they cannot."""
    folded = plain(kind)
    if folded is None:
        return None
    wired = _fit_null(folded) or _fit_json(folded, target) or _fit_list(folded, target) or _fit_scalar(folded, target)
    return None if wired is None else Column(name, kind, wired[0], wired[1], target.sql)


def own(name: str, kind: pa.DataType) -> Column | None:
    """A scalar column of a table of ours, in the type that a new table gets; None for what is no scalar."""
    folded, declared = plain(kind), default_type(kind)
    if folded is None or declared is None or _scalar_name(folded) is None:
        return None
    return Column(name, kind, Wire.PLAIN, folded, declared)


_Wired = tuple[Wire, pa.DataType] | None


def _fit_null(kind: pa.DataType) -> _Wired:
    return (Wire.NULL, pa.string()) if pa.types.is_null(kind) else None


def _fit_json(kind: pa.DataType, target: PostgresType) -> _Wired:
    if target.name not in ("json", "jsonb"):
        return None
    if kind == pa.string():
        return (Wire.PLAIN if target.name == "json" else Wire.JSONB_TEXT), pa.string()
    if pa.types.is_nested(kind):
        return (Wire.JSON if target.name == "json" else Wire.JSONB), pa.string()
    return None


def _fit_list(kind: pa.DataType, target: PostgresType) -> _Wired:
    if target.element is None or not pa.types.is_list(kind):
        return None
    inner = kind.value_type
    if target.element == "timestamptz":
        return (Wire.INSTANTS, pa.binary()) if inner == pa.timestamp("us", "UTC") else None
    # An array on the wire names its elements' type: varchar[] does not take text.
    if target.element not in (*_INTEGER_BITS, *_EXACT.values(), "numeric"):
        return None
    typmod = target.typmod if target.element == "numeric" else -1
    wired = _fit_scalar(inner, PostgresType(target.element, typmod, None, False, target.element))
    return (Wire.PLAIN, pa.list_(wired[1])) if wired is not None and wired[0] is Wire.PLAIN else None


def _fit_scalar(kind: pa.DataType, target: PostgresType) -> _Wired:
    name = target.name
    if kind in _INTEGERS:
        return _fit_integer(kind, target)
    if pa.types.is_decimal(kind):
        return (Wire.PLAIN, kind) if name == "numeric" and _has_room(target, kind.precision, kind.scale) else None
    if pa.types.is_fixed_size_binary(kind):
        return (Wire.PLAIN, kind) if name in ("bytea", "uuid") else None
    if kind == pa.string() and name == "uuid":
        return Wire.UUID, pa.binary(16)
    if kind == pa.float32() and name == "float8":
        return Wire.PLAIN, pa.float64()
    if kind == pa.string() and (name in _TEXTS or target.is_enum):
        return Wire.PLAIN, kind
    return (Wire.PLAIN, kind) if _EXACT.get(kind) == name else None


def _fit_integer(kind: pa.DataType, target: PostgresType) -> _Wired:
    own, digits = _INTEGERS[kind]
    if target.name in _INTEGER_BITS:
        bits = _INTEGER_BITS[target.name]
        return (Wire.PLAIN, _BY_BITS[bits]) if bits >= _INTEGER_BITS[own] else None
    if target.name == "numeric" and _has_room(target, digits, 0):
        return Wire.PLAIN, pa.decimal128(digits, 0)
    if target.name == "float8" and kind.bit_width <= 32:
        return Wire.PLAIN, pa.float64()
    if target.name == "float4" and kind.bit_width <= 16:
        return Wire.PLAIN, pa.float32()
    return None


def _has_room(target: PostgresType, precision: int, scale: int) -> bool:
    if target.typmod < 0:
        return True
    bits = target.typmod - 4  # numeric's typmod: precision in the high half, scale (11 bits, signed) in the low
    target_precision, target_scale = (bits >> 16) & 0xFFFF, ((bits & 0x7FF) ^ 1024) - 1024
    return target_scale >= scale and target_precision - target_scale >= precision - scale


def builder(column: Column) -> tuple[pa.Field, Any]:
    """pgpq's view of a column: the field that `to_wire` delivers, and its encoder."""
    field = pa.field(column.name, column.arrow)
    if column.wire in (Wire.JSONB, Wire.JSONB_TEXT):
        return field, encoders.StringEncoderBuilder.new_with_output(field, schema.Jsonb())
    from pgpq import ArrowToPostgresBinaryEncoder

    return field, ArrowToPostgresBinaryEncoder.infer_encoder(field)


def to_wire(column: Column, values: Any) -> Any:
    """`values`, an array of the column's own type, as `column.arrow`.

    Raises ValueError (pa.ArrowInvalid is one) for values that Postgres cannot hold.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    match column.wire:
        case Wire.PLAIN | Wire.JSONB_TEXT:
            return values if values.type == column.arrow else _cast(values, column.arrow)
        case Wire.JSON | Wire.JSONB:
            return json_text(values)
        case Wire.INSTANTS:
            return _instants(_cast(values, pa.list_(pa.timestamp("us", "UTC"))))
        case Wire.UUID:
            return _uuids(values.cast(pa.string()))
        case Wire.NULL:
            return pa.nulls(len(values), pa.string())


def _cast(values: Any, kind: pa.DataType) -> Any:
    if pa.types.is_duration(values.type) and pa.types.is_duration(kind):
        return values.cast(kind)
    return values.cast(kind, safe=True)


def _big_endian(code: str, values: Any) -> Any:
    """An integer array without nulls as fixed-size binary, most significant byte first."""
    width = values.type.bit_width // 8
    numbers = machine_array(code)
    assert numbers.itemsize == width
    numbers.frombytes(memoryview(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width])
    if byteorder == "little":
        numbers.byteswap()
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(numbers.tobytes())]
    ).cast(pa.binary())


_EPOCH_MICROS = 946_684_800_000_000  # from 1970-01-01, Arrow's zero, to 2000-01-01, Postgres's
_TIMESTAMPTZ_OID = 1184


def _instants(lists: Any) -> Any:
    """list<timestamp[us, UTC]> as Postgres's binary array of timestamptz (array_recv in its arrayfuncs.c)."""
    offsets = lists.offsets
    start, end = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    values = lists.values.slice(start, end - start)
    micros = pc.subtract_checked(pc.fill_null(values.cast(pa.int64()), _EPOCH_MICROS), _EPOCH_MICROS)
    size = (8).to_bytes(4, "big")
    null = pa.scalar(b"\xff\xff\xff\xff")
    element = pc.if_else(
        values.is_valid(), pc.binary_join_element_wise(pa.scalar(size), _big_endian("q", micros), b""), null
    )
    mask = lists.is_null() if lists.null_count else None
    elements = pa.ListArray.from_arrays(pc.subtract(offsets, pa.scalar(start, offsets.type)), element, mask=mask)
    oid = _TIMESTAMPTZ_OID.to_bytes(4, "big")
    counts = _big_endian("i", pc.fill_null(pc.list_value_length(lists), 0))
    flag = (1).to_bytes(4, "big")  # "there may be nulls"
    header = pc.binary_join_element_wise(pa.scalar(flag + flag + oid), counts, pa.scalar((1).to_bytes(4, "big")), b"")
    full = pc.binary_join_element_wise(header, pc.binary_join(elements, b""), b"")
    empty = pa.scalar(bytes(8) + oid)  # no dimensions
    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), empty, full)


def _uuids(texts: Any) -> Any:
    digits = pc.replace_substring(texts, "-", "")
    good = pc.match_substring_regex(digits, "^[0-9A-Fa-f]{32}$")
    if not pc.all(good).as_py():
        bad = pc.filter(texts, pc.invert(good))[0].as_py()
        raise ValueError(f"{bad!r} is not a UUID")
    filled = pc.fill_null(digits, "0" * 32)
    data = bytes.fromhex(pc.binary_join(pa.ListArray.from_arrays([0, len(filled)], filled), "")[0].as_py() or "")
    whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(filled), [None, pa.py_buffer(data)])
    return pc.if_else(texts.is_valid(), whole, pa.scalar(None, pa.binary(16))) if texts.null_count else whole
