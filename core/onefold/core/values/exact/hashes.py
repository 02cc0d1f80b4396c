"""64 bits that stand for a value, the same in every process and for every version of Python. Values that are equal as
Python values have the same, whatever Arrow type brings them: int8 and int64, a decimal with another scale, a timestamp
in another unit or zone. Floats are refused: -0.0 equals 0.0 and NaN does not equal itself."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.values.exact.late_numpy import np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NULL = 0xD6E8FEB86659FD93
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64
_WORDS_MAX = 8  # longer strings are hashed by their digest, which no loop over words can make slow
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_US = dt.timedelta(microseconds=1)
Words: TypeAlias = "np.ndarray[Any, Any]"


def hash_of(values: Sequence[Any]) -> int:
    state = 0
    for value in values:
        state = _mixed(((state + _GOLDEN) & _MASK) ^ _word(value))
    return state


def hashes_of(columns: Sequence[pa.Array], count: int) -> Words:
    """Of each of so many rows (uint64), by its values in these columns. Raises ConfigError for those of other types."""
    state = np.zeros(count, np.uint64)
    for column in columns:
        state = _mix((state + np.uint64(_GOLDEN)) ^ _words(column))
    return state


def _no_key(what: str) -> ConfigError:
    return ConfigError(
        "key-type",
        f"{what}, which cannot be part of a key: keys are integers, strings, bytes, decimals, booleans, dates, times"
        " and timestamps. Cast it, or choose another key (floats have values that are equal and differ)",
    )


# of one value


def _word(value: Any) -> int:
    """64 bits that stand for the value."""
    match value:
        case None:
            return _NULL
        case int():  # and bool
            return value & _MASK
        case str():
            return _bytes_word(value.encode())
        case bytes():
            return _bytes_word(value)
        case Decimal():
            return _decimal_word(value)
        case dt.datetime():
            naive = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            return (naive - _EPOCH) // _US & _MASK
        case dt.date():
            return (value.toordinal() - _EPOCH_DAY) & _MASK
        case dt.time():
            at = dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
            return (at // _US + value.microsecond) & _MASK
        case dt.timedelta():
            return value // _US & _MASK
    raise _no_key(f"a key has the value {value!r} of type {type(value).__name__}")


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX[0]) & _MASK
    word = ((word ^ (word >> 27)) * _MIX[1]) & _MASK
    return word ^ (word >> 31)


def _bytes_word(value: bytes) -> int:
    if len(value) > 8 * _WORDS_MAX:
        return _digest(value)
    state = len(value)
    for at in range(0, len(value), 8):
        state = _mixed(state ^ int.from_bytes(value[at : at + 8], "little"))
    return state


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _decimal_word(value: Decimal) -> int:
    require(value.is_finite(), f"an Arrow decimal is finite, unlike {value}")
    sign, digits, exponent = value.as_tuple()
    number, scale = int("".join(map(str, digits)) or "0"), -int(exponent)
    return _scaled_word(-number if sign else number, scale)


def _scaled_word(number: int, scale: int) -> int:
    """Of `number / 10**scale`, the same for any scale."""
    if scale < 0:
        number, scale = number * 10**-scale, 0
    while scale and number % 10 == 0:
        number, scale = number // 10, scale - 1
    return _mixed((number + scale * _GOLDEN) & _MASK)


# of a column

Hasher = Callable[[pa.Array], Words]


def _words(column: pa.Array) -> Words:
    if isinstance(column, pa.DictionaryArray):
        if not len(column.dictionary):
            return np.full(len(column), _NULL, np.uint64)
        uniques = _words(column.dictionary)
        words = uniques[pc.fill_null(column.indices, 0).to_numpy(zero_copy_only=False)]
        return _with_nulls(words, column)
    hasher = _hasher(column.type)
    if hasher is None:
        raise _no_key(f"a column has the type {column.type}")
    return _with_nulls(hasher(column), column)


def _with_nulls(words: Words, column: pa.Array) -> Words:
    if column.null_count:
        words = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), np.uint64(_NULL), words)
    return words


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX[0])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX[1])
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def _hasher(of: pa.DataType) -> Hasher | None:
    t = pa.types
    if t.is_dictionary(of):
        return _hasher(of.value_type)
    found: tuple[tuple[bool, Hasher], ...] = (
        (t.is_integer(of) or t.is_boolean(of), _integers),
        (t.is_string(of) or t.is_large_string(of) or t.is_string_view(of), _strings),
        (t.is_binary(of) or t.is_large_binary(of) or t.is_binary_view(of) or t.is_fixed_size_binary(of), _strings),
        (t.is_decimal(of), _decimals),
        (t.is_timestamp(of) or t.is_duration(of), _instants),
        (t.is_date(of), _days),
        (t.is_time(of), _times),
        (t.is_null(of), _nothing),
    )
    return next((hasher for fits, hasher in found if fits), None)


def _integers(column: pa.Array) -> Words:
    wide = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
    values = (pc.fill_null(wide, 0) if wide.null_count else wide).to_numpy(zero_copy_only=False)
    words: Words = values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    return words


def _nothing(column: pa.Array) -> Words:
    return np.full(len(column), _NULL, np.uint64)


def _instants(column: pa.Array) -> Words:
    numbers = _integers(column.cast(pa.int64())).view(np.int64)
    unit = column.type.unit
    if unit == "ns":
        numbers = numbers // 1000
    return (numbers * {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}[unit]).view(np.uint64)


def _days(column: pa.Array) -> Words:
    return _integers(column.cast(pa.date32()).cast(pa.int32()))


def _times(column: pa.Array) -> Words:
    return _integers(column.cast(pa.time64("us"), safe=False).cast(pa.int64()))


def _strings(column: pa.Array) -> Words:
    column = pc.fill_null(column.cast(pa.large_binary()), b"")
    size = len(column)
    _, offset_buffer, data_buffer = column.buffers()
    if size == 0:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offset_buffer, np.int64, size + 1, column.offset * 8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    state = lengths.astype(np.uint64)
    data = np.frombuffer(data_buffer, np.uint8, int(offsets[-1])) if data_buffer else np.empty(0, np.uint8)
    data = np.concatenate((data[int(offsets[0]) :], np.zeros(8, np.uint8)))
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    starts = starts - offsets[0]
    for at in range(0, min(int(lengths.max()), 8 * _WORDS_MAX), 8):
        rows = slice(None) if int(lengths.min()) > at else np.flatnonzero(lengths > at)
        word = words[starts[rows] + at]
        missing = 8 - np.minimum(lengths[rows] - at, 8)
        word &= np.uint64(_MASK) >> (missing * 8).astype(np.uint64)
        state[rows] = _mix(state[rows] ^ word)
    for row in np.flatnonzero(lengths > 8 * _WORDS_MAX):
        state[row] = _digest(column[int(row)].as_py())
    return state


def _decimals(column: pa.Array) -> Words:
    scale, width = column.type.scale, column.type.byte_width
    size = len(column)
    if column.type.scale < 0 or width not in (8, 16):
        return np.fromiter((_word(v.as_py()) if v.is_valid else 0 for v in column), np.uint64, size)
    halves = np.frombuffer(column.buffers()[1], "<i8", size * width // 8, column.offset * width).reshape(
        size, width // 8
    )
    if column.null_count:
        halves = np.where(pc.is_null(column).to_numpy(zero_copy_only=False)[:, None], 0, halves)
    numbers = halves[:, 0].copy()
    is_wide = halves[:, -1] != (numbers >> 63) if width == 16 else np.zeros(size, bool)
    scales = np.full(size, scale, np.int64)
    rows = np.flatnonzero(~is_wide) if scale else np.empty(0, np.int64)
    for _ in range(scale):
        rows = rows[numbers[rows] % 10 == 0]
        if not len(rows):
            break
        numbers[rows] //= 10
        scales[rows] -= 1
    words = _mix(numbers.view(np.uint64) + scales.astype(np.uint64) * np.uint64(_GOLDEN))
    for row in np.flatnonzero(is_wide):
        words[row] = _word(column[int(row)].as_py())
    return words
