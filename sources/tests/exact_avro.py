"""What an Avro value is, by the specification's binary encoding, byte by byte: the oracle for the Avro parsers."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import Any

from exact import Bad

__all__ = ["avro_row"]

Json = Any
_DAY_ZERO = dt.date(1970, 1, 1)
_DECIMALS = {"bytes", "fixed"}


def avro_row(value: bytes, schema: Json) -> dict[str, Any]:
    """The record, and nothing behind it."""
    cell, end = _cell(value, 0, schema)
    if end != len(value):
        raise Bad
    assert isinstance(cell, dict)
    return cell


def _cell(data: bytes, at: int, schema: Json) -> tuple[Any, int]:
    if isinstance(schema, list):
        branch, at = _long(data, at)
        if not 0 <= branch < len(schema):
            raise Bad
        return _cell(data, at, schema[branch])
    kind, logical = (schema, None) if isinstance(schema, str) else (schema["type"], schema.get("logicalType"))
    if isinstance(kind, dict | list):
        return _cell(data, at, kind)
    match kind:
        case "null":
            return None, at
        case "boolean":
            byte = _take(data, at, 1)[0]
            if byte > 1:
                raise Bad
            return byte == 1, at + 1
        case "int" | "long":
            number, at = _long(data, at)
            bits = 32 if kind == "int" else 64
            if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
                raise Bad
            return _meant(number, logical), at
        case "float":
            return struct.unpack("<f", _take(data, at, 4))[0], at + 4
        case "double":
            return struct.unpack("<d", _take(data, at, 8))[0], at + 8
        case "bytes" | "string":
            length, at = _long(data, at)
            found = _take(data, at, length)
            return (_text(found) if kind == "string" else _bytes(found, schema)), at + length
        case "fixed":
            return _bytes(_take(data, at, schema["size"]), schema), at + schema["size"]
        case "enum":
            index, at = _long(data, at)
            if not 0 <= index < len(schema["symbols"]):
                raise Bad
            return schema["symbols"][index], at
        case "array":
            return _items(data, at, lambda data, at: _cell(data, at, schema["items"]))
        case "map":
            pairs, at = _items(data, at, lambda data, at: _entry(data, at, schema["values"]))
            return dict(pairs), at  # of a key that comes twice, the last, as Java's reader has it
    assert kind == "record", kind
    row = {}
    for field in schema["fields"]:
        row[field["name"]], at = _cell(data, at, field["type"])
    return row, at


def _entry(data: bytes, at: int, values: Json) -> tuple[Any, int]:
    key, at = _cell(data, at, "string")
    value, at = _cell(data, at, values)
    return (key, value), at


def _items(data: bytes, at: int, item: Any) -> tuple[list[Any], int]:
    found: list[Any] = []
    while True:
        count, at = _long(data, at)
        if count == 0:
            return found, at
        if count < 0:
            _, at = _long(data, at)  # the block's size, for those who pass over it
        for _ in range(abs(count)):
            cell, at = item(data, at)
            found.append(cell)


def _long(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = _take(data, at, 1)[0]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if number >= 2**64 or shift > 70:
        raise Bad
    return (number >> 1) ^ -(number & 1), at


def _take(data: bytes, at: int, length: int) -> bytes:
    if length < 0 or at + length > len(data):
        raise Bad
    return data[at : at + length]


def _text(found: bytes) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise Bad from None


def _bytes(found: bytes, schema: Json) -> Any:
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical == "uuid":
        return str(uuid.UUID(bytes=found))
    if logical != "decimal":
        return found
    units = int.from_bytes(found, "big", signed=True)
    if abs(units) >= 10 ** schema["precision"]:
        raise Bad
    sign, digits = int(units < 0), tuple(map(int, str(abs(units))))
    return Decimal((sign, digits, -schema.get("scale", 0)))


_EPOCH = dt.datetime(1970, 1, 1)


def _meant(number: int, logical: str | None) -> Any:
    """In days or microseconds."""
    unit = {"date": "days", "timestamp-millis": "milliseconds", "timestamp-micros": "microseconds"}.get(
        (logical or "").removeprefix("local-")
    )
    if unit is None:
        return number
    try:
        _EPOCH + dt.timedelta(**{unit: number})
    except OverflowError:  # of none of the years 1 to 9999
        raise Bad from None
    return ("days", number) if unit == "days" else ("us", number * {"milliseconds": 1000, "microseconds": 1}[unit])
