"""States of a folding as entries of a VALUE state: for backends that look keys up one by one."""

from __future__ import annotations

import pyarrow as pa

from onefold.engine.state.state_backend import Folding, Key, StateTable
from onefold.flow.processing.rows import values_of

__all__ = ["KeyedRows"]


class KeyedRows:
    """Implements RowTable."""

    def __init__(self, table: StateTable, schema: pa.Schema, width: int) -> None:
        self._table, self._schema, self._width = table, schema, width

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        keys = self._keys(states)
        kept = [(key, value) for key, value in zip(keys, self._table.get_many(keys), strict=True) if value is not None]
        if kept:
            columns = zip(*((*key, *value) for key, value in kept), strict=True)
            arrays = [pa.array(of, field.type) for of, field in zip(columns, self._schema, strict=True)]
            states = folding.merged([pa.RecordBatch.from_arrays(arrays, schema=self._schema), states])
            keys = self._keys(states)
        self._table.put_many(keys, [*values_of(states.select(range(self._width, states.num_columns)))])
        return states

    def _keys(self, states: pa.RecordBatch) -> list[Key]:
        return [*values_of(states.select(range(self._width)))]
