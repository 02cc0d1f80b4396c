"""How entries of one schema become those of another: columns of Arrow, or of tuples, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

import pyarrow as pa

from onefold.core.values.exact import exact_array
from onefold.engine.state.arrow_entries import guarded
from onefold.engine.state.schemas.widening import is_same_form
from onefold.engine.state.state_backend import StateSpec, Value
from onefold.flow.processing.rows import values_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A column as it is now: from the one at `at`, of the type `before`, or where that is None the same value,
    `begins`, in each row."""

    field: pa.Field
    at: int | None
    before: pa.DataType | None = None
    begins: Any = None

    def of_values(self, columns: Sequence[Sequence[Any]], count: int) -> Sequence[Any]:
        if self.at is None:
            return [self.begins] * count
        if is_same_form(self.before, self.field.type):
            return columns[self.at]
        column = exact_array(columns[self.at], self.before).cast(self.field.type)
        return [value for (value,) in values_of(pa.record_batch([column], pa.schema([self.field])))]

    def of_arrays(self, columns: Sequence[pa.Array], count: int) -> pa.Array:
        if self.at is None:
            return exact_array([self.begins], self.field.type).take(pa.array([0] * count, pa.int64()))
        return columns[self.at].cast(self.field.type)


@dataclass(frozen=True, slots=True)
class ColumnMigration:
    """Implements Migration. Values have `places`; None: they are as they were. `are_pairs`: an operator's list has keys
    beside them."""

    target: StateSpec | None
    before: pa.Schema
    places: tuple[Place, ...] | None = None
    are_pairs: bool = False

    def values(self, tuples: Sequence[Value | None]) -> list[Value | None]:
        return guarded(lambda: self._values(tuples))

    def rows(self, batch: pa.RecordBatch, width: int = 0) -> pa.RecordBatch:
        return guarded(lambda: self._rows(batch, width))

    def listed(self, items: Sequence[Value]) -> list[Value]:
        if not self.are_pairs:
            return [item for item in self.values(items) if item is not None]
        values = self.values([value for _, value in items])
        return [(key, value) for (key, _), value in zip(items, values, strict=True)]

    def _values(self, tuples: Sequence[Value | None]) -> list[Value | None]:
        there = [value for value in tuples if value is not None]
        if self.places is None or not there:
            return [*tuples]
        columns = self._all([*zip(*there, strict=True)])
        made = [place.of_values(columns, len(there)) for place in self.places]
        rows = zip(*made, strict=True) if made else repeat(())
        return [None if value is None else next(rows) for value in tuples]

    def _rows(self, batch: pa.RecordBatch, width: int) -> pa.RecordBatch:
        if self.places is None:
            return batch
        columns = self._all(batch.columns[width:])
        made = [place.of_arrays(columns, len(batch)) for place in self.places]
        fields = [*[*batch.schema][:width], *(place.field for place in self.places)]
        return pa.RecordBatch.from_arrays([*batch.columns[:width], *made], schema=pa.schema(fields))

    def _all(self, columns: list[T]) -> list[T]:
        if len(columns) != len(self.before):
            raise ValueError(f"{len(columns)} columns")
        return columns


@dataclass(frozen=True, slots=True)
class ExpiryMigration(ColumnMigration):
    """Of the list EXPIRY: `names` are those that its states have now. States that are gone are left out."""

    names: Mapping[str, str] = field(default_factory=dict)

    def listed(self, items: Sequence[Value]) -> list[Value]:
        return [(self.names[name], *rest) for name, *rest in items if name in self.names]
