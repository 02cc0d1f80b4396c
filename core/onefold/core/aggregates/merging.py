"""Merges states of aggregates by key: columns that are summed, or of which the least, greatest, first or last stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.functions import Merge
from onefold.core.errors import BadRecord
from onefold.core.values.decimals import DIGITS_MAX

__all__ = ["merged"]

_WIDE_DIGITS = 76  # of 256 bits
_INTS = {pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}


def merged(states: pa.RecordBatch, merges: Sequence[Merge]) -> pa.RecordBatch:
    """One row of each key, in an order of Arrow's own; the columns before those of `merges` are the key. Raises
    BadRecord for a sum beyond its column's type."""
    width, schema = states.num_columns - len(merges), states.schema
    grouping = _Grouping(states.columns[:width])
    finish = [grouping.ask(*each) for each in zip(states.columns[width:], merges, strict=True)]
    keys = grouping.run()
    fields = [*schema][width:]
    columns = [_fitted(made(), field, schema.names, keys) for made, field in zip(finish, fields, strict=True)]
    return pa.RecordBatch.from_arrays([*keys, *columns], schema=schema)


class _Grouping:
    """One pass of Arrow's hash aggregation over columns that are asked for beforehand."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self._inputs = list(keys)
        self._width = len(keys)
        self._calls: list[tuple[str, str]] = []
        self._found: pa.Table | None = None

    def ask(self, values: pa.Array, merge: Merge) -> Callable[[], pa.Array]:
        """What gives the column's merged values once all have been asked for."""
        if merge is Merge.SUM:
            return self._call(_summable(values), "sum")
        if merge in (Merge.FIRST, Merge.LAST):
            place = self._call(_numbers(len(values)), "min" if merge is Merge.FIRST else "max")
            return lambda: values.take(place())
        found = self._call(values, merge.value)
        if not pa.types.is_floating(values.type) or merge is Merge.MIN:
            return found  # which has NaN only where there is nothing else
        has_nan = self._call(pc.is_nan(values), "any")
        nan = pa.scalar(float("nan"), values.type)
        return lambda: pc.if_else(pc.fill_null(has_nan(), False), nan, found())

    def run(self) -> list[pa.Array]:
        """The keys, one of each."""
        names = [str(at) for at in range(len(self._inputs))]
        table = pa.Table.from_arrays(self._inputs, names)
        self._found = table.group_by(names[: self._width], use_threads=False).aggregate(self._calls)
        return [self._column(name) for name in names[: self._width]]

    def _call(self, values: pa.Array, function: str) -> Callable[[], pa.Array]:
        name = str(len(self._inputs))
        self._inputs.append(values)
        self._calls.append((name, function))
        return lambda: self._column(f"{name}_{function}")

    def _column(self, name: str) -> pa.Array:
        found: Any = self._found
        return found.column(name).combine_chunks()


def _summable(values: pa.Array) -> pa.Array:
    """The values, in a type in which no group's sum can overflow: Arrow's sums wrap around."""
    kind = values.type
    if pa.types.is_floating(kind):
        return values
    bounds = pc.min_max(values).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    scale = 0 if kind in _INTS else kind.scale
    bound = _INTS[kind][1] if kind in _INTS else Decimal(10) ** (DIGITS_MAX - scale) / 2
    return values if largest * len(values) < bound else values.cast(pa.decimal256(_WIDE_DIGITS, scale))


def _fitted(values: pa.Array, field: pa.Field, names: Sequence[str], keys: Sequence[pa.Array]) -> pa.Array:
    try:
        return values.cast(field.type)
    except pa.ArrowInvalid as error:
        pairs = enumerate(values.to_pylist())
        at = next(at for at, value in pairs if value is not None and not _fits(value, field.type))
        key = ", ".join(f"{name} {column[at].as_py()!r}" for name, column in zip(names, keys, strict=False))
        raise BadRecord(
            "aggregate-overflow",
            f"{field.name} of {key} comes to {values[at].as_py()}, which {field.type} cannot hold. Cast the column"
            " to decimal(38,0) or another wider type before it is summed, or filter such records",
        ) from error


def _fits(value: Any, kind: pa.DataType) -> bool:
    if kind in _INTS:
        least, most = _INTS[kind]
        return bool(least <= value <= most)
    return bool(abs(value) < Decimal(10) ** (kind.precision - kind.scale))


def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())
