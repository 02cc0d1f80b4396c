"""What a value is, by exact arithmetic and the formats' own grammars: the oracle for the parsers. Slow, and shares no
code with them."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import struct
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

__all__ = ["Bad", "csv_row", "json_row"]

_EXACT = Context(prec=500, Emax=10**9, Emin=-(10**9))
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"(....-..-..)(?:[ T]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?)?)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Bad(Exception):
    """The value is none of its type."""


class _Number(str):
    pass


def json_row(value: bytes | None, schema: pa.Schema) -> dict[str, Any]:
    """By RFC 8259; with a limit for numbers, as it allows, and names that are unique among the fields asked for."""
    if value is None:
        raise Bad
    try:
        found = json.loads(
            value.strip(b" \t\r\n").decode(),
            parse_int=_number,
            parse_float=_number,
            parse_constant=_none,
            object_pairs_hook=tuple,
        )
    except ValueError:
        raise Bad from None
    if not isinstance(found, tuple):
        raise Bad
    _check_texts(found)
    return _object(found, list(schema))


def csv_row(value: bytes, schema: pa.Schema, delimiter: str) -> dict[str, Any]:
    """By RFC 4180; a quote inside a field without quotes is itself."""
    try:
        line = value.decode()
    except UnicodeDecodeError:
        raise Bad from None
    line = line.removesuffix("\n").removesuffix("\r")
    if "\n" in line or "\r" in line:
        raise Bad
    fields: list[tuple[str, bool]] = []
    rest: str | None = line
    while rest is not None:
        if rest.startswith('"'):
            found = re.match(r'"((?:[^"]|"")*)"', rest)
            if found is None:
                raise Bad
            text, quoted, behind = found[1].replace('""', '"'), True, rest[found.end() :]
            if behind and not behind.startswith(delimiter):
                raise Bad
            rest = behind[1:] if behind else None
        else:
            text, there, behind = rest.partition(delimiter)
            quoted, rest = False, behind if there else None
        fields.append((text, quoted))
    if len(fields) != len(schema):
        raise Bad
    return {column.name: _csv_cell(*cell, column) for column, cell in zip(schema, fields, strict=True)}


def _number(text: str) -> _Number:
    return _Number(text)


def _none(_: str) -> None:
    raise ValueError


def _check_texts(found: Any) -> None:
    """No half of a surrogate pair, and no number too large for a double, wherever it is."""
    if isinstance(found, _Number):
        if abs(_float64(found)) == float("inf"):
            raise Bad
    elif isinstance(found, str):
        if any("\ud800" <= c <= "\udfff" for c in found):
            raise Bad
    elif isinstance(found, tuple | list):
        for item in found:
            _check_texts(item)


def _object(pairs: tuple[tuple[str, Any], ...], fields: list[pa.Field]) -> dict[str, Any]:
    names = [name for name, _ in pairs if any(field.name == name for field in fields)]
    if len(names) != len(set(names)):
        raise Bad
    cells = dict(pairs)
    row = {field.name: _json_cell(cells.get(field.name), field.type) for field in fields}
    if any(row[field.name] is None and not field.nullable for field in fields):
        raise Bad
    return row


def _json_cell(found: Any, kind: pa.DataType) -> Any:
    if found is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(found, tuple):
            raise Bad
        return _object(found, [kind[i] for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        if not isinstance(found, list):
            raise Bad
        return [_json_cell(item, kind.value_type) for item in found]
    if pa.types.is_boolean(kind):
        if not isinstance(found, bool):
            raise Bad
        return found
    if not isinstance(found, str) or isinstance(found, bool):
        raise Bad
    if pa.types.is_decimal(kind):
        return _decimal(found, kind)
    if isinstance(found, _Number) != (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise Bad
    if pa.types.is_integer(kind):
        return _integer(found, kind)
    if pa.types.is_floating(kind):
        return _finite(found, kind)
    if pa.types.is_binary(kind):
        try:
            return base64.b64decode(found, validate=True)
        except ValueError:
            raise Bad from None
    return str(found) if pa.types.is_string(kind) else _at(found, kind, zone_needed=False)


def _csv_cell(text: str, quoted: bool, field: pa.Field) -> Any:
    kind = field.type
    if not text and not quoted:
        if not field.nullable:
            raise Bad
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        if text not in ("true", "false"):
            raise Bad
        return text == "true"
    trimmed = text.strip(" \t")
    if pa.types.is_decimal(kind):
        return _decimal(trimmed, kind)
    if pa.types.is_integer(kind):
        return _integer(trimmed, kind)
    if pa.types.is_floating(kind):
        if named := re.fullmatch(r"([+-]?)(?:(nan)|inf(?:inity)?)", trimmed, re.IGNORECASE):
            return float("nan") if named[2] else float(f"{named[1]}inf")
        return _finite(trimmed, kind)
    return _at(trimmed if pa.types.is_date(kind) else text, kind, zone_needed=True)


def _integer(text: str, kind: pa.DataType) -> int:
    if not _INTEGER.fullmatch(text) or len(text) > 100:
        raise Bad
    number = int(text)
    if not -(2 ** (_BITS[kind] - 1)) <= number < 2 ** (_BITS[kind] - 1):
        raise Bad
    return number


def _decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    """Exactly; with 38 digits at most and exponents from -38, as docs/kafka-source.md says."""
    if not _NUMBER.fullmatch(text):
        raise Bad
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    exponent = int(power or 0) if len(power) < 100 else 10**9
    if exponent < -38 or len(whole.lstrip("0")) + len(fraction) + max(exponent - len(fraction), 0) > 38:
        raise Bad
    number = Decimal(text)
    units = number.scaleb(kind.scale, _EXACT)
    if units != units.to_integral_value(context=_EXACT) or units.copy_abs() >= 10**kind.precision:
        raise Bad
    return number


def _float64(text: str) -> float:
    return float(text)


def _finite(text: str, kind: pa.DataType) -> float:
    if not _NUMBER.fullmatch(text):
        raise Bad
    found = _float64(text) if kind == pa.float64() else _float32(text)
    if abs(found) == float("inf"):
        raise Bad
    return found


def _float32(text: str) -> float:
    """The nearest one to the text itself: by way of a double it might be its neighbour."""
    near = _float64(text)
    if abs(near) > 1e39 or abs(near) < 1e-46:
        return float("inf") if abs(near) > 1 else near * 0.0
    exact = Fraction(Decimal(text))
    bits = struct.unpack("<I", struct.pack("<f", min(max(near, -3.4028234663852886e38), 3.4028234663852886e38)))[0]
    magnitude = bits & 0x7FFFFFFF
    sign = -1 if bits >> 31 else 1
    around = [number for number in (magnitude - 1, magnitude, magnitude + 1) if 0 <= number <= 0x7F800000]
    best = min(around, key=lambda number: (abs(_value32(number) - abs(exact)), number & 1))
    return sign * (float("inf") if best == 0x7F800000 else float(_value32(best)))


def _value32(bits: int) -> Fraction:
    if bits == 0x7F800000:
        return Fraction(2) ** 128
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])


def _at(text: str, kind: pa.DataType, *, zone_needed: bool) -> Any:
    if pa.types.is_date(kind):
        return _day(text)
    found = _TIME.fullmatch(text)
    if found is None:
        raise Bad
    day, hour, minute, second, fraction, zone = found.groups()
    if (kind.tz is None and zone is not None) or (kind.tz is not None and zone_needed and zone is None):
        raise Bad
    if zone is not None and hour is None:
        raise Bad
    date = _day(day)
    try:
        at = dt.datetime(
            date.year,
            date.month,
            date.day,
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "").ljust(6, "0")),
        )
    except ValueError:
        raise Bad from None
    if kind.tz is None:
        return at
    at = at.replace(tzinfo=dt.UTC)
    if zone in (None, "Z"):
        return at
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 23 or int(digits[2:]) > 59:
        raise Bad
    offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return at - offset if zone[0] == "+" else at + offset


def _day(text: str) -> dt.date:
    found = _DATE.fullmatch(text)
    if found is None:
        raise Bad
    try:
        return dt.date(*map(int, found.groups()))
    except ValueError:
        raise Bad from None
