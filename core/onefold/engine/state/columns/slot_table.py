"""The memory backend's states of a folding: a slot for each key, and columns of all slots' values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import require
from onefold.core.errors import BadRecord
from onefold.engine.state.columns.block_codec import conformed, from_stream, note_of, to_stream, wanted_rows
from onefold.engine.state.columns.slot_columns import column_for, numbers_of
from onefold.engine.state.sharded_tables import SHARDS, walked
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import TIMES, Folding, Key, Migration, Value
from onefold.flow.processing.rows import values_of

Slots = np.ndarray[Any, Any]
_GONE = 0  # the time of a row that is not there any more


class SlotTable:
    """Implements RowTable. A shard of it is every 256th slot."""

    copy_cost = 1
    share_min = 0.0

    def __init__(self) -> None:
        self.entries = self
        self.changes: list[pa.RecordBatch] = []  # what was kept anew since the last `take`, the oldest first
        self._slots: dict[Any, int] = {}
        self._count, self._free = 0, list[int]()  # slots that were given out, and those that are free again
        self._has_row = column_for(pa.field("has_row", pa.bool_()))
        self._due: dict[int, int | None] = {}  # times that are to be put into slots
        self._loaded: list[pa.RecordBatch] = []  # until their schema is known

    def __len__(self) -> int:
        return len(self._slots) + sum(map(len, self._loaded))

    def opened(self, schema: pa.Schema, width: int) -> None:
        """As what its rows are kept, and of how many columns their key is."""
        require(not self._slots, "rows are asked for once")
        self._schema, self._width = schema, width
        self._columns = [column_for(field) for field in schema]
        self._is_timed = TIMES in schema.names
        loaded, self._loaded = self._loaded, []
        for batch in loaded:
            self._take_over(batch)

    def _take_over(self, batch: pa.RecordBatch) -> None:
        """Its times go, or are unknown, where the rows had some or none when it was stored."""
        is_timed, times = TIMES in batch.schema.names, pa.nulls(len(batch), pa.int64())
        if is_timed:
            times, batch = batch.column(self._width), batch.remove_column(self._width)
        if self._is_timed:
            batch = batch.add_column(self._width, TIMES, times)
        states = conformed([batch], self._schema)
        slots, _ = self._slots_of(states)
        self._put(slots, states.columns)
        if is_timed:
            self._free_slots(states, times)

    def reopened(self, schema: pa.Schema) -> None:
        self._schema = schema
        del self._columns[self._width]

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        find = self._slots.get
        slots = np.array([find(key, -1) for key in self._keys(keys)], np.int64)
        return self._rows(slots[slots >= 0])

    def some(self, count: int) -> pa.RecordBatch:
        there = self._of(slice(min(count + len(self._free), self._count)))
        return there.slice(0, count).select(range(self._width))

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        slots, is_new = self._slots_of(states)
        if not is_new.all():
            states = self._merged(states, slots, np.flatnonzero(~is_new), folding)
        self._put(slots, states.columns)
        self.changes.append(states)
        return states

    def put_rows(self, states: pa.RecordBatch) -> None:
        slots, _ = self._slots_of(states)
        self._put(slots, states.columns)
        self.changes.append(states)

    def scan(self) -> Iterator[pa.RecordBatch]:
        yield self._of(slice(None, self._count))

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
        find, count = self._slots.get, self._count
        slots = np.array([find(key, -1) for key in keys], np.int64)
        is_new = slots < 0
        new = np.flatnonzero(is_new)
        free, self._free = self._free[: len(new)], self._free[len(new) :]
        self._count += len(new) - len(free)
        given = [*free, *range(count, self._count)]
        slots[new] = given
        self._slots.update(zip([keys[row] for row in new.tolist()], given, strict=True))
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
        self._has_row.put(slots, pa.repeat(True, len(slots)))

    def _rows(self, slots: Slots | slice) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([column.take(slots) for column in self._columns], schema=self._schema)

    def _of(self, slots: slice) -> pa.RecordBatch:
        """The rows that are there."""
        return self._rows(slots).filter(self._has_row.take(slots))

    # for walks

    def put_time(self, key: Any, value: Value, sub: Key = ()) -> None:
        del sub
        self._due[self._slots[key]] = value[0] if value else None

    def delete(self, key: Any, sub: Key = ()) -> None:
        del sub
        self._due[self._slots[key]] = _GONE

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Any, Key, Value]], Any]]:
        yield from walked(self._times_of, share * len(self), place)
        self._settle()

    def _times_of(self, shard: int) -> list[tuple[Any, Key, Value]]:
        slots = np.flatnonzero(self._has_row.take(slice(shard, self._count, SHARDS)).to_numpy(False)) * SHARDS + shard
        columns = [column.take(slots) for column in self._columns[: self._width + 1]]
        rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*self._schema][: self._width + 1]))
        return [(key, (), (ms,)) for key, ms in zip(self._keys(rows), columns[-1].to_pylist(), strict=True)]

    def _settle(self) -> None:
        """Put the times of a walk into slots, and free those of rows that are gone."""
        if not self._due:
            return
        slots, times = np.array([*self._due]), pa.array([*self._due.values()], pa.int64())
        self._due = {}
        self._columns[self._width].put(slots, times)
        self.changes.append(self._rows(slots))
        self._free_slots(self.changes[-1], times)

    def _free_slots(self, rows: pa.RecordBatch, times: pa.Array) -> None:
        """Of those that are gone."""
        gone = self._keys(rows.filter(pc.fill_null(pc.equal(times, _GONE), False)))
        free = [self._slots.pop(key) for key in gone]
        self._free += free
        self._has_row.put(np.array(free, np.int64), pa.repeat(False, len(free)))

    # for the backend

    def take(self) -> list[pa.RecordBatch]:
        changes, self.changes = self.changes, []
        return changes

    def copy(self, shard: int) -> list[pa.RecordBatch]:
        return [self._of(slice(shard, self._count, SHARDS))]

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
