"""Arrow arrays as JSON texts, a column at a time, each value exactly: no Python object for any row.

Integers and decimals keep every digit; timestamps, dates and times are ISO 8601 with the digits of their unit, with a Z
where they are instants; durations are `PT1.500000S`; binary is base64; a map's key is the text of the key. A row costs
about 0.2 microseconds a column this way; as Python objects (`to_pylist`, then any JSON library) ten times as much.
What JSON has no word for (NaN, infinities) is refused, or a string.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

NotFinite = Literal["refuse", "quote"]

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_LIST_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)
_NUMBERS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)  # without quotes
_MOMENTS = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
_CONTROLS = r"[\x00-\x1f]"
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')] + [(chr(code), f"\\u{code:04x}") for code in range(0x20)]


def objects(names: Sequence[str], columns: Sequence[Any], not_finite: NotFinite = "refuse") -> Any:
    """One JSON object for each row, with all fields in order, null ones too; `names` are its fields'."""
    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if number else '{'}{texts(pa.array([name]))[0].as_py()}:", texts(column, not_finite)]
    return _join(*parts, "}") if parts else pa.array([], pa.string())


def texts(array: Any, not_finite: NotFinite = "refuse") -> Any:
    """Each value as JSON; none is null, since null is a text too. Raises ValueError as `nullable_texts` does."""
    return pc.fill_null(nullable_texts(array, not_finite), "null")


def nullable_texts(array: Any, not_finite: NotFinite = "refuse") -> Any:
    """Each value as JSON in a `pa.StringArray`, null where `array` is null.

    NaN and infinities become strings with `quote`. Raises ValueError for them with `refuse`, and for unknown types.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_dictionary(kind):
        return nullable_texts(array.dictionary_decode(), not_finite)
    if pa.types.is_struct(kind):
        fields = [field.name for field in kind]
        inner = objects(fields, array.flatten(), not_finite) if fields else pa.repeat("{}", len(array))
        return _where_valid(array, inner)
    if pa.types.is_map(kind):
        lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        keys, items = pc.list_flatten(lists).flatten()
        return _bracketed(lists, "{", _join(_key(keys, not_finite), ":", texts(items, not_finite)), "}")
    if _is(kind, _LIST_VIEWS):
        return nullable_texts(array.cast(pa.list_(kind.value_type)), not_finite)
    if _is(kind, _LISTS):
        return _bracketed(array, "[", texts(array.flatten(), not_finite), "]")
    if pa.types.is_floating(kind) and not _all_finite(array):
        plain = _plain(array, not_finite)
        return pc.if_else(pc.is_finite(array), plain, _join('"', plain, '"'))
    plain = _plain(array, not_finite)
    if _is(kind, _NUMBERS):
        return plain
    return _join('"', _escaped(plain) if _is(kind, _STRINGS) else plain, '"')


def plain_texts(array: Any) -> Any:
    """Each value of a type without parts as text, without JSON's quotes; null stays null. Raises ValueError for NaN and
    infinities, and for unknown types."""
    return _plain(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array, "refuse")


def unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The part of a type that has no JSON which is surely read back as the same value, if there is one."""
    if pa.types.is_struct(kind):
        return next((bad for field in kind if (bad := unsupported(field.type)) is not None), None)
    if pa.types.is_map(kind):
        return unsupported(kind.item_type) if _is(kind.key_type, _STRINGS) else kind
    if pa.types.is_dictionary(kind) or _is(kind, _LISTS):
        return unsupported(kind.value_type)
    known = _is(kind, (*_NUMBERS, *_STRINGS, *_BINARIES[:3], *_MOMENTS, pa.types.is_null))
    return None if known else kind


def _is(kind: pa.DataType, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)


def _join(*parts: Any) -> Any:
    """The concatenation of strings and string arrays, null where an array is null."""
    return pc.binary_join_element_wise(*parts, "")


def _where_valid(array: Any, inner: Any) -> Any:
    return pc.if_else(array.is_valid(), inner, None) if array.null_count else inner


def _bracketed(array: Any, opening: str, inner: Any, closing: str) -> Any:
    """The texts of all inner values, joined for each list; `inner` has none of a null list's."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, inner), ",")
    return _where_valid(array, _join(opening, joined, closing))


def _key(keys: Any, not_finite: NotFinite) -> Any:
    kind = keys.type
    if pa.types.is_dictionary(kind):
        return _key(keys.dictionary_decode(), not_finite)
    if _is(kind, (pa.types.is_struct, pa.types.is_map, *_LISTS, *_LIST_VIEWS)):
        return _join('"', _escaped(nullable_texts(keys, not_finite)), '"')
    plain = _plain(keys, not_finite)
    return _join('"', _escaped(plain) if _is(kind, _STRINGS) else plain, '"')


def _plain(array: Any, not_finite: NotFinite) -> Any:
    """Each value as text, without quotes and escapes."""
    kind = array.type
    if _is(kind, _BINARIES):
        return _base64(array.cast(pa.binary()))
    if pa.types.is_timestamp(kind):
        wall = pc.replace_substring(array.cast(pa.timestamp(kind.unit)).cast(pa.string()), " ", "T")
        return wall if kind.tz is None else _join(wall, "Z")  # an instant's is UTC's
    if pa.types.is_duration(kind):
        return _duration(array)
    if pa.types.is_floating(kind):
        return _float(array.cast(pa.float32()) if pa.types.is_float16(kind) else array, not_finite)
    if not _is(kind, (*_NUMBERS, *_STRINGS, *_MOMENTS)):
        raise ValueError(f"{kind} has no form in JSON")
    return (array.cast(pa.date32()) if pa.types.is_date64(kind) else array).cast(pa.string())


def _escaped(text: Any) -> Any:
    if not pc.any(pc.match_substring_regex(text, r'[\x00-\x1f"\\]')).as_py():
        return text
    has_controls = pc.any(pc.match_substring_regex(text, _CONTROLS)).as_py()
    for character, escaped in _ESCAPES if has_controls else _ESCAPES[:2]:
        text = pc.replace_substring(text, character, escaped)
    return text


def _all_finite(array: Any) -> bool:
    return bool(pc.all(pc.is_finite(array), min_count=0).as_py())


def _float(array: Any, not_finite: NotFinite) -> Any:
    text = array.cast(pa.string())
    if _all_finite(array):
        return text
    if not_finite == "refuse":
        raise ValueError("NaN and infinities have no JSON")
    # A NaN has no sign that means anything, and Arrow may print one.
    return pc.if_else(pc.is_nan(array), "NaN", pc.replace_substring(text, "inf", "Infinity"))


def _duration(array: Any) -> Any:
    micros = array.cast(pa.duration("us")).cast(pa.int64())
    seconds = pc.divide(micros, 1_000_000)  # truncates toward zero
    rest = pc.abs(pc.subtract(micros, pc.multiply(seconds, 1_000_000)))
    sign = pc.if_else(pc.less(micros, 0), "-", "")
    return _join(sign, "PT", pc.abs(seconds).cast(pa.string()), ".", pc.utf8_lpad(rest.cast(pa.string()), 6, "0"), "S")


def _base64(array: Any) -> Any:
    """Every value is padded to whole groups of three bytes, all are encoded in one call, and padding becomes `=`."""
    size = pc.fill_null(pc.binary_length(array), 0)
    padding = pc.subtract(pc.multiply(pc.divide(pc.add(size, 2), 3), 3), size)
    padded = pc.binary_join_element_wise(
        pc.fill_null(array, b""), pc.choose(padding, pa.scalar(b""), pa.scalar(b"\0"), pa.scalar(b"\0\0")), b""
    )
    offsets = pa.Array.from_buffers(pa.int32(), len(padded) + 1, [None, padded.buffers()[1]], offset=padded.offset)
    data = padded.buffers()[2]
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    encoded = base64.b64encode(memoryview(data)[start:end]) if data is not None else b""
    text_offsets = pc.multiply(pc.divide(pc.subtract(offsets, start), 3), 4).cast(pa.int32())
    text = pa.StringArray.from_buffers(len(padded), text_offsets.buffers()[1], pa.py_buffer(encoded))
    text = pc.choose(
        padding,
        text,
        _join(pc.utf8_slice_codeunits(text, 0, -1), "="),
        _join(pc.utf8_slice_codeunits(text, 0, -2), "=="),
    )
    return pc.if_else(array.is_valid(), text, None)
