"""Entries of a state as Arrow columns and back: a column for each place of the keys', the subs' and the values' tuples.

A place whose values have one type that a column keeps exactly becomes a typed column, which is written and read some
thirty times faster than value by value. Any other place becomes bytes of codec.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from onefold.core.errors import OnefoldError
from onefold.core.values.exact.python_values import python_values
from onefold.engine.key_groups import group_of, groups_of
from onefold.engine.state.codec import decode, encode, unreadable
from onefold.engine.state.state_backend import Key, Value

T = TypeVar("T")

_CODED = {b"coded": b"1"}
_GONE = "gone"
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.UTC)
_DAMAGES = (pa.ArrowException, ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, StopIteration)


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys, subs and values of the same number; a value of None says that the entry is gone."""

    keys: Sequence[Key]
    subs: Sequence[Key]
    values: Sequence[Value | None]


def to_ipc(entries: Entries) -> pa.Buffer:
    """An Arrow IPC stream of one batch."""
    batch, coded = to_batch(entries)
    fields = [field.with_metadata(_CODED) if field.name in coded else field for field in batch.schema]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema(fields)) as stream:
        stream.write_batch(pa.record_batch(batch.columns, schema=pa.schema(fields)))
    return sink.getvalue()


def to_batch(entries: Entries) -> tuple[pa.RecordBatch, frozenset[str]]:
    """A column for each place: `k0` is the key's first, `s0` the sub's, `v0` the value's; `gone` says whether the entry
    is. And which of the columns are bytes of codec.py."""
    arrays: dict[str, pa.Array] = {}
    coded: set[str] = set()
    gone = [value is None for value in entries.values]
    nothing = (None,) * next((len(value) for value in entries.values if value is not None), 0)
    values = [nothing if value is None else value for value in entries.values]
    for prefix, tuples in (("k", entries.keys), ("s", entries.subs), ("v", values)):
        for name, column, is_coded in _columns(prefix, tuples):
            arrays[name] = column
            coded |= {name} if is_coded else set()
    arrays[_GONE] = pa.array(gone, pa.bool_())
    return pa.record_batch([*arrays.values()], names=[*arrays]), frozenset(coded)


def from_batch(
    batch: pa.RecordBatch, coded: Collection[str], groups: Collection[int] | None, max_parallelism: int
) -> Entries:
    """The entries of what `to_batch` has made, as `from_ipc` does."""
    fields = [field.with_metadata(_CODED if field.name in coded else None) for field in batch.schema]
    named = pa.record_batch(batch.columns, schema=pa.schema(fields))
    return guarded(lambda: _entries(_vetted(named), groups, max_parallelism))


def from_ipc(data: bytes | pa.Buffer, groups: Collection[int] | None, max_parallelism: int) -> Entries:
    """The entries of the batch; only those of the key groups, unless `groups` is None. Raises DataLoss for bytes that
    `to_ipc` has not made: a batch that somebody has changed must not crash the interpreter."""
    return guarded(lambda: _entries(_batch(data), groups, max_parallelism))


def guarded(read: Callable[[], T]) -> T:
    """What the function reads. Raises DataLoss where it finds something else than was written."""
    try:
        return read()
    except (*_DAMAGES, OnefoldError) as error:  # the latter for a key of a type that has no group
        raise unreadable() from error


def _entries(batch: pa.RecordBatch, groups: Collection[int] | None, max_parallelism: int) -> Entries:
    if groups is not None:
        batch = _of_groups(batch, groups, max_parallelism)
    gone = batch.column(_GONE)
    values: Sequence[Value | None] = _tuples(batch, "v")
    if gone.true_count:
        values = [None if is_gone else value for is_gone, value in zip(gone.to_pylist(), values, strict=True)]
    return Entries(_tuples(batch, "k"), _tuples(batch, "s"), values)


def _batch(data: bytes | pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        _check(stream.schema)
        return _vetted(stream.read_next_batch())


def _vetted(batch: pa.RecordBatch) -> pa.RecordBatch:
    _check(batch.schema)
    batch.validate(full=True)
    return batch


def _check(schema: pa.Schema) -> None:
    strange = [field for field in schema if not _is_ours(field)]
    if strange or _GONE not in schema.names or len(set(schema.names)) < len(schema):
        raise ValueError(f"columns that no snapshot has: {strange}")


def _is_ours(field: pa.Field) -> bool:
    if field.name == _GONE:
        return bool(pa.types.is_boolean(field.type))
    return pa.types.is_large_binary(field.type) if _is_coded(field) else any(is_of(field.type) for is_of in _OURS)


def typed_columns(tuples: Sequence[tuple[Any, ...]]) -> list[pa.Array] | None:
    """A column for each place of the tuples; None where one has no type, or where they differ in width."""
    columns = list(_columns("k", tuples))
    return None if not columns or any(is_coded for _, _, is_coded in columns) else [column for _, column, _ in columns]


def _of_groups(batch: pa.RecordBatch, groups: Collection[int], max_parallelism: int) -> pa.RecordBatch:
    fields = [field for field in batch.schema if field.name.startswith("k")]
    if not fields or any(map(_is_coded, fields)):
        found = np.array([group_of(key, max_parallelism) for key in _tuples(batch, "k")], np.uint16)
    else:
        found = groups_of([batch.column(field.name) for field in fields], max_parallelism)
    wanted = np.zeros(max_parallelism, bool)
    wanted[list(groups)] = True
    return batch.filter(pa.array(wanted[found]))


# columns of tuples


def _columns(prefix: str, tuples: Sequence[tuple[Any, ...]]) -> Iterable[tuple[str, pa.Array, bool]]:
    widths = set(map(len, tuples))
    if len(widths) > 1:
        yield f"{prefix}*", _coded(tuples), True
    if len(widths) > 1 or widths == {0}:
        return
    for number, column in enumerate(zip(*tuples, strict=True)):
        typed = _typed(column)
        yield f"{prefix}{number}", _coded(column) if typed is None else typed, typed is None


def _tuples(batch: pa.RecordBatch, prefix: str) -> list[tuple[Any, ...]]:
    fields = [field for field in batch.schema if field.name.startswith(prefix)]
    columns = [_values(batch.column(field.name), _is_coded(field), prefix != "v") for field in fields]
    if not fields:
        return [()] * batch.num_rows
    if fields[0].name == f"{prefix}*":
        if {*map(type, columns[0])} - {tuple}:
            raise TypeError("no tuples")
        return columns[0]
    return list(zip(*columns, strict=True))


def _is_coded(field: pa.Field) -> bool:
    return bool(field.metadata) and field.metadata.get(b"coded") == b"1"


def _coded(values: Iterable[Any]) -> pa.Array:
    return pa.array(map(encode, values), pa.large_binary())


def _typed(values: Sequence[Any]) -> pa.Array | None:
    """None where no type keeps all of the values as they are."""
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.nulls(len(values))
    if len(types) > 1:
        return None
    find = _TYPES.get(types.pop())
    of = find(values) if find is not None else None
    if of is None:
        return None
    try:
        return pa.array(values, of)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):  # an int over 64 bits, half a surrogate pair
        return None


def _time_type(values: Sequence[dt.datetime | None]) -> pa.DataType | None:
    zones = {value.tzinfo for value in values if value is not None}
    if zones == {None}:
        return pa.timestamp("us")
    return pa.timestamp("us", "UTC") if len(zones) == 1 and zones.pop() is dt.UTC else None


def _decimal_type(values: Sequence[Decimal | None]) -> pa.DataType | None:
    found = [value for value in values if value is not None]
    exponent = found[0].as_tuple().exponent
    if not isinstance(exponent, int) or not -38 <= exponent <= 0 or not all(map(found[0].same_quantum, found)):
        return None
    if any(not value and value.is_signed() for value in found):
        return None
    return pa.decimal128(38, -exponent)


_OURS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_int64,
    pa.types.is_float64,
    pa.types.is_large_string,
    pa.types.is_large_binary,
    pa.types.is_date32,
    lambda of: of in (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    lambda of: pa.types.is_decimal128(of) and of.precision == 38 and 0 <= of.scale <= 38,
)

_TYPES: dict[type, Callable[[Sequence[Any]], pa.DataType | None]] = {
    bool: lambda _: pa.bool_(),
    int: lambda _: pa.int64(),
    float: lambda _: pa.float64(),
    str: lambda _: pa.large_string(),
    bytes: lambda _: pa.large_binary(),
    dt.date: lambda _: pa.date32(),
    dt.datetime: _time_type,
    Decimal: _decimal_type,
}


def _values(column: pa.Array, is_coded: bool, is_key: bool) -> list[Any]:
    if is_coded:
        decoded = [decode(value) for value in column.to_pylist()]
        if is_key:
            frozenset(decoded)  # raises TypeError for what has no hash
        return decoded
    of = column.type
    if pa.types.is_timestamp(of):
        since = _EPOCH if of.tz is None else _EPOCH_UTC
        numbers = column.cast(pa.int64()).to_pylist()
        return [None if number is None else since + dt.timedelta(microseconds=number) for number in numbers]
    if column.null_count == 0 and (pa.types.is_int64(of) or pa.types.is_float64(of)):
        found: list[Any] = column.to_numpy().tolist()
        return found
    return python_values(column)
