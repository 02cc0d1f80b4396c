"""States of aggregates by key: lifted from rows, merged, and made results, a record batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.core.aggregates.functions import Aggregate
from onefold.core.aggregates.merging import merged

__all__ = ["Accumulation"]


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
        self._merges = [merge for _, each in aggregates for _, merge in each.parts]
        names = [f"{name}.{part}" for name, each in aggregates for part, _ in each.parts]
        kinds = [kind for state in self._states() for kind in state]
        keys = [schema.field(name) for name in key]
        self.state_schema = pa.schema([*keys, *map(pa.field, names, kinds)])
        results = [pa.field(name, each.result_kind(each.given(schema))) for name, each in aggregates]
        self.result_schema = pa.schema([*keys, *results])

    def states(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The states of a batch's rows: one row of each key in it."""
        columns = [batch.column(name) for name in self._key]
        for (aggregate, _), kinds in zip(self._aggregates, self._states(), strict=True):
            columns += aggregate.lift(batch.column(aggregate.column or self._key[0]), kinds)
        return self.merged([pa.RecordBatch.from_arrays(columns, schema=self.state_schema)])

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

    def _states(self) -> list[tuple[pa.DataType, ...]]:
        return [each.kinds(given) or () for each, given in self._aggregates]
