"""Applies messages with sequences to the table, with at most one conditional write for a row and batch of messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.column_encoder import KeyColumn
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.table import HBaseTable
from onefold.core.errors import BadRecord, InDoubt, Retriable, SchemaMismatch
from onefold.core.failpoints import failpoint
from onefold.core.values.batches import repeated
from onefold.core.waiting import retry
from onefold.sinks.hbase.aggregates import Accumulator, Base, Declared
from onefold.sinks.hbase.group_kernels import grouped
from onefold.sinks.hbase.merge import Merge, aggregate_of, base_states, own_cell
from onefold.sinks.hbase.sink_plan import HBasePlan

_ENCODINGS = ("integer", "string", "bytes", "timestamp")  # whose byte order is the order of values


@dataclass(frozen=True, slots=True)
class SequenceColumn:
    """The column that orders a row's messages: how it is stored, and the gaps between its values. `is_dense`: these are
    integers, and within a row each is one more than the one before."""

    column: KeyColumn
    is_dense: bool

    @classmethod
    def bound(cls, name: str, is_dense: bool, schema: pa.Schema) -> SequenceColumn:
        """Raises SchemaMismatch."""
        if name not in schema.names:
            raise SchemaMismatch(
                "column-missing", f"sequence= names {name!r}, and the rows have {', '.join(schema.names)}"
            )
        kind = schema.field(name).type
        if is_dense and not pa.types.is_integer(kind):
            raise SchemaMismatch(
                "column-type", f"dense_sequence=True counts the gaps between integers, and {name!r} is {kind}"
            )
        column = KeyColumn(name).bound(kind)
        if column.encoding not in _ENCODINGS:
            raise SchemaMismatch(
                "column-type",
                f"sequence= names {name!r}, which is {kind}: it must be integers, texts, bytes or timestamps",
            )
        return cls(column, is_dense)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The value of each row, as bytes in the same order. Raises BadRecord."""
        ids = self.column.encode(rows.column(self.column.name))
        if ids.null_count or pc.any(pc.equal(ids, b"")).as_py():
            raise BadRecord(
                "sequence-null",
                f"a row has no {self.column.name!r}, which tells whether the row was applied before: give it a value,"
                " or filter such rows before the sink",
            )
        return ids

    def missing(
        self, stored: pa.BinaryArray, lowest: pa.BinaryArray, highest: pa.BinaryArray, count: pa.Int64Array
    ) -> pa.Int64Array:
        """How many values are missing from the stored one, or from the lowest, up to the highest; `count` came."""
        before = pc.coalesce(self._numbers(stored), pc.subtract(self._numbers(lowest), 1))
        return pc.subtract(pc.subtract(self._numbers(highest), before), count)

    def _numbers(self, ids: pa.BinaryArray) -> pa.Int64Array:
        return self.column.decode(ids).cast(pa.int64())


LOGGER = logging.getLogger("onefold.sinks.hbase")

BYTES_MAX = 64 << 20  # of messages that wait to be put in order and applied together
KEYS_MAX = 20_000  # of one read and write
ROUNDS_MAX = 50  # how often another writer may change a row between our reading and writing
T = TypeVar("T")
_GAPS = KeyColumn("gaps", "integer", pa.int64())
_NO_GAPS = b"\x80" + bytes(7)  # 0, so encoded


class ReplaceApplier:
    """Writes the values of a row's highest sequence, on condition that the stored one is lower. It reads nothing."""

    def __init__(self, plan: HBasePlan) -> None:
        self._plan, self._table = plan, plan.table()
        self._id = own_cell(plan.mapping, b"id")
        self._accumulator = Accumulator(_newest(plan.mapping))

    def take(self, keys: pa.BinaryArray, ids: pa.BinaryArray, rows: pa.RecordBatch) -> None:
        self._accumulator.add(keys, _encoded(self._plan.mapping, ids, rows))

    def finish(self) -> None:
        keys, rows = self._accumulator.folded()
        for start in range(0, len(keys), KEYS_MAX):
            part = rows[start : start + KEYS_MAX]
            cells = _cells_of(self._plan.mapping, part)
            ids = Cells(*self._id, part["id"])
            failpoint("hbase:read")
            _until_answered(
                partial(self._table.put_if_greater, keys[start : start + KEYS_MAX], ids, cells), self._table
            )


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages that are not applied yet, with their encoded row keys and sequences."""

    keys: pa.BinaryArray
    ids: pa.BinaryArray
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def bytes(self) -> int:
        return int(self.keys.nbytes + self.ids.nbytes + self.rows.nbytes)

    def where(self, chosen: pa.BooleanArray) -> _Messages:
        return _Messages(self.keys.filter(chosen), self.ids.filter(chosen), self.rows.filter(chosen))

    @classmethod
    def sorted(cls, parts: Sequence[_Messages]) -> _Messages:
        """All messages, sorted by row, each sequence once."""
        keys, ids = (pa.concat_arrays(columns) for columns in zip(*((p.keys, p.ids) for p in parts), strict=True))
        codes = keys.dictionary_encode().indices
        table = pa.table({"code": codes, "id": ids, "place": pa.array(np.arange(len(keys)))})
        once = table.group_by(["code", "id"], use_threads=False).aggregate([("place", "min")])
        places = once.sort_by("code")["place_min"].combine_chunks()
        return cls(keys.take(places), ids.take(places), pa.concat_batches([p.rows for p in parts]).take(places))


class MergeApplier:
    """Merges messages into what their row has. `merge` None: the values of the highest sequence replace it."""

    def __init__(self, plan: HBasePlan, ids: SequenceColumn, merge: Merge | None, where: str) -> None:
        self._plan, self._table, self._ids, self._where = plan, plan.table(), ids, where
        self._merge = merge
        self._aggregate = _newest(plan.mapping) if merge is None else aggregate_of(merge, plan.mapping)
        self._id, self._gaps = own_cell(plan.mapping, b"id"), own_cell(plan.mapping, b"gaps")
        self._waiting: list[_Messages] = []
        self._bytes = 0
        self._late = self._missing = 0

    def take(self, keys: pa.BinaryArray, ids: pa.BinaryArray, rows: pa.RecordBatch) -> None:
        rows = _encoded(self._plan.mapping, ids, rows) if self._merge is None else rows
        self._waiting.append(_Messages(keys, ids, rows))
        self._bytes += self._waiting[-1].bytes
        if self._bytes > BYTES_MAX:
            self._apply()

    def finish(self) -> None:
        self._apply()
        if self._missing or self._late:
            LOGGER.warning(
                "%s: sequences have %d gaps, and %d messages came at or below the last sequence of a row that has gaps:"
                " they were not applied, as repeats are not. The cells %s count the gaps of each row",
                self._where,
                self._missing,
                self._late,
                b":".join(self._gaps).decode(),
            )

    def _apply(self) -> None:
        if not self._waiting:
            return
        messages = _Messages.sorted(self._waiting)
        self._waiting, self._bytes = [], 0
        codes = messages.keys.dictionary_encode().indices.to_numpy()  # ascending
        for start in range(0, codes[-1] + 1, KEYS_MAX):
            first, last = np.searchsorted(codes, [start, start + KEYS_MAX])
            chosen = slice(first, last)
            self._apply_to(_Messages(messages.keys[chosen], messages.ids[chosen], messages.rows[chosen]))

    def _apply_to(self, messages: _Messages) -> None:
        for _ in range(ROUNDS_MAX):
            messages = _until_answered(partial(self._round, messages), self._table)
            if not len(messages):
                return
        raise Retriable(
            "row-contended",
            f"{self._where}: others have written the row {messages.keys[0].as_py()!r} {ROUNDS_MAX} times between our"
            " reading and writing it: let fewer of them write the same rows",
        )

    def _round(self, messages: _Messages) -> _Messages:
        """Applies the messages, and returns those that are left because another writer changed their row meanwhile."""
        named = messages.keys.dictionary_encode()
        rows, columns = named.dictionary, self._plan.mapping.cell_columns if self._merge is not None else []
        stored, gaps, *values = self._table.get(rows, [self._id, self._gaps, *columns])
        is_new = pc.fill_null(pc.greater(messages.ids, stored.take(named.indices)), True)
        if self._ids.is_dense:
            has_gaps = pc.fill_null(pc.not_equal(gaps, _NO_GAPS), False).take(named.indices)
            self._late += pc.and_(has_gaps, pc.invert(is_new)).true_count
        messages = messages.where(is_new)
        if not len(messages):
            return messages
        keys, partials = self._aggregate.fold(messages.keys, self._aggregate.lift(messages.rows))
        at = pc.index_in(keys, rows)
        stored, gaps, values = stored.take(at), gaps.take(at), [cells.take(at) for cells in values]
        codes = messages.keys.dictionary_encode().indices
        counted = [(messages.ids, "min"), (messages.ids, "max"), (repeated(1, len(codes)), "sum")]
        lowest, highest, count = grouped(codes, counted)
        cells = self._cells(keys, partials, stored, values)
        if self._ids.is_dense:
            missing = self._ids.missing(stored, lowest, highest, count)
            cells.append(Cells(*self._gaps, _GAPS.encode(pc.add(missing, pc.fill_null(_GAPS.decode(gaps), 0)))))
        failpoint("hbase:read")
        is_done = self._table.put_if_equal(keys, Cells(*self._id, highest), stored, cells)
        if self._ids.is_dense:
            self._missing += pc.sum(missing.filter(is_done)).as_py() or 0
        return messages.where(pc.is_in(messages.keys, value_set=keys.filter(pc.invert(is_done))))

    def _cells(
        self, keys: pa.BinaryArray, partials: pa.RecordBatch, stored: pa.BinaryArray, values: list[pa.BinaryArray]
    ) -> list[Cells]:
        mapping = self._plan.mapping
        if self._merge is None:
            return _cells_of(mapping, partials)
        is_there = stored.is_valid()
        for cells in values:  # of a row that was filled before there were ids
            is_there = pc.or_(is_there, cells.is_valid())
        return mapping.cells(self._aggregate.finish(keys, partials, Base(base_states(mapping, values), is_there)))


# What applies the messages of one attempt of a task. `keys` and `ids` are the rows' keys and sequences, encoded.
Applier: TypeAlias = ReplaceApplier | MergeApplier


def _until_answered(ask: Callable[[], T], table: HBaseTable) -> T:
    """Repeats a call whose answer was lost. That is safe: a written row says so by its sequence."""

    def again() -> T:
        try:
            return ask()
        except InDoubt as error:
            raise Retriable("hbase-unanswered", error.message) from error

    return retry(again, table.settings.timeout_s)


def _newest(mapping: TableMapping) -> Declared:
    """Picks the row with the highest sequence, of rows as cells: bytes have an order whatever the column's type."""
    return Declared.of(dict.fromkeys((str(i) for i, _ in enumerate(mapping.columns)), "last"), ("id",))


def _encoded(mapping: TableMapping, ids: pa.BinaryArray, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({str(i): cell.values for i, cell in enumerate(mapping.cells(rows))} | {"id": ids})


def _cells_of(mapping: TableMapping, rows: pa.RecordBatch) -> list[Cells]:
    return [Cells(family, qualifier, rows[str(i)]) for i, (family, qualifier) in enumerate(mapping.cell_columns)]
