"""Single values as bytes and back, exactly: the type, a decimal's exponent, a time's zone.

A format of our own, of a tag and the value, because the others lose what must stay: JSON and msgpack know no decimals,
times or tuples, Arrow has one type and one scale for a whole column. pickle and marshal keep all, and are not used: a
snapshot that somebody has changed must not be able to run code, or to crash the interpreter.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from onefold.core.errors import ConfigError, DataLoss

DEPTH_MAX = 200  # of containers within each other; no flow has a schema that is half as deep

_INT = struct.Struct(">cq")
_FLOAT = struct.Struct(">cd")
_SIZED = struct.Struct(">cI")
_NUMBER = struct.Struct(">q")
_REAL = struct.Struct(">d")
_SIZE = struct.Struct(">I")
_EPOCH = dt.datetime(1970, 1, 1)
_US = dt.timedelta(microseconds=1)


def encode(value: Any) -> bytes:
    """The value as bytes: equal values of equal types have equal bytes. Raises ConfigError for other types than None,
    bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, and tuples, lists and dicts of these."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise ConfigError(
            "state-value-type",
            f"a state holds {value!r} of type {type(value).__module__}.{type(value).__qualname__}, which cannot be"
            " stored: keep plain Python values (numbers, text, bytes, decimals, times, tuples, lists, dicts) in states",
        )
    return writer(value)


def decode(data: bytes) -> Any:
    """Raises DataLoss where the bytes are none that `encode` made."""
    try:
        value, end = _read(data, 0)
    except (struct.error, KeyError, ValueError, TypeError, IndexError, ArithmeticError, OSError) as error:
        raise unreadable() from error
    if end != len(data):
        raise unreadable()
    return value


def unreadable() -> DataLoss:
    return DataLoss(
        "state-value-damaged",
        "a value of a snapshot cannot be read, though its checksum is right: another version of onefold wrote it, or"
        " somebody has changed it. Restore with that version, or from an earlier epoch that was kept or a savepoint",
    )


# writing


def _int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _INT.pack(b"i", value)
    return _sized(b"I", value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))


def _sized(tag: bytes, content: bytes) -> bytes:
    return _SIZED.pack(tag, len(content)) + content


def _sequence(tag: bytes) -> Callable[[Any], bytes]:
    return lambda items: b"".join((_SIZED.pack(tag, len(items)), *map(encode, items)))


def _dict(value: dict[Any, Any]) -> bytes:
    return b"".join((_SIZED.pack(b"{", len(value)), *(encode(part) for item in value.items() for part in item)))


def _datetime(value: dt.datetime) -> bytes:
    wall = (value.replace(tzinfo=None) - _EPOCH) // _US
    zone = value.tzinfo
    if zone is None or zone is dt.UTC:
        return _INT.pack(b"n" if zone is None else b"u", wall)
    if isinstance(zone, ZoneInfo) and zone.key:
        name = zone.key
    else:
        offset = value.utcoffset() or dt.timedelta()
        name = f"+{offset // _US}"
    return _sized(b"z", _NUMBER.pack(wall) + bytes([value.fold]) + name.encode())


def _time(value: dt.time) -> bytes:
    if value.tzinfo is not None:
        raise ConfigError("state-value-type", f"a state holds the time {value!r} with a zone: keep it without one")
    return _sized(b"t", value.isoformat().encode())


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _int,
    float: lambda value: _FLOAT.pack(b"f", value),
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _sized(b"b", value),
    Decimal: lambda value: _sized(b"d", str(value).encode()),
    dt.datetime: _datetime,
    dt.date: lambda value: _INT.pack(b"D", value.toordinal()),
    dt.time: _time,
    dt.timedelta: lambda value: _sized(b"e", _int(value // _US)),
    tuple: _sequence(b"("),
    list: _sequence(b"["),
    dict: _dict,
}


# reading: each answers with the value and where the next one begins


def _read(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    tag = data[at]
    if tag in _FIXED:
        return _FIXED[tag](data, at + 1), at + 9
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at + 1
    (size,) = _SIZE.unpack_from(data, at + 1)
    at += 5
    if tag in _CONTENTS:
        if at + size > len(data):
            raise ValueError("cut")
        return _CONTENTS[tag](data[at : at + size]), at + size
    if depth == DEPTH_MAX:
        raise ValueError("deeper than any that is written")
    items = []
    for _ in range(2 * size if tag == _DICT else size):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return _COLLECTIONS[tag](items), at


def _zoned(content: bytes) -> dt.datetime:
    (wall,) = _NUMBER.unpack_from(content)
    name = content[9:].decode()
    zone: dt.tzinfo = ZoneInfo(name) if name[0] != "+" else dt.timezone(int(name[1:]) * _US)
    at: dt.datetime = _EPOCH + wall * _US
    return at.replace(tzinfo=zone, fold=content[8])


def _whole(content: bytes) -> int:
    """Of an integer, as a value of its own."""
    if content[:1] not in (b"i", b"I"):
        raise ValueError("no integer")
    number: int = decode(content)
    return number


def _number(data: bytes, at: int) -> int:
    number: int = _NUMBER.unpack_from(data, at)[0]
    return number


_DICT = ord("{")
_CONSTANTS: dict[int, Any] = {ord("N"): None, ord("T"): True, ord("F"): False}
_FIXED: dict[int, Callable[[bytes, int], Any]] = {
    ord("i"): _number,
    ord("f"): lambda data, at: _REAL.unpack_from(data, at)[0],
    ord("n"): lambda data, at: _EPOCH + _number(data, at) * _US,
    ord("u"): lambda data, at: (_EPOCH + _number(data, at) * _US).replace(tzinfo=dt.UTC),
    ord("D"): lambda data, at: dt.date.fromordinal(_number(data, at)),
}
_CONTENTS: dict[int, Callable[[bytes], Any]] = {
    ord("I"): lambda content: int.from_bytes(content, "big", signed=True),
    ord("s"): lambda content: content.decode("utf-8", "surrogatepass"),
    ord("b"): bytes,
    ord("d"): lambda content: Decimal(content.decode()),
    ord("z"): _zoned,
    ord("t"): lambda content: dt.time.fromisoformat(content.decode()),
    ord("e"): lambda content: _whole(content) * _US,
}
_COLLECTIONS: dict[int, Callable[[list[Any]], Any]] = {
    ord("("): tuple,
    ord("["): list,
    ord("{"): lambda items: dict(zip(items[::2], items[1::2], strict=True)),
}
