"""Which types take all values of others, as they are or in another form."""

from __future__ import annotations

import pyarrow as pa

from onefold.core.values.exact import Family, family
from onefold.core.values.tuples import form_name

_UNITS = ("s", "ms", "us", "ns")
_BARE = (Family.TEXT, Family.BINARY, Family.BOOLEAN, Family.DATE, Family.NULL)


def is_widened(before: pa.DataType, now: pa.DataType) -> bool:
    """Whether each value of the one type is one of the other: of more digits, a finer unit, or a timestamp of a date.
    Nested types by their parts, whose names stay."""
    if before == now:
        return True
    one, other = family(before), family(now)
    if one is Family.DATE and other in (Family.NAIVE, Family.ZONED):
        return now.tz in (None, "UTC")
    if one is not other or pa.types.is_dictionary(before) or pa.types.is_dictionary(now):
        return False
    match one:
        case Family.INTEGER:
            is_signed = pa.types.is_signed_integer(before), pa.types.is_signed_integer(now)
            more = now.bit_width - before.bit_width
            return bool(more >= 0 if is_signed[0] is is_signed[1] else is_signed[1] and more > 0)
        case Family.FLOAT:
            return bool(now.bit_width >= before.bit_width)
        case Family.DECIMAL:
            more = now.scale - before.scale
            return bool(more >= 0 and now.precision - before.precision >= more)
        case Family.NAIVE | Family.ZONED | Family.TIME | Family.DURATION:
            return _UNITS.index(now.unit) >= _UNITS.index(before.unit)
        case Family.BINARY if pa.types.is_fixed_size_binary(now):
            return False
        case Family.LIST | Family.STRUCT | Family.MAP if not pa.types.is_fixed_size_list(now):
            pairs = [(before.field(at), now.field(at)) for at in range(min(before.num_fields, now.num_fields))]
            return before.num_fields == now.num_fields and all(
                (one is not Family.STRUCT or was.name == is_.name)
                and is_.nullable >= was.nullable
                and is_widened(was.type, is_.type)
                for was, is_ in pairs
            )
        case _:
            return one in _BARE


def is_same_form(before: pa.DataType, now: pa.DataType) -> bool:
    """Of a wider type: whether its values are the same ones in Python."""
    return before == now or (not pa.types.is_nested(before) and form_name(before) == form_name(now))


def is_same_key(before: pa.DataType, now: pa.DataType) -> bool:
    """Of a wider type: whether keys of the one are found as keys of the other."""
    zones = getattr(before, "tz", None), getattr(now, "tz", None)
    return is_widened(before, now) and form_name(before) == form_name(now) and zones[0] == zones[1]
