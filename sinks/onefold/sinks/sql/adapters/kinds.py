"""What a column of Arrow values is to a database: its kind, which every database's class gives a type of its own."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.values.exact import exact_cast

__all__ = ["Family", "Kind", "kind_of", "values_of"]


class Family(enum.Enum):
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    LOCAL = "timestamp without a zone"
    INSTANT = "timestamp with a zone"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Kind:
    """`bits` of integers and floats, `precision` and `scale` of decimals (and the digits of integers)."""

    family: Family
    bits: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def widest(self) -> Kind:
        """What holds a column's values exactly, also after it was made wider."""
        match self.family:
            case Family.INTEGER:
                return Kind(self.family, 64, _DIGITS[64])
            case Family.FLOAT:
                return Kind(self.family, 64)
            case Family.DECIMAL:
                return Kind(self.family, 0, DECIMAL_DIGITS_MAX, self.scale)
            case _:
                return self

    @property
    def arrow(self) -> pa.DataType:
        """The type that values of this kind are brought to before they are loaded."""
        match self.family:
            case Family.INTEGER:
                return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[self.bits]
            case Family.FLOAT:
                return pa.float32() if self.bits == 32 else pa.float64()
            case Family.DECIMAL:
                return pa.decimal128(self.precision, self.scale)
            case family:
                return _ARROW[family]


_ARROW = {
    Family.BOOLEAN: pa.bool_(),
    Family.TEXT: pa.string(),
    Family.BINARY: pa.binary(),
    Family.DATE: pa.date32(),
    Family.TIME: pa.time64("us"),
    Family.LOCAL: pa.timestamp("us"),
    Family.INSTANT: pa.timestamp("us", "UTC"),
    Family.NULL: pa.string(),
}
_DIGITS = {16: 5, 32: 10, 64: 19}
DECIMAL_DIGITS_MAX = 38


def kind_of(arrow: pa.DataType) -> Kind | None:
    """None for what no column of any database holds as it is: lists, structs, maps, durations, wider decimals."""
    t = pa.types
    if t.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    if t.is_integer(arrow):
        signed_bits = arrow.bit_width * 2 if t.is_unsigned_integer(arrow) else max(16, arrow.bit_width)
        return (
            Kind(Family.DECIMAL, 0, 20) if signed_bits > 64 else Kind(Family.INTEGER, signed_bits, _DIGITS[signed_bits])
        )
    if t.is_floating(arrow):
        return Kind(Family.FLOAT, max(32, arrow.bit_width))
    if t.is_decimal(arrow):
        scale = max(arrow.scale, 0)
        precision = max(arrow.precision + max(-arrow.scale, 0), scale)
        return Kind(Family.DECIMAL, 0, precision, scale) if precision <= DECIMAL_DIGITS_MAX else None
    if t.is_timestamp(arrow):
        return Kind(Family.LOCAL if arrow.tz is None else Family.INSTANT)
    return next((Kind(family) for family, is_one in _SIMPLE.items() if any(one(arrow) for one in is_one)), None)


_SIMPLE: dict[Family, tuple[Any, ...]] = {
    Family.BOOLEAN: (pa.types.is_boolean,),
    Family.TEXT: (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    Family.BINARY: (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    Family.DATE: (pa.types.is_date,),
    Family.TIME: (pa.types.is_time,),
    Family.NULL: (pa.types.is_null,),
}


def values_of(kind: Kind, values: Any) -> Any:
    """An array as `kind.arrow`. Raises ValueError (`Mismatch` is one) where a value would change."""
    return exact_cast(values, kind.arrow)
