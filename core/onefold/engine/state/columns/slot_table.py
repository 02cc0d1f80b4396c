"""The memory backend's states of a folding: a slot for each key, and columns of all slots' values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.core.checks import require
from onefold.core.errors import BadRecord
from onefold.engine.state.columns.block_codec import conformed, from_stream, note_of, to_stream, wanted_rows
from onefold.engine.state.columns.slot_columns import column_for, numbers_of
from onefold.engine.state.sharded_tables import SHARDS
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import Folding, Migration
from onefold.flow.processing.rows import values_of

__all__ = ["SlotTable"]

Slots = np.ndarray[Any, Any]


class SlotTable:
    """Implements RowTable. `changes` are what was kept anew since the last `take`, the oldest first. A shard of it is
    every 256th slot."""

    copy_cost = 1

    def __init__(self) -> None:
        self.changes: list[pa.RecordBatch] = []
        self._slots: dict[Any, int] = {}
        self._loaded: list[pa.RecordBatch] = []  # until their schema is known

    def __len__(self) -> int:
        return len(self._slots) + sum(map(len, self._loaded))

    def opened(self, schema: pa.Schema, width: int) -> None:
        """As what its rows are kept, and of how many columns their key is."""
        require(not self._slots, "rows are asked for once")
        self._schema, self._width = schema, width
        self._columns = [column_for(field) for field in schema]
        loaded, self._loaded = self._loaded, []
        for batch in loaded:
            states = conformed([batch], schema)
            slots, _ = self._slots_of(states)
            self._put(slots, states.columns)

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        find = self._slots.get
        slots = np.array([find(key, -1) for key in self._keys(keys)], np.int64)
        return self._rows(slots[slots >= 0])

    def some(self, count: int) -> pa.RecordBatch:
        return self._rows(slice(min(count, len(self._slots)))).select(range(self._width))

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        slots, is_new = self._slots_of(states)
        if not is_new.all():
            states = self._merged(states, slots, np.flatnonzero(~is_new), folding)
        self._put(slots, states.columns)
        self.changes.append(states)
        return states

    def put(self, states: pa.RecordBatch) -> None:
        slots, _ = self._slots_of(states)
        self._put(slots, states.columns)
        self.changes.append(states)

    def scan(self) -> Iterator[pa.RecordBatch]:
        yield self._rows(slice(None, len(self._slots)))

    def _merged(self, states: pa.RecordBatch, slots: Slots, known: Slots, folding: Folding) -> pa.RecordBatch:
        """The states with those that are kept of some of them, merged by their places: so keys are not hashed again."""
        earlier, width = self._rows(slots[known]), self._width
        schema = pa.schema([pa.field("place", pa.int64()), *[*self._schema][width:]])
        pairs = ((known, earlier), (np.arange(len(slots)), states))
        by_place = [
            pa.RecordBatch.from_arrays([pa.array(of), *rows.columns[width:]], schema=schema) for of, rows in pairs
        ]
        try:
            found = folding.merged(by_place)
        except BadRecord:
            folding.merged([earlier, states])  # which names the key
            raise
        order = pa.array(np.argsort(found.column(0).to_numpy()))
        arrays = [*states.columns[:width], *(column.take(order) for column in found.columns[1:])]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _slots_of(self, states: pa.RecordBatch) -> tuple[Slots, Slots]:
        """Each row's slot, and whether it is a new one."""
        keys = self._keys(states)
        find, count = self._slots.get, len(self._slots)
        slots = np.array([find(key, -1) for key in keys], np.int64)
        is_new = slots < 0
        new = np.flatnonzero(is_new)
        slots[new] = np.arange(count, count + len(new))
        self._slots.update(zip([keys[row] for row in new.tolist()], range(count, count + len(new)), strict=True))
        return slots, is_new

    def _keys(self, states: pa.RecordBatch) -> list[Any]:
        """Values of the key's only column, or tuples of those of several."""
        if self._width > 1:
            return [*values_of(states.select(range(self._width)))]
        numbers = numbers_of(states.column(0))
        return [key for (key,) in values_of(states.select([0]))] if numbers is None else numbers

    def _put(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        for column, values in zip(self._columns, columns, strict=True):
            column.put(slots, values)

    def _rows(self, slots: Slots | slice) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([column.take(slots) for column in self._columns], schema=self._schema)

    # for the backend

    def take(self) -> list[pa.RecordBatch]:
        changes, self.changes = self.changes, []
        return changes

    def copy(self, shard: int) -> list[pa.RecordBatch]:
        return [self._rows(slice(shard, len(self._slots), SHARDS))]

    @staticmethod
    def count(changes: list[pa.RecordBatch]) -> int:
        return sum(map(len, changes))

    def changed(self, changes: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
        return ((batch.num_rows, to_stream(batch, keys=self._width)) for batch in changes)

    def copied(self, shards: Sequence[list[pa.RecordBatch]]) -> Iterator[tuple[int, pa.Buffer]]:
        return self.changed([pa.concat_batches(batch for shard in shards for batch in shard)])

    def load(self, data: bytes, wanted: Wanted, migration: Migration | None = None) -> int:
        batch = wanted_rows(from_stream(data), wanted)
        self._loaded.append(batch if migration is None else migration.rows(batch, note_of(batch, "keys")))
        return len(batch)

    def loaded(self) -> None:
        """All rows are loaded."""
