"""mode="rolling": rows are merged into what the table has, and a replay merges them into what it had before.

A row has, in one mutation at the timestamp T of its epoch, for each column its value and the one that it replaced, and
a cell that says T. Whoever finds an older T merges into the values; whoever finds its own, of a task that had come so
far before it died, merges into the previous ones, and writes the same again, whatever was flushed or compacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.buffers import from_fixed, to_fixed
from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.column_encoder import NULL
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.contract import Guarantee, SinkKind, SinkWriter, TaskId
from onefold.core.errors import ConfigError, Fenced
from onefold.core.failpoints import failpoint
from onefold.sinks.hbase.aggregates import Accumulator, Base, Function
from onefold.sinks.hbase.merge import (
    Merge,
    aggregate_of,
    base_states,
    bound,
    check,
    merge_of,
    own_cell,
    own_family_of,
    previous_cell,
    states_of,
)
from onefold.sinks.hbase.sink_plan import HBasePlan, Mode
from onefold.sinks.write_through import WritingThrough

KEYS_MAX = 20_000  # that are read and written at once
_EPOCH_WIDTH = 9  # T in milliseconds, 8 bytes, big-endian; 1 where there was a row before, or 0

Bools = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rolling(Mode):
    merge: Merge
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, merge: Mapping[str, str] | Function | str, order: tuple[str, ...] = ()) -> Rolling:
        """The mode as a user has written it; the table keeps the columns of `order` too. Raises ConfigError."""
        if isinstance(merge, Mapping):
            merge = {**merge, **{name: "last" for name in order if name not in merge}}
        return cls(merge_of(merge, order), order)

    @property
    def name(self) -> str:
        return "rolling"

    def check(self, declared: TableMapping) -> None:
        check(self.merge, declared)

    def guarantee(self) -> Guarantee:
        conditions = (
            "the transformation is deterministic and its code unchanged between replays, and the source still has an"
            " epoch that was begun: it cannot be given up, only written again",
            "the rows of a key are in one task (repartition=False leaves that to you)",
            "readers see an epoch's rows one by one, as they are written; each row whole",
            "nobody else writes these rows",
            "a family's TTL is longer than any epoch stays open; a row that it forgets begins anew",
        )
        return Guarantee(self.name, SinkKind.WRITE_THROUGH, False, conditions)

    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        return bound(self.merge, declared, schema)

    def identity(self, declared: TableMapping) -> Mapping[str, str]:
        return own_family_of(declared)

    def layout(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:  # noqa: ARG002
        return states_of(mapping)

    def counts(self) -> tuple[str, ...]:
        return self.order

    def writer(self, plan: HBasePlan, task: TaskId) -> SinkWriter:
        return RollingWriter(self.merge, plan, task)


class RollingWriter(WritingThrough):
    """One attempt of one task. It reads and writes the table once it has all of its rows."""

    def __init__(self, merge: Merge, plan: HBasePlan, task: TaskId) -> None:
        super().__init__(plan.settings.name, task, plan.schema)
        self._plan = plan
        self._table = plan.table()
        self._aggregate = aggregate_of(merge, plan.mapping)
        self._accumulator = Accumulator(self._aggregate)
        self._epoch = own_cell(plan.mapping, b"epoch")
        self._previous = [previous_cell(column) for column in plan.mapping.columns]

    def _add(self, batch: pa.RecordBatch) -> None:
        self._accumulator.add(self._plan.mapping.keys(batch), batch)

    def _finish(self) -> None:
        keys, partials = self._accumulator.folded()
        for start in range(0, len(keys), KEYS_MAX):
            self._roll(keys[start : start + KEYS_MAX], partials[start : start + KEYS_MAX])

    def _undo(self) -> None:
        self._accumulator = Accumulator(self._aggregate)

    def _roll(self, keys: pa.BinaryArray, partials: pa.RecordBatch) -> None:
        mapping = self._plan.mapping
        values, is_there = self._base(keys)
        states = self._aggregate.finish(keys, partials, Base(base_states(mapping, values), pa.array(is_there)))
        cells = mapping.cells(states)
        for (family, qualifier), was in zip(self._previous, values, strict=True):
            was = pc.if_else(pa.array(is_there), pc.fill_null(was, NULL), pa.scalar(None, pa.binary()))
            cells.append(Cells(family, qualifier, was))
        cells.append(Cells(*self._epoch, _epochs(self._task.timestamp_ms, is_there)))
        failpoint("hbase:read")
        self._table.put(keys, cells, self._task.timestamp_ms)
        self._bytes += keys.nbytes + sum(cell.values.nbytes for cell in cells)

    def _base(self, keys: pa.BinaryArray) -> tuple[list[pa.BinaryArray], Bools]:
        """The cells that each row is merged into, and which rows have any. Raises Fenced."""
        found = self._table.read(keys, [*self._plan.mapping.cell_columns, self._epoch])
        self._check_older(keys, found.timestamps)
        *values, epochs = found.values
        times, had_row = _read_epochs(epochs)
        is_there = np.logical_or.reduce([_bools(cells.is_valid()) for cells in found.values])
        again = is_replay(times, self._task.timestamp_ms)
        if again.any():
            places = pa.array(np.flatnonzero(again))
            before = self._table.read(keys.take(places), [*self._previous, self._epoch])
            self._check_older(before.keys, before.timestamps)  # a later epoch may have come between the two reads
            mask, previous = pa.array(again), before.values[:-1]
            values = [pc.replace_with_mask(now, mask, was) for now, was in zip(values, previous, strict=True)]
            is_there = np.where(again, had_row, is_there)
        return values, is_there

    def _check_older(self, keys: pa.BinaryArray, timestamps: list[pa.Int64Array]) -> None:
        """Raise where a row has a cell of a later time than the epoch's: it would hide what is now written."""
        newest = pc.fill_null(pc.max_element_wise(*timestamps), 0)
        at = pc.index(pc.greater(newest, self._task.timestamp_ms), True).as_py()
        if at < 0:
            return
        what = f"{self._where}: the row {keys[at].as_py()!r} was written at {newest[at]} ms, and this epoch's time is"
        if (timestamps[-1][at].as_py() or 0) > self._task.timestamp_ms:
            raise Fenced(
                "epoch-overtaken",
                f"{what} {self._task.timestamp_ms} ms: a later epoch has come so far. Another process runs this"
                " pipeline: stop this one",
            )
        raise ConfigError(
            "newer-cell-in-table",
            f"{what} {self._task.timestamp_ms} ms. Another program wrote it: let no other program write these rows, or"
            " only before this sink starts, with timestamps of the clock",
        )


def is_replay(times: Times, timestamp_ms: int) -> Bools:
    """Which rows this epoch has written before, by the T that they store; 0 where they store none."""
    again: Bools = times == timestamp_ms
    return again


def _epochs(timestamp_ms: int, had_row: Bools) -> pa.BinaryArray:
    matrix = np.empty((len(had_row), _EPOCH_WIDTH), np.uint8)
    matrix[:, :8] = np.frombuffer(timestamp_ms.to_bytes(8, "big"), np.uint8)
    matrix[:, 8] = had_row
    return from_fixed(matrix, pa.array(had_row))


def _read_epochs(epochs: pa.BinaryArray) -> tuple[Times, Bools]:
    matrix = to_fixed(epochs, _EPOCH_WIDTH)  # zeros where there is none
    times: Times = np.ascontiguousarray(matrix[:, :8]).view(">i8")[:, 0].astype(np.int64)
    had_row: Bools = matrix[:, 8] == 1
    return times, had_row


def _bools(values: pa.BooleanArray) -> Bools:
    return np.asarray(values.to_numpy(zero_copy_only=False), bool)
