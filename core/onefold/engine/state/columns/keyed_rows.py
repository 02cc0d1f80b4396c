"""States of a folding as entries of a VALUE state: for backends that look keys up one by one. What Python has no short
value for, lists and structs, is the bytes of a batch of one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from onefold.core.values.batches import empty_batch
from onefold.engine.state.arrow_entries import guarded
from onefold.engine.state.state_backend import Folding, Key, Migration, StateTable, Value
from onefold.flow.processing.rows import values_of

ROWS_MAX = 1 << 14  # that are read at once
_NO_TABLE: Any = None  # where values alone are read


class KeyedRows:
    """Implements RowTable."""

    def __init__(self, table: StateTable, schema: pa.Schema, width: int) -> None:
        self.entries, self._width = table, width
        self.reopened(schema)

    def reopened(self, schema: pa.Schema) -> None:
        self._schema, width = schema, self._width
        is_nested = [pa.types.is_nested(kind) for kind in schema.types]
        self._flat = [at for at, nested in enumerate(is_nested) if at >= width and not nested]
        self._nested = [at for at, nested in enumerate(is_nested) if at >= width and nested]

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        wanted = self._keys(keys)
        found = zip(wanted, self.entries.get_many(wanted), strict=True)
        kept = [(key, value) for key, value in found if value is not None]
        return self._read(*zip(*kept, strict=True)) if kept else empty_batch(self._schema)

    def some(self, count: int) -> pa.RecordBatch:
        keys = [key for key, _, _ in islice(self.entries.scan(), count)]
        return batch_of(keys, pa.schema([*self._schema][: self._width]))

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        if len(kept := self.find(states.select(range(self._width)))):
            states = folding.merged([kept, states])
        self.entries.put_many(self._keys(states), [*self._values(states)])
        return states

    def put_rows(self, states: pa.RecordBatch) -> None:
        self.entries.put_many(self._keys(states), [*self._values(states)])

    def scan(self) -> Iterator[pa.RecordBatch]:
        entries = ((key, value) for key, _, value in self.entries.scan())
        while some := [*islice(entries, ROWS_MAX)]:
            yield self._read(*zip(*some, strict=True))

    def _values(self, states: pa.RecordBatch) -> Iterator[Value]:
        flat = values_of(states.select(self._flat)) if self._flat else iter([()] * len(states))
        if not self._nested:
            return flat
        nested = states.select(self._nested)
        return ((*row, nested.slice(at, 1).serialize().to_pybytes()) for at, row in enumerate(flat))

    def _read(self, keys: Sequence[Key], values: Sequence[Value]) -> pa.RecordBatch:
        places = [*range(self._width), *self._flat]
        if len(values[0]) < len(self._flat) + bool(self._nested):  # all were kept without a time
            values = [(None, *value) for value in values]
        columns = [*zip(*keys, strict=True), *zip(*values, strict=True)]
        found = {at: pa.array(of, self._schema.field(at).type) for at, of in zip(places, columns, strict=False)}
        if self._nested:
            schema = pa.schema([self._schema.field(at) for at in self._nested])
            rows = guarded(lambda: pa.concat_batches([_row(data, schema) for data in columns[-1]]))
            found |= dict(zip(self._nested, rows.columns, strict=True))
        return pa.RecordBatch.from_arrays([found[at] for at in range(len(self._schema))], schema=self._schema)

    def _keys(self, states: pa.RecordBatch) -> list[Key]:
        return [*values_of(states.select(range(self._width)))]


def batch_of(keys: Sequence[Key], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def migrated_rows(values: Sequence[Value], migration: Migration) -> Iterator[Value]:
    """What KeyedRows keeps of a state's rows, as they are after the migration."""
    before = KeyedRows(_NO_TABLE, migration.before, 0)
    rows = migration.rows(before._read([()] * len(values), values))
    return KeyedRows(_NO_TABLE, rows.schema, 0)._values(rows)


def _row(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    row = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    row.validate(full=True)
    return row
