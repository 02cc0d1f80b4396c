"""Encodes values as the exact bytes of cells and row keys, a column at a time.

    bytes      as they are
    string     UTF-8; also the text of a number, date, timestamp or boolean
    integer    8 bytes, big-endian, sign bit flipped: byte order is number order
    long       8 bytes, big-endian two's complement: what Java's Bytes.toBytes(long) and HBase's counters write
    decimal    decimal(precision, scale): 16 bytes, big-endian, sign bit flipped, of the unscaled number
    double     8 bytes, IEEE 754 with its sign turned so that byte order is number order; NaN is last,
               or first where its sign is set
    boolean    FF or 00, as Java's Bytes.toBytes(boolean)
    timestamp  microseconds since 1970 (UTC), written as an integer
    date       days since 1970: 4 bytes, big-endian, sign bit flipped
    json       JSON text: of nested values, or a text that is JSON already. Lists and structs come back as such, but
               for those of bytes, maps, times; these, and texts, as texts

All but `string`, `bytes` and `json` are of one length.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.buffers import from_fixed, to_fixed
from onefold.clients.hbase.rows.jsonvalues import is_readable
from onefold.clients.hbase.rows.jsonvalues import parsed as parsed_json
from onefold.core.errors import ConfigError
from onefold.core.values import json_encoder
from onefold.core.values.decimals import parsed as parsed_text
from onefold.core.values.exact import exact_cast

_WIDTHS = {"integer": 8, "long": 8, "decimal": 16, "double": 8, "boolean": 1, "timestamp": 8, "date": 4}
_KINDS = {
    "bytes": pa.binary(),
    "string": pa.string(),
    "integer": pa.int64(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "json": pa.string(),
}
ENCODINGS = ("bytes", "string", "integer", "long", "decimal", "double", "boolean", "timestamp", "date", "json")

_SIGN = np.uint64(1 << 63)
_YEARS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31, in days: texts of others are not read back


def width(encoding: str) -> int | None:
    """The number of bytes of each value; None where values differ in length."""
    return _WIDTHS.get(encoding)


def parsed(text: str) -> tuple[str, pa.DataType | None]:
    """The encoding that a user has written, and its type: `decimal` alone has none. Raises ConfigError."""
    word, _, bounds = text.strip().lower().partition("(")
    word = word.strip()
    if word not in ENCODINGS or (bounds and word != "decimal"):
        raise ConfigError(
            "option-value", f"{text!r} is no encoding: there are {', '.join(ENCODINGS)}, decimal as decimal(12,2)"
        )
    if not bounds:
        return word, _KINDS.get(word)
    digits = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*\)", bounds)
    if digits is None or not 0 <= int(digits[2]) <= int(digits[1]) <= 38 or int(digits[1]) == 0:
        raise ConfigError(
            "option-value", f"{text!r} is not decimal(precision, scale) with at most 38 digits, such as decimal(12,2)"
        )
    return word, pa.decimal128(int(digits[1]), int(digits[2]))


def natural(kind: pa.DataType) -> str | None:
    """The default encoding of a type; None where it has none."""
    if pa.types.is_dictionary(kind):
        return natural(kind.value_type)
    if _is_text(kind):
        return "string"
    if _is_binary(kind):
        return "bytes"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_decimal128(kind):
        return "decimal"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "double"
    return "json" if pa.types.is_nested(kind) and json_encoder.unsupported(kind) is None else None


def fitting(encoding: str, kind: pa.DataType) -> pa.DataType | None:
    """The type in which a column of this type is read back; None where the encoding cannot hold it."""
    if pa.types.is_dictionary(kind):
        return fitting(encoding, kind.value_type)
    own = natural(kind)
    match encoding:
        case "bytes":
            return pa.binary() if own == "bytes" else None
        case "json":
            if own == "string" or json_encoder.unsupported(kind) is not None:
                return pa.string() if own == "string" else None
            return kind if pa.types.is_nested(kind) and is_readable(kind) else pa.string()
        case "string":
            return None if own in (None, "json", "bytes") else pa.string() if own == "string" else kind
        case "integer" | "long":
            return kind if own == "integer" else None
        case _:
            return kind if own == encoding else None


def kept(encoding: str, kind: pa.DataType) -> str:
    """What a column must keep for its bytes to mean the same: the same text for all types that write a value alike,
    and read it back as it was or raise ValueError. An integer may become a long, a float a double."""
    if encoding == "decimal":
        return f"decimal of {kind.scale} places"
    if encoding == "json":
        return f"json of {_members(kind)}"
    if encoding != "string" or pa.types.is_string(kind):
        return encoding
    if pa.types.is_integer(kind):
        return "string of integers"
    if pa.types.is_decimal(kind):
        return f"string of decimals of {kind.scale} places"
    if pa.types.is_timestamp(kind):
        return f"string of timestamps ({kind.unit}{'' if kind.tz is None else ', UTC'})"
    return f"string of {kind}"


def _members(kind: pa.DataType) -> str:
    """Of a type in JSON, what is read back."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"lists of {_members(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"({', '.join(f'{field.name} {_members(field.type)}' for field in kind)})"
    return "integers" if pa.types.is_integer(kind) else str(kind)


def encode(array: pa.Array, encoding: str, kind: pa.DataType) -> pa.BinaryArray:
    """The bytes of each value; null stays null. `kind` is the result of `fitting`. Raises ValueError."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if encoding == "json" and not _is_text(array.type):
        return json_encoder.nullable_texts(array).cast(pa.binary())
    array = exact_cast(array, kind)
    if encoding in ("bytes", "json") or (encoding == "string" and pa.types.is_string(kind)):
        return array.cast(pa.binary())
    if encoding == "string":
        return _texts(array).cast(pa.binary())
    return from_fixed(_matrix(array, encoding), array)


def decode(values: pa.BinaryArray, encoding: str, kind: pa.DataType) -> pa.Array:
    """The values of these bytes, as `kind`; null where there are none. Raises ValueError."""
    if encoding == "bytes":
        return values
    if encoding == "json" and not pa.types.is_string(kind):
        return parsed_json(values.cast(pa.string()), kind)
    if encoding in ("string", "json"):
        return parsed_text(values.cast(pa.string()), kind)
    array = _unpacked(to_fixed(values, _WIDTHS[encoding]), encoding, kind)
    if values.null_count:
        array = pc.if_else(values.is_valid(), array, pa.scalar(None, array.type))
    return _as(array, kind)


def _texts(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        days = array.cast(pa.timestamp(getattr(kind, "unit", "s"))).cast(pa.date32(), safe=False).cast(pa.int32())
        found = pc.min_max(days)
        if found["min"].is_valid and (found["min"].as_py() < _YEARS[0] or found["max"].as_py() > _YEARS[1]):
            raise ValueError("a date outside of the years 1 to 9999, which has no text that is read back")
    return array.cast(pa.string())


def _matrix(array: pa.Array, encoding: str) -> Any:
    """The values of a type with a fixed length as a matrix, a row each. A null's row may have any bytes."""
    if encoding == "decimal":
        data = np.frombuffer(array.buffers()[1], dtype=np.uint8)
        matrix = data[array.offset * 16 : (array.offset + len(array)) * 16].reshape(-1, 16)[:, ::-1].copy()
        matrix[:, 0] ^= 0x80
        return matrix
    if encoding == "boolean":
        return np.where(pc.fill_null(array, False).to_numpy(zero_copy_only=False), 0xFF, 0).astype(np.uint8)[:, None]
    if encoding == "date":
        days = _numbers(array.cast(pa.int32())).view(np.uint32) ^ np.uint32(1 << 31)
        return days.astype(">u4").view(np.uint8).reshape(-1, 4)
    if encoding == "double":
        doubles = array.cast(pa.float64())
        bits = _numbers(doubles).view(np.uint64)
        bits = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    else:
        if encoding == "timestamp":
            array = array.cast(pa.timestamp("us", array.type.tz))
        bits = _numbers(array.cast(pa.int64())).view(np.uint64)
        bits = bits if encoding == "long" else bits ^ _SIGN
    return bits.astype(">u8").view(np.uint8).reshape(-1, 8)


def _unpacked(matrix: Any, encoding: str, kind: pa.DataType) -> pa.Array:
    if encoding == "decimal":
        matrix = matrix.copy()
        matrix[:, 0] ^= 0x80
        buffers = [None, pa.py_buffer(np.ascontiguousarray(matrix[:, ::-1]))]
        return pa.Array.from_buffers(kind, len(matrix), buffers)
    if encoding == "boolean":
        flags = matrix[:, 0]
        if ((flags != 0) & (flags != 0xFF)).any():
            raise ValueError("a byte that is neither FF nor 00")
        return pa.array(flags == 0xFF)
    matrix = np.ascontiguousarray(matrix)
    if encoding == "date":
        days = matrix.view(">u4")[:, 0].astype(np.uint32) ^ np.uint32(1 << 31)
        return pa.array(days.view(np.int32)).cast(pa.date32())
    bits = matrix.view(">u8")[:, 0].astype(np.uint64)
    if encoding == "double":
        return pa.array(np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64))
    numbers = pa.array((bits if encoding == "long" else bits ^ _SIGN).view(np.int64))
    return numbers.cast(pa.timestamp("us", kind.tz)) if encoding == "timestamp" else numbers


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_float32(kind):
        floats = array.cast(kind)
        if not pc.all(pc.or_(pc.equal(floats.cast(pa.float64()), array), pc.is_nan(array)), min_count=0).as_py():
            raise ValueError("a double that a float cannot hold")
        return floats
    if pa.types.is_decimal(kind):
        array.validate(full=True)  # its digits, against the precision
    return array.cast(kind)


def _numbers(array: pa.Array) -> Any:
    return pc.fill_null(array, pa.scalar(0, array.type)).to_numpy(zero_copy_only=False)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
