"""Arrow arrays as JSON texts, a column at a time, each value exactly.

Integers and decimals keep every digit; timestamps are ISO 8601 with microseconds, with a Z where they are instants;
binary is base64. A row costs about 0.2 microseconds a column this way; as Python objects (`to_pylist`, then any JSON
library) ten times as much. What JSON has no word for (NaN, infinities) is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["objects", "plain_texts", "texts", "unsupported"]

_CONTROLS = "[\\x00-\\x1f]"
_DATE_LENGTH = 10  # where a timestamp's text has a blank and ISO 8601 wants a T


def objects(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """One JSON object for each row, with all fields in order, null ones too; `names` are its fields'."""
    parts: list[pa.Array | str] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if number else '{'}{_quoted(name)}:", texts(column)]
    return pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array([], pa.string())


def texts(array: pa.Array) -> pa.Array:
    """Each value as JSON; none is null, since null is a text too. Raises ValueError for NaN and infinities."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return texts(array.cast(kind.value_type))
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar("null"), len(array))
    if pa.types.is_struct(kind):
        fields = [kind[i].name for i in range(kind.num_fields)]
        inner = objects(fields, array.flatten()) if fields else pa.repeat(pa.scalar("{}"), len(array))
        return _or_null(array, inner)
    if pa.types.is_map(kind):
        return _or_null(array, _bracketed(array, "{", _entries(array), "}"))
    if _is_list(kind):
        return _or_null(array, _bracketed(array, "[", texts(array.flatten()), "]"))
    plain = plain_texts(array)
    if _is_bare(kind):
        return pc.fill_null(plain, "null")
    return pc.fill_null(_in_quotes(_escaped(plain) if _is_text(kind) else plain), "null")


def plain_texts(array: pa.Array) -> pa.Array:
    """Each value of a type without parts as text, without JSON's quotes; null stays null."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain_texts(array.cast(kind.value_type))
    if _is_binary(kind):
        encoded = [None if value is None else base64.b64encode(value) for value in array.to_pylist()]
        return pa.array(encoded, pa.binary()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        wall = array.cast(pa.timestamp(kind.unit)).cast(pa.string())  # an instant's is UTC's
        stamp = pc.utf8_replace_slice(wall, -_after_date(kind), 1 - _after_date(kind), "T")
        return stamp if kind.tz is None else pc.binary_join_element_wise(stamp, "Z", "")
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(array)).as_py() and len(array) > array.null_count:
        raise ValueError("NaN and infinities have no JSON")
    return array.cast(pa.string())


def unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The part of a type that has no JSON here, if there is one."""
    if pa.types.is_dictionary(kind):
        return unsupported(kind.value_type)
    if pa.types.is_struct(kind):
        return next((bad for i in range(kind.num_fields) if (bad := unsupported(kind[i].type)) is not None), None)
    if pa.types.is_map(kind):
        return unsupported(kind.item_type) if _is_text(kind.key_type) else kind
    if _is_list(kind):
        return unsupported(kind.value_type)
    known = (
        _is_bare(kind)
        or _is_text(kind)
        or _is_binary(kind)
        or pa.types.is_null(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    )
    return None if known else kind


def _entries(array: pa.Array) -> pa.Array:
    """`"key":value` for each entry of a map's array."""
    entries = pc.list_flatten(array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field]))))
    keys, values = entries.flatten()
    return pc.binary_join_element_wise(texts(keys), texts(values), ":")


def _bracketed(array: pa.Array, opening: str, inner: pa.Array, closing: str) -> pa.Array:
    """The texts of all inner values, joined for each list; a null list counts as empty."""
    lengths = pc.fill_null(pc.list_value_length(_as_list(array)), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, inner), ",")
    return pc.binary_join_element_wise(opening, joined, closing, "")


def _as_list(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        return array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    return array


def _or_null(array: pa.Array, inner: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), inner, "null") if array.null_count else inner


def _quoted(name: str) -> str:
    quoted: str = texts(pa.array([name]))[0].as_py()
    return quoted


def _in_quotes(plain: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', plain, '"', "")


def _escaped(plain: pa.Array) -> pa.Array:
    plain = plain.cast(pa.string())
    escaped = pc.replace_substring(pc.replace_substring(plain, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(escaped, _CONTROLS)).as_py():
        for number in range(0x20):
            escaped = pc.replace_substring(escaped, chr(number), f"\\u{number:04x}")
    return escaped


def _after_date(kind: pa.DataType) -> int:
    """How many characters of a timestamp's text follow its date: years beyond 9999 make the date longer."""
    return len(" 00:00:00") + {"s": 0, "ms": 4, "us": 7, "ns": 10}[kind.unit]


def _is_bare(kind: pa.DataType) -> bool:
    """Whether values stand in JSON without quotes."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
