"""States of aggregates by key: lifted from rows, merged, and made results, a record batch at a time.

To merge states is to sum columns, to keep the least, greatest, first or last of each key, or to gather lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.functions import Aggregate, Gather, Merge, Numbers
from onefold.core.errors import BadRecord
from onefold.core.values.decimals import DIGITS_MAX
from onefold.core.values.exact.late_numpy import np

_WIDE_DIGITS = 76  # of 256 bits
_INTS = {pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1)}


class Accumulation:
    """The aggregates of one operator, over rows of one schema.

    A state is a row of `state_schema`: the key's columns, and one or two columns of each aggregate. A runtime lifts
    each batch with `states`, merges that with what it kept of the same keys (`merged`), keeps the rows, and emits their
    `results`. Merged in the order of their rows, states give the same as all rows at once, but for the last digits of
    sums of floats.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], aggregates: Sequence[tuple[str, Aggregate]]) -> None:
        self._key = list(key)
        self._aggregates = [(each, each.given(schema)) for _, each in aggregates]
        self._lifts = [merge for _, each in aggregates for merge in each.lifts()]
        self._merges = [merge for _, each in aggregates for _, merge in each.parts]
        names = [f"{name}.{part}" for name, each in aggregates for part, _ in each.parts]
        kinds = [kind for state in self._states() for kind in state]
        keys = [schema.field(name) for name in key]
        self.state_schema = pa.schema([*keys, *map(pa.field, names, kinds)])
        self.depends_on_order = any(each.depends_on_order(of) for each, of in self._aggregates)
        self.only_sums = all(merge is Merge.SUM for merge in self._merges)
        results = [pa.field(name, each.result_kind(each.given(schema))) for name, each in aggregates]
        self.result_schema = pa.schema([*keys, *results])

    def states(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The states of a batch's rows: one row of each key in it."""
        return merged(self._raw(batch), self._lifts, self.state_schema)

    def lifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same, but each row's own state where that needs no merging."""
        if self._lifts != self._merges:
            return self.states(batch)
        return pa.RecordBatch.from_arrays(self._raw(batch).columns, schema=self.state_schema)

    def merged(self, states: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One row of each key that the states have. States come in the order of the rows that they are of. Raises
        BadRecord for a sum beyond its type."""
        return merged(pa.concat_batches(states), self._merges)

    def results(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """A row of `result_schema` for each state. Raises BadRecord where a mean does not fit its type."""
        width = at = len(self._key)
        columns = states.columns[:width]
        for (aggregate, _), field in zip(self._aggregates, [*self.result_schema][width:], strict=True):
            columns.append(aggregate.result(states.columns[at : at + len(aggregate.parts)], field.type))
            at += len(aggregate.parts)
        return pa.RecordBatch.from_arrays(columns, schema=self.result_schema)

    def _raw(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self._key]
        for (aggregate, _), kinds in zip(self._aggregates, self._states(), strict=True):
            columns += aggregate.lift(aggregate.values(batch), kinds)
        return pa.RecordBatch.from_arrays(columns, self.state_schema.names)

    def _states(self) -> list[tuple[pa.DataType, ...]]:
        return [each.kinds(given) or () for each, given in self._aggregates]


def merged(states: pa.RecordBatch, merges: Sequence[Merge | Gather], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """One row of each key, in an order of Arrow's own; the columns before those of `merges` are the key. Raises
    BadRecord for a sum beyond its column's type. `schema` is that of the result, where gathered columns have others."""
    width, schema = states.num_columns - len(merges), schema or states.schema
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
        self._groups: Callable[[], tuple[Numbers, int]] | None = None

    def ask(self, values: pa.Array, merge: Merge | Gather) -> Callable[[], pa.Array]:
        """What gives the column's merged values once all have been asked for."""
        if not isinstance(merge, Merge):
            groups = self._groups = self._groups or self._numbered(len(values))
            return lambda: merge(values, *groups())
        if merge is Merge.SUM:
            return self._call(_summable(values), "sum")
        if merge in (Merge.FIRST, Merge.LAST):
            place = self._call(_places(len(values)), "min" if merge is Merge.FIRST else "max")
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

    def _numbered(self, rows: int) -> Callable[[], tuple[Numbers, int]]:
        """What gives the number of each row's group, and how many there are."""
        places = self._call(_places(rows), "list")

        @cache
        def found() -> tuple[Numbers, int]:
            lists, numbers = places(), np.empty(rows, np.int64)
            numbers[lists.flatten().to_numpy()] = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
            return numbers, len(lists)

        return found

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
        return values if values.type == field.type else values.cast(field.type)
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


def _places(count: int) -> pa.Array:
    return pa.array(np.arange(count))
