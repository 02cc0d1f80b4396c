"""States of a folding as entries of a VALUE state: for backends that look keys up one by one. What Python has no short
value for, lists and structs, is the bytes of a batch of one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from onefold.core.values.batches import empty_batch
from onefold.engine.state.columns.block_codec import guarded
from onefold.engine.state.state_backend import Folding, Key, Migration, StateTable, Value
from onefold.flow.processing.rows import values_of

__all__ = ["KeyedRows", "migrated_rows"]

ROWS_MAX = 1 << 14  # that are read at once


class KeyedRows:
    """Implements RowTable."""

    def __init__(self, table: StateTable, schema: pa.Schema, width: int) -> None:
        self._table, self._values = table, _Values(schema, width)

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        wanted = self._values.keys(keys)
        found = zip(wanted, self._table.get_many(wanted), strict=True)
        kept = [(key, value) for key, value in found if value is not None]
        return self._values.rows(*zip(*kept, strict=True)) if kept else empty_batch(self._values.schema)

    def some(self, count: int) -> pa.RecordBatch:
        keys = [key for key, _, _ in islice(self._table.scan(), count)]
        fields = [*self._values.schema][: self._values.width]
        columns = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(fields)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        if len(kept := self.find(states.select(range(self._values.width)))):
            states = folding.merged([kept, states])
        self._table.put_many(self._values.keys(states), [*self._values.of(states)])
        return states

    def put(self, states: pa.RecordBatch) -> None:
        self._table.put_many(self._values.keys(states), [*self._values.of(states)])

    def scan(self) -> Iterator[pa.RecordBatch]:
        entries = ((key, value) for key, _, value in self._table.scan())
        while some := [*islice(entries, ROWS_MAX)]:
            yield self._values.rows(*zip(*some, strict=True))


class _Values:
    """Rows, whose first `width` columns are the key, as entries' values and back."""

    def __init__(self, schema: pa.Schema, width: int) -> None:
        self.schema, self.width = schema, width
        is_nested = [pa.types.is_nested(kind) for kind in schema.types]
        self._flat = [at for at, nested in enumerate(is_nested) if at >= width and not nested]
        self._nested = [at for at, nested in enumerate(is_nested) if at >= width and nested]

    def of(self, states: pa.RecordBatch) -> Iterator[Value]:
        flat = values_of(states.select(self._flat)) if self._flat else iter([()] * len(states))
        if not self._nested:
            return flat
        nested = states.select(self._nested)
        return ((*row, nested.slice(at, 1).serialize().to_pybytes()) for at, row in enumerate(flat))

    def rows(self, keys: Sequence[Key], values: Sequence[Value]) -> pa.RecordBatch:
        places, columns = [*range(self.width), *self._flat], [*zip(*keys, strict=True), *zip(*values, strict=True)]
        found = {at: pa.array(of, self.schema.field(at).type) for at, of in zip(places, columns, strict=False)}
        if self._nested:
            schema = pa.schema([self.schema.field(at) for at in self._nested])
            rows = guarded(lambda: pa.concat_batches([_row(data, schema) for data in columns[-1]]))
            found |= dict(zip(self._nested, rows.columns, strict=True))
        return pa.RecordBatch.from_arrays([found[at] for at in range(len(self.schema))], schema=self.schema)

    def keys(self, states: pa.RecordBatch) -> list[Key]:
        return [*values_of(states.select(range(self.width)))]


def migrated_rows(values: Sequence[Value], migration: Migration) -> Iterator[Value]:
    """What KeyedRows keeps of a state's rows, as they are after the migration."""
    before = _Values(migration.before, 0).rows([()] * len(values), values)
    after = migration.rows(before)
    return _Values(after.schema, 0).of(after)


def _row(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    row = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    row.validate(full=True)
    return row
