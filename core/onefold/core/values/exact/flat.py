"""The forms of single values of flat types."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from onefold.core.values.exact.casting import exact_cast
from onefold.core.values.exact.kinds import Family, Mismatch, refused

Convert: TypeAlias = Callable[[Any], Any]

_US = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.UTC)
_SINGLE = struct.Struct("<f")
_INTEGERS_MAX = {16: 2**11, 32: 2**24, 64: 2**53}  # up to which a float of so many bits has them all
# What has no other way to be a value of another type; numpy's scalars and arrays, and pyarrow's scalars, have one.
_PLAIN = (
    bool,
    int,
    float,
    str,
    bytes,
    bytearray,
    memoryview,
    Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    list,
    tuple,
    Mapping,
    set,
    frozenset,
)


def _us_per(kind: pa.DataType) -> int:
    """Microseconds in the unit of a time; 0 where it is finer."""
    return {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}[kind.unit]


def other(value: Any, kind: pa.DataType, convert: Convert) -> Any:
    """The form of a value of a class that is none of Python's own."""
    if value is None:
        return None
    if isinstance(value, _PLAIN):
        raise refused(value, kind)
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        cast = exact_cast(pa.array([scalar.as_py()], scalar.type), kind)
    except Mismatch as error:
        raise Mismatch(error.value, error.reason, error.path) from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise refused(value, kind) from None
    return convert(cast[0].as_py())


def none(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> None:
        if value is not None:
            raise refused(value, kind)

    return convert


def _boolean(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        return value if value is True or value is False else other(value, kind, convert)

    return convert


def _integer(kind: pa.DataType) -> Convert:
    bits = kind.bit_width
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)

    def convert(value: Any) -> Any:
        if type(value) is int:
            if low <= value <= high:
                return value
            raise refused(value, kind)
        if isinstance(value, int) and not isinstance(value, bool):
            return convert(int.__add__(value, 0))
        is_short = isinstance(value, Decimal) and value.is_finite() and (not value or 0 <= value.adjusted() < 20)
        if is_short and value == (whole := int(value)):
            return convert(whole)
        return other(value, kind, convert)

    return convert


def _float(kind: pa.DataType) -> Convert:
    whole = _INTEGERS_MAX[kind.bit_width]
    is_double = kind.bit_width == 64
    code = struct.Struct("<e") if kind.bit_width == 16 else _SINGLE

    def convert(value: Any) -> Any:
        if isinstance(value, float):
            if is_double:
                return value if type(value) is float else float(value)
            try:
                return code.unpack(code.pack(value))[0]
            except OverflowError:
                raise refused(value, kind) from None
        if isinstance(value, int) and not isinstance(value, bool) and -whole <= value <= whole:
            return float(value)
        return other(value, kind, convert)

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    quantum = Decimal((0, (1,), -kind.scale))
    nothing = Decimal((0, (0,), -kind.scale))

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal):
            if not isinstance(value, int) or isinstance(value, bool):
                return other(value, kind, convert)
            if value.bit_length() > 256:
                raise refused(value, kind)
        try:
            # pyarrow must not see exponents below its table of powers of ten: it ends the process.
            found = context.quantize(Decimal(value), quantum)
        except (Inexact, InvalidOperation):
            raise refused(value, kind) from None
        if found.is_nan():
            raise refused(value, kind)
        return found or nothing

    return convert


def _text(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, str):
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise refused(value, kind) from None
            return value if type(value) is str else str.__str__(value)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise refused(value, kind) from None
        return other(value, kind, convert)

    return convert


def _binary(kind: pa.DataType) -> Convert:
    length = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None

    def convert(value: Any) -> Any:
        if isinstance(value, str):
            try:
                data = value.encode()
            except UnicodeEncodeError:
                raise refused(value, kind) from None
        elif isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
        else:
            return other(value, kind, convert)
        if length is not None and len(data) != length:
            raise refused(value, kind)
        return data

    return convert


def _date(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is dt.date:
            return value
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.date(value.year, value.month, value.day)
        return other(value, kind, convert)

    return convert


def _time(kind: pa.DataType) -> Convert:
    unit = _us_per(kind) or 1

    def convert(value: Any) -> Any:
        if not isinstance(value, dt.time):
            return other(value, kind, convert)
        if value.tzinfo is not None or value.microsecond % unit:
            raise refused(value, kind)
        return dt.time(value.hour, value.minute, value.second, value.microsecond)

    return convert


def _counted(us: int, kind: pa.DataType) -> bool:
    """Whether so many microseconds are a whole number of the type's unit, of 64 bits."""
    unit = _us_per(kind)
    return not us % unit if unit > 1 else -(1 << 63) < (us if unit else us * 1000) < 1 << 63


def _duration(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dt.timedelta):
            return other(value, kind, convert)
        if getattr(value, "nanoseconds", 0) or value != value or not _counted(us := value // _US, kind):
            raise refused(value, kind)
        return dt.timedelta(microseconds=us)

    return convert


def _timestamp(kind: pa.DataType) -> Convert:
    zone = None if kind.tz is None else dt.UTC
    epoch = _EPOCH if zone is None else _EPOCH_UTC
    is_us = kind.unit == "us"

    def convert(value: Any) -> Any:
        if type(value) is not dt.datetime:
            if not isinstance(value, dt.datetime):
                return other(value, kind, convert)
            # pandas' have nanoseconds, and a NaT that equals nothing.
            if getattr(value, "nanosecond", 0) or value != value:
                raise refused(value, kind)
            value = dt.datetime(*value.timetuple()[:6], value.microsecond, value.tzinfo, fold=value.fold)
        if value.tzinfo is not zone:
            if value.tzinfo is None or zone is None or value.utcoffset() is None:
                raise refused(value, kind)
            try:
                value = value.astimezone(zone)
            except OverflowError:
                raise refused(value, kind) from None
        if not is_us and not _counted((value - epoch) // _US, kind):
            raise refused(value, kind)
        return value.replace(fold=0) if value.fold else value

    return convert


FLAT: dict[Family, Callable[[pa.DataType], Convert]] = {
    Family.NULL: none,
    Family.BOOLEAN: _boolean,
    Family.INTEGER: _integer,
    Family.FLOAT: _float,
    Family.DECIMAL: _decimal,
    Family.TEXT: _text,
    Family.BINARY: _binary,
    Family.DATE: _date,
    Family.TIME: _time,
    Family.DURATION: _duration,
    Family.ZONED: _timestamp,
    Family.NAIVE: _timestamp,
}
