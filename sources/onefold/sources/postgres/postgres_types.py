"""How each Postgres type comes as Arrow: what it is by itself, and which other types it can be read as.

By itself, exactly and without asking: bool, int2-8, float4-8, numeric(p, s) up to 38 digits as decimal, text, varchar,
char, bytea, date, time, timestamp and timestamptz in microseconds, interval as a duration, arrays of these as lists.
All else is a string, as Postgres writes it: numeric without bounds, uuid, json, enums, citext, ranges, composites.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql


@dataclass(frozen=True, slots=True)
class ResultType:
    """A column's type as the server describes it. `typmod` is -1 where the type has none."""

    name: str  # pg_type.typname, of a domain its base type's
    typmod: int
    element: str | None  # the element's typname, of an array
    is_plain: bool  # it, or its element, is a base type: no enum, composite, range or domain
    sql: str  # as format_type() writes it

    @property
    def is_json(self) -> bool:
        return self.name in ("json", "jsonb")


class Fit(enum.IntEnum):
    NO = 0
    CHECKED = 1  # some of the type's values have no place: each value is looked at
    EXACT = 2


@dataclass(frozen=True, slots=True)
class SelectedColumn:
    """A column of the result: `select` is its SQL, `wire` what ADBC makes of that, `kind` what is delivered."""

    name: str
    select: str
    wire: pa.DataType
    kind: pa.DataType
    sql: str


_INTEGERS = {"int2": (pa.int16(), 5), "int4": (pa.int32(), 10), "int8": (pa.int64(), 19)}
_PLAIN = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
}
_TEXTS = ("text", "varchar", "bpchar", "name")
_DIGITS_MAX = 38


def by_itself(kind: ResultType) -> pa.DataType:
    """The Arrow type of a column for which none was given."""
    if kind.element is not None:
        return pa.list_(_scalar(kind.element, kind.typmod, kind.is_plain))
    return _scalar(kind.name, kind.typmod, kind.is_plain)


def _scalar(name: str, typmod: int, is_plain: bool) -> pa.DataType:
    if not is_plain:
        return pa.string()
    if name == "numeric" and (bounds := _bounds(typmod)) is not None:
        return pa.decimal128(*bounds)
    return _PLAIN.get(name, pa.string())


def _bounds(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric as a decimal has them; None without bounds, or beyond 38 digits."""
    if typmod < 0:
        return None
    bits = typmod - 4  # precision in the high half, scale (11 bits, signed) in the low
    precision, scale = (bits >> 16) & 0xFFFF, ((bits & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return (precision, scale) if precision <= _DIGITS_MAX else None


def fit(name: str, there: ResultType, wanted: pa.DataType) -> tuple[Fit, SelectedColumn]:
    """How a column of type `there` is read as `wanted`."""
    column = sql.Identifier(name).as_string()
    as_text = f"{column}::text AS {column}"
    if wanted == pa.string():
        select = column if there.element is None and there.is_plain and there.name in _TEXTS else as_text
        return Fit.EXACT, SelectedColumn(name, select, pa.string(), wanted, there.sql)
    if pa.types.is_null(wanted):
        return Fit.CHECKED, SelectedColumn(name, as_text, pa.string(), wanted, there.sql)
    if there.element is not None:
        found = Fit.NO
        wire, as_texts = pa.string(), True
        if pa.types.is_list(wanted):
            found, wire, as_texts = _fit(there.element, there.typmod, there.is_plain, wanted.value_type)
        select = f"{column}::text[] AS {column}" if as_texts else column
        return found, SelectedColumn(name, select, pa.list_(wire), wanted, there.sql)
    if there.name == "uuid" and pa.types.is_binary(wanted):
        return Fit.EXACT, SelectedColumn(name, f"uuid_send({column}) AS {column}", wanted, wanted, there.sql)
    found, wire, as_texts = _fit(there.name, there.typmod, there.is_plain, wanted)
    return found, SelectedColumn(name, as_text if as_texts else column, wire, wanted, there.sql)


def _fit(name: str, typmod: int, is_plain: bool, wanted: pa.DataType) -> tuple[Fit, pa.DataType, bool]:
    """Whether a scalar fits, what ADBC delivers, and whether it has to be asked for as text."""
    if wanted == pa.string():
        is_text = is_plain and name in _TEXTS
        return Fit.EXACT, pa.string(), not is_text
    if not is_plain:
        return Fit.NO, pa.string(), True
    if name == "numeric":  # ADBC takes twice as long for its binary form as for its text
        return _fit_numeric(_bounds(typmod), wanted), pa.string(), True
    native = _PLAIN.get(name)
    if native is None:
        return Fit.NO, pa.string(), True
    if name == "interval":
        return (Fit.EXACT if wanted == native else Fit.NO), pa.month_day_nano_interval(), False
    if wanted == native or (pa.types.is_time64(native) and pa.types.is_time64(wanted)):
        return Fit.EXACT, native, False
    if name in _INTEGERS:
        return _fit_integer(name, wanted), native, False
    if name in ("float4", "float8"):
        return _fit_float(wanted), native, False
    return Fit.NO, native, False


def _fit_integer(name: str, wanted: pa.DataType) -> Fit:
    native, digits = _INTEGERS[name]
    if pa.types.is_signed_integer(wanted):
        return Fit.EXACT if wanted.bit_width >= native.bit_width else Fit.CHECKED
    if pa.types.is_decimal(wanted):
        return Fit.EXACT if wanted.precision - wanted.scale >= digits else Fit.CHECKED
    if pa.types.is_floating(wanted) and native.bit_width * 2 <= wanted.bit_width:
        return Fit.EXACT  # 16 bits in a float's 24, 32 in a double's 53
    return Fit.NO


def _fit_float(wanted: pa.DataType) -> Fit:
    if wanted == pa.float64():
        return Fit.EXACT
    # A table may keep whole numbers or narrower floats in a wider column.
    return Fit.CHECKED if wanted == pa.float32() or pa.types.is_signed_integer(wanted) else Fit.NO


def _fit_numeric(bounds: tuple[int, int] | None, wanted: pa.DataType) -> Fit:
    if pa.types.is_signed_integer(wanted):
        digits_min = {8: 2, 16: 4, 32: 9, 64: 18}[wanted.bit_width]
        return Fit.EXACT if bounds and bounds[1] == 0 and bounds[0] <= digits_min else Fit.CHECKED
    if not pa.types.is_decimal(wanted):
        return Fit.NO
    if bounds and wanted.scale >= bounds[1] and wanted.precision - wanted.scale >= bounds[0] - bounds[1]:
        return Fit.EXACT
    return Fit.CHECKED
