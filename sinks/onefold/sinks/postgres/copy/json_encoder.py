"""Arrow columns as JSON texts, a column at a time: no Python object for any row.

Numbers are exact (decimals and 64-bit integers too), NaN and infinities are strings, timestamps ISO 8601 (with a zone:
in UTC, `Z`), dates and times ISO 8601, durations `PT1.500000S`, binary base64, map keys the text of the key.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["json_text"]

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')] + [(chr(code), f"\\u{code:04x}") for code in range(0x20)]


def json_text(array: Any) -> Any:
    """`array` as a `pa.StringArray` of JSON texts; null where `array` is null. Raises ValueError on unknown types."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_dictionary(kind):
        return json_text(array.dictionary_decode())
    if pa.types.is_struct(kind):
        return _struct(array)
    if pa.types.is_map(kind):
        return _map(array)
    if _is(kind, _LISTS):
        return _list(array)
    if pa.types.is_floating(kind):
        text = _scalar(array)
        return pc.if_else(pc.is_finite(array), text, _join('"', text, '"'))
    text = _scalar(array)
    return text if _is_bare(kind) else _join('"', text, '"')


def _is(kind: pa.DataType, tests: tuple[Any, ...]) -> bool:
    return any(test(kind) for test in tests)


def _is_bare(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _join(*parts: Any) -> Any:
    """The concatenation of strings and string arrays, null where an array is null."""
    return pc.binary_join_element_wise(*parts, "")


def _value(array: Any) -> Any:
    return pc.fill_null(json_text(array), "null")


def _scalar(array: Any) -> Any:
    """The text of a scalar as it stands between quotes."""
    kind = array.type
    if _is(kind, _STRINGS):
        return _escape(array.cast(pa.string()))
    if _is(kind, _BINARIES):
        return _base64(array.cast(pa.binary()))
    if pa.types.is_timestamp(kind):
        return _timestamp(array)
    if pa.types.is_duration(kind):
        return _duration(array)
    if pa.types.is_floating(kind):
        text = (array.cast(pa.float32()) if pa.types.is_float16(kind) else array).cast(pa.string())
        for arrows, ours in (("nan", "NaN"), ("inf", "Infinity")):
            text = pc.replace_substring(text, arrows, ours)
        # A NaN has no sign that means anything, and Arrow may print one.
        return pc.if_else(pc.is_nan(array), "NaN", text)
    if _is_bare(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return (array.cast(pa.date32()) if pa.types.is_date64(kind) else array).cast(pa.string())
    raise ValueError(f"{kind} has no form in JSON")


def _escape(text: Any) -> Any:
    if not pc.any(pc.match_substring_regex(text, r'[\x00-\x1f"\\]')).as_py():
        return text
    controls = pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py()
    for character, escaped in _ESCAPES if controls else _ESCAPES[:2]:
        text = pc.replace_substring(text, character, escaped)
    return text


def _timestamp(array: Any) -> Any:
    if array.type.tz is None:
        return pc.replace_substring(array.cast(pa.string()), " ", "T")
    instants = array.cast(pa.int64()).cast(pa.timestamp(array.type.unit))  # the same instants, read in UTC
    return _join(pc.replace_substring(instants.cast(pa.string()), " ", "T"), "Z")


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


def _spans(array: Any) -> tuple[Any, int, int]:
    """A list array's offsets from zero, and which part of its child they cover: slices share one child."""
    offsets = array.offsets
    start, end = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    return pc.subtract(offsets, pa.scalar(start, offsets.type)).cast(pa.int32()), start, end - start


def _joined(array: Any, offsets: Any, texts: Any, opening: str, closing: str) -> Any:
    mask = array.is_null() if array.null_count else None
    lists = pa.ListArray.from_arrays(offsets, texts, mask=mask)
    return _join(opening, pc.binary_join(lists, ","), closing)


def _list(array: Any) -> Any:
    # Not large lists too: that cast shortens children of type null (pyarrow 26).
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        array = array.cast(pa.list_(array.type.value_type))
    offsets, start, length = _spans(array)
    return _joined(array, offsets, _value(array.values.slice(start, length)), "[", "]")


def _map(array: Any) -> Any:
    offsets, start, length = _spans(array)
    keys, items = array.keys.slice(start, length), array.items.slice(start, length)
    return _joined(array, offsets, _join(_key(keys), ":", _value(items)), "{", "}")


def _key(keys: Any) -> Any:
    kind = keys.type
    if pa.types.is_dictionary(kind):
        return _key(keys.dictionary_decode())
    nested = pa.types.is_struct(kind) or pa.types.is_map(kind) or _is(kind, _LISTS)
    return _join('"', _escape(json_text(keys)) if nested else _scalar(keys), '"')


def _struct(array: Any) -> Any:
    parts: list[Any] = []
    for number, field in enumerate(array.type):
        name = json.dumps(field.name, ensure_ascii=False)
        parts += [f"{',' if number else '{'}{name}:", _value(array.field(number))]
    text = _join(*parts, "}") if parts else pa.repeat("{}", len(array))
    return pc.if_else(array.is_valid(), text, None) if array.null_count else text
