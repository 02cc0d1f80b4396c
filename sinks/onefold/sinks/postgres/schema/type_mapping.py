"""Which Postgres type takes which Arrow type without losing anything.

`default_type` is what a new table gets; `fit` is what an existing column accepts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.checks import present


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

    @property
    def digits(self) -> tuple[int, int] | None:
        """How many decimal digits it has before and after the point; None without a bound, and for other types."""
        if self.name in _INTEGER_BITS:
            return _INTEGER_DIGITS[self.name], 0
        if self.name != "numeric" or self.typmod < 0:
            return None
        bits = self.typmod - 4  # precision in the high half, scale (11 bits, signed) in the low
        precision, scale = (bits >> 16) & 0xFFFF, ((bits & 0x7FF) ^ 1024) - 1024
        return precision - scale, scale


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows, resolved against the target: its own Arrow type, how it travels, what it is in SQL."""

    name: str
    source: pa.DataType
    wire: Wire
    arrow: pa.DataType
    sql: str


_INTEGERS = {pa.int8(): ("int2", 3), pa.int16(): ("int2", 5), pa.int32(): ("int4", 10), pa.int64(): ("int8", 19)}
_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_INTEGER_DIGITS = {"int2": 5, "int4": 10, "int8": 19}
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
SQL_NAMES = {
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


def list_element(kind: pa.DataType) -> pa.DataType | None:
    """The type of a list's elements, None for what is no list."""
    return kind.value_type if _is_list(kind) else None


def digits_of(kind: pa.DataType) -> tuple[int, int] | None:
    """How many decimal digits a number of the plain type `kind` has before and after the point, at most."""
    if kind in _INTEGERS:
        return _INTEGERS[kind][1], 0
    return (kind.precision - kind.scale, kind.scale) if pa.types.is_decimal(kind) else None


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
        return "jsonb" if inner is None else f"{SQL_NAMES.get(inner, inner)}[]"
    name = present(_scalar_name(folded), f"a column of {folded}")
    if name == "numeric" and folded.scale >= 0:
        return f"numeric({folded.precision},{folded.scale})"
    return SQL_NAMES.get(name, name)


def fit(name: str, kind: pa.DataType, target: PostgresType) -> Column | None:
    """How rows of `kind` travel into a column of type `target` without loss; None where they cannot."""
    folded = plain(kind)
    if folded is None or _rounds(kind, target):
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
_SECOND_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}  # what is finer than a microsecond fails on its way


def _rounds(kind: pa.DataType, target: PostgresType) -> bool:
    """Times with a precision round what is finer without a word, and intervals of some fields drop the others."""
    name = target.element or target.name
    if target.typmod < 0 or name not in ("timestamp", "timestamptz", "time", "interval"):
        return False
    unit = getattr(list_element(kind) or kind, "unit", None)
    return unit is not None and (name == "interval" or _SECOND_DIGITS[unit] > target.typmod)


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
    digits = target.digits
    return digits is None or (digits[1] >= scale and digits[0] >= precision - scale)
