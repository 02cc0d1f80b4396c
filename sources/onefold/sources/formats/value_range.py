"""What columns can hold: exact types, and neither infinities made of large numbers nor times of no year from 1 to 9999.

Spark's dates and timestamps are of the years 1 to 9999. Arrow's 64 bits have room for many more, and JSON and CSV for a
year 0: no sink takes those, and it would not know the record that they are from.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.ddl import type_name
from onefold.sources.formats.values import Unparsable

DAYS = (-719_162, 2_932_896)
DAY_US = 86_400_000_000
MICROSECONDS = (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)


def is_exact(kind: pa.DataType) -> bool:
    """Whether texts of JSON and CSV are parsed to values of this type exactly. Without lists and structs of such."""
    is_ = pa.types
    return bool(
        is_.is_boolean(kind)
        or is_.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or is_.is_decimal128(kind)
        or is_.is_string(kind)
        or is_.is_date32(kind)
        or (is_.is_timestamp(kind) and kind.unit == "us")
    )


def check_column(array: pa.Array, field: pa.Field) -> None:
    """Raise `Unparsable` for a null where the schema says NOT NULL, and a time of none of the years there are."""
    if not field.nullable and array.null_count:
        index = pc.index(array.is_null(), True).as_py()
        raise Unparsable(index, f"the field {field.name!r} is missing or null, and the schema says NOT NULL")
    if _has_year_out_of_range(array):
        raise Unparsable(None, f"the field {field.name!r} has a time that is not of the years 1 to 9999")


def has_infinity(array: pa.Array) -> bool:
    """Whether any float in it, at any depth, is infinite."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    return any(map(has_infinity, inside(array)))


def _has_year_out_of_range(array: pa.Array) -> bool:
    """Whether any date or timestamp of microseconds in it, at any depth, is of none of the years there are."""
    kind = array.type
    if not pa.types.is_date32(kind) and not pa.types.is_timestamp(kind):
        return any(map(_has_year_out_of_range, inside(array)))
    low, high = DAYS if pa.types.is_date32(kind) else MICROSECONDS
    found = pc.min_max(array.view(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
    first, last = found["min"].as_py(), found["max"].as_py()
    return first is not None and not low <= first <= last <= high


def record_timestamps(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    """The timestamps of records; null where the producer, who sets them, wrote one of none of the years there are."""
    low, high = (limit // 1000 for limit in MICROSECONDS)
    numbers = milliseconds.view(pa.int64())
    is_one = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    if is_one.false_count:
        numbers = pc.if_else(is_one, numbers, pa.scalar(None, pa.int64()))
    return numbers.cast(milliseconds.type).cast(kind)


def too_large(field: pa.Field) -> str:
    return f"the field {field.name!r} has a number that is too large for its type ({type_name(field.type)})"


def inside(array: pa.Array) -> list[pa.Array]:
    """The arrays that a list, a map or a struct is made of, without what lies below nulls and outside of a slice."""
    kind = array.type
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_struct(array.type):
        parts: list[pa.Array] = array.flatten()
        return parts
    return [array.flatten()] if array.type.num_fields else []
