"""Columns of a value for each slot, read and written at any slots: numbers as NumPy has them, lists and structs as
Arrow has them, others as Python has them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from onefold.flow.processing.rows import values_of

SLOTS_MIN = 1 << 10
NESTED_BYTES_MIN = 1 << 20  # of arrays that stay as they came
Slots = np.ndarray[Any, Any]


class SlotColumn(Protocol):
    def take(self, slots: Slots | slice) -> pa.Array: ...

    def put(self, slots: Slots, values: pa.Array) -> None:
        """Also beyond the slots there were."""
        ...


def column_for(field: pa.Field) -> SlotColumn:
    if _is_number(field.type):
        return _Numbers(field.type)
    return _Nested(field.type) if pa.types.is_nested(field.type) else _Objects(field)


def numbers_of(values: pa.Array) -> list[int | None] | None:
    """Whole numbers that are equal where the values are; None for values of another kind."""
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) or not _is_number(kind):
        return None
    numbers: list[int | None] = _bits(values).tolist()
    for row in np.flatnonzero(values.is_null()).tolist() if values.null_count else ():
        numbers[row] = None
    return numbers


class _Numbers:
    """Of a type whose values have one width: their bits, and which are not null."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._values = np.zeros(SLOTS_MIN, _dtype(kind))
        self._is_valid = np.zeros(SLOTS_MIN, bool)

    def take(self, slots: Slots | slice) -> pa.Array:
        values, is_valid = np.array(self._values[slots]), self._is_valid[slots]  # a copy, also of a slice
        kind = pa.uint8() if pa.types.is_boolean(self._kind) else self._kind
        valid = None if is_valid.all() else pa.array(is_valid).buffers()[1]
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)]).cast(self._kind)

    def put(self, slots: Slots, values: pa.Array) -> None:
        if len(slots) and (end := int(slots.max()) + 1) > len(self._values):
            self._values, self._is_valid = _grown(self._values, end), _grown(self._is_valid, end)
        self._values[slots] = _bits(values)
        self._is_valid[slots] = values.is_valid().to_numpy(zero_copy_only=False)


class _Objects:
    def __init__(self, field: pa.Field) -> None:
        self._field = field
        self._values = np.full(SLOTS_MIN, None, object)

    def take(self, slots: Slots | slice) -> pa.Array:
        return pa.array(self._values[slots].tolist(), self._field.type)

    def put(self, slots: Slots, values: pa.Array) -> None:
        if len(slots) and (end := int(slots.max()) + 1) > len(self._values):
            self._values = _grown(self._values, end)
        found = np.empty(len(values), object)
        found[:] = [
            value for (value,) in values_of(pa.RecordBatch.from_arrays([values], schema=pa.schema([self._field])))
        ]
        self._values[slots] = found


class _Nested:
    """Arrays as they came, and where in them each slot's value is. Once they are twice as long as after they were last
    made one, they are again, of what slots have."""

    def __init__(self, kind: pa.DataType) -> None:
        self._arrays, self._starts = [pa.nulls(0, kind)], [0]
        self._rows = self._bytes = self._count = 0
        self._bytes_max = NESTED_BYTES_MIN
        self._places = np.zeros(SLOTS_MIN, np.int64)

    def take(self, slots: Slots | slice) -> pa.Array:
        places = self._places[: self._count][slots]
        order = np.argsort(places, kind="stable")
        ascending = places[order]
        bounds = pairwise(np.searchsorted(ascending, [*self._starts, self._rows]).tolist())
        pairs = zip(self._arrays, self._starts, bounds, strict=True)
        parts = [array.take(pa.array(ascending[at:end] - start)) for array, start, (at, end) in pairs if end > at]
        return pa.concat_arrays(parts or self._arrays[:1]).take(pa.array(np.argsort(order)))

    def put(self, slots: Slots, values: pa.Array) -> None:
        self._count = max(self._count, int(slots.max(initial=-1)) + 1)
        if self._count > len(self._places):
            self._places = _grown(self._places, self._count)
        self._places[slots] = np.arange(self._rows, self._rows + len(values))
        self._add(values)
        if self._bytes > self._bytes_max:
            kept = self.take(slice(None))
            self._arrays, self._starts, self._rows, self._bytes = [], [], 0, 0
            self._add(kept)
            self._places[: self._count] = np.arange(self._count)
            self._bytes_max = max(2 * self._bytes, NESTED_BYTES_MIN)

    def _add(self, values: pa.Array) -> None:
        self._arrays.append(values)
        self._starts.append(self._rows)
        self._rows += len(values)
        self._bytes += values.nbytes


def _grown(values: Slots, end: int) -> Slots:
    grown = np.zeros(max(2 * len(values), end), values.dtype)
    grown[: len(values)] = values
    return grown


def _is_number(kind: pa.DataType) -> bool:
    t = pa.types
    are: tuple[Callable[[pa.DataType], bool], ...] = (t.is_boolean, t.is_integer, t.is_floating, t.is_decimal)
    return any(is_one(kind) for is_one in are) or (t.is_temporal(kind) and not t.is_interval(kind))


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    width = 1 if pa.types.is_boolean(kind) else kind.bit_width // 8
    if pa.types.is_unsigned_integer(kind):
        return np.dtype(f"u{width}")
    return np.dtype(f"i{width}" if width <= 8 else f"V{width}")


def _bits(values: pa.Array) -> Slots:
    """The values' bits, whatever they are of a null."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    dtype = _dtype(values.type)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
