"""What a column of Arrow values is to a database: its kind, which every database's class gives a type of its own."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.values.exact import Family, exact_cast, family


class SqlFamily(enum.Enum):
    """Those of `Family` that a database has a type for."""

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
class SqlKind:
    """`bits` of integers and floats, `precision` and `scale` of decimals (and the digits of integers)."""

    family: SqlFamily
    bits: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def widest(self) -> SqlKind:
        """What holds a column's values exactly, also after it was made wider."""
        match self.family:
            case SqlFamily.INTEGER:
                return SqlKind(self.family, 64, _DIGITS[64])
            case SqlFamily.FLOAT:
                return SqlKind(self.family, 64)
            case SqlFamily.DECIMAL:
                return SqlKind(self.family, 0, DECIMAL_DIGITS_MAX, self.scale)
            case _:
                return self

    @property
    def arrow(self) -> pa.DataType:
        """The type that values of this kind are brought to before they are loaded."""
        match self.family:
            case SqlFamily.INTEGER:
                return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[self.bits]
            case SqlFamily.FLOAT:
                return pa.float32() if self.bits == 32 else pa.float64()
            case SqlFamily.DECIMAL:
                return pa.decimal128(self.precision, self.scale)
            case family:
                return _ARROW[family]


_ARROW = {
    SqlFamily.BOOLEAN: pa.bool_(),
    SqlFamily.TEXT: pa.string(),
    SqlFamily.BINARY: pa.binary(),
    SqlFamily.DATE: pa.date32(),
    SqlFamily.TIME: pa.time64("us"),
    SqlFamily.LOCAL: pa.timestamp("us"),
    SqlFamily.INSTANT: pa.timestamp("us", "UTC"),
    SqlFamily.NULL: pa.string(),
}
_DIGITS = {16: 5, 32: 10, 64: 19}
DECIMAL_DIGITS_MAX = 38


def kind_of(arrow: pa.DataType) -> SqlKind | None:
    """None for what no column of any database holds as it is: lists, structs, maps, durations, wider decimals."""
    if pa.types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    match Family.OTHER if pa.types.is_run_end_encoded(arrow) else family(arrow):
        case Family.INTEGER:
            bits = arrow.bit_width * 2 if pa.types.is_unsigned_integer(arrow) else max(16, arrow.bit_width)
            return SqlKind(SqlFamily.DECIMAL, 0, 20) if bits > 64 else SqlKind(SqlFamily.INTEGER, bits, _DIGITS[bits])
        case Family.FLOAT:
            return SqlKind(SqlFamily.FLOAT, max(32, arrow.bit_width))
        case Family.DECIMAL:
            scale = max(arrow.scale, 0)
            precision = max(arrow.precision + max(-arrow.scale, 0), scale)
            return SqlKind(SqlFamily.DECIMAL, 0, precision, scale) if precision <= DECIMAL_DIGITS_MAX else None
        case other:
            return next((SqlKind(each) for each in SqlFamily if each.value == other.value), None)


def values_of(kind: SqlKind, values: Any) -> Any:
    """An array as `kind.arrow`. Raises ValueError (`Mismatch` is one) where a value would change."""
    return exact_cast(values, kind.arrow)
