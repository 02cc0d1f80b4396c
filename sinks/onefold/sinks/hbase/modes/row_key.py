"""mode="row_key": a row's key says which HBase row it is, and every cell's timestamp is the epoch's T.

A replay writes the same cells again; a task of an older epoch that wakes late writes below what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.column_encoder import NULL
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.contract import Guarantee, SinkKind, TaskId
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks.hbase.deduplicate import DELETED, KEY, WrittenKeys, newest, rows_of
from onefold.sinks.hbase.hidden import check_shown
from onefold.sinks.hbase.sink_plan import HBasePlan, Mode
from onefold.sinks.write_through import WritingThrough

ROWS_MAX = 100_000  # of a buffer that is not written yet
BYTES_MAX = 32 << 20
HELD_BYTES_MAX = 1 << 30  # of rows that are put when all have come


@dataclass(frozen=True, slots=True)
class ByRowKey(Mode):
    """`order`: of several rows of a key in one task, the highest is written. Rows whose boolean column
    `delete_when_true` is true are deleted, by `delete_mode`: with a tombstone, or with HBase's own deletes."""

    order: tuple[str, ...]
    delete_when_true: str | None = None
    delete_mode: str = "tombstone"
    name: str = "row_key"  # or what the user calls the mode that writes so

    @property
    def has_real_deletes(self) -> bool:
        return self.delete_when_true is not None and self.delete_mode == "real"

    def check(self, declared: TableMapping) -> None:
        if self.delete_mode != "tombstone" and self.delete_when_true is None:
            raise ConfigError(
                "option-missing",
                "delete_mode= says how rows are deleted, and delete_when_true= must name the column that says which"
                " are",
            )
        if len({*self.order}) != len(self.order):
            raise ConfigError("option-value", f"order={self.order} must name each column once")
        if both := sorted({*self.order} & {*declared.row_key.names}):
            raise ConfigError(
                "options-conflict", f"{both[0]!r} cannot be of the row key and of order=: all rows of a key share it"
            )
        if self.delete_when_true in (*self.order, *declared.row_key.names, *(c.name for c in declared.columns)):
            raise ConfigError(
                "options-conflict",
                f"delete_when_true={self.delete_when_true!r} cannot be a cell, part of the key, or order= as well: it"
                " says what becomes of the row",
            )
        if self.has_real_deletes and declared.tombstone_column is not None:
            raise ConfigError(
                "options-conflict", "delete_mode='real' leaves no cell behind: leave out tombstone_column="
            )
        if self.delete_when_true is not None and not self.has_real_deletes and declared.tombstone_column is None:
            raise ConfigError(
                "option-missing",
                "delete_when_true= marks deleted rows in an HBase column of its own: name it in the mapping, as"
                " tombstone_column='family:qualifier'",
            )

    def guarantee(self) -> Guarantee:
        conditions = [
            "the transformation is deterministic and its code unchanged between replays, and the source still has an"
            " epoch that was begun: it cannot be given up, only written again",
            "readers see an epoch's rows one by one, as they are written; each row whole",
            "a family's TTL is longer than any epoch stays open, and cells are forgotten with it",
            "nobody else writes these cells at later times, nor with a clock that is ahead: an epoch whose rows such"
            " cells hide is refused",
        ]
        if self.order:
            conditions.append("the rows of a key are in one task (repartition=False leaves that to you)")
        else:
            conditions.append("a key comes once in an epoch, or with the same cells each time")
        if self.has_real_deletes:
            conditions.append(
                "a task of an earlier epoch that wakes late, or a Thrift server that still tries to put its rows, does"
                " so before the next major compaction: what is put of a deleted row after that would show"
            )
        return Guarantee(self.name, SinkKind.WRITE_THROUGH, False, tuple(conditions))

    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        for what, name in [("delete_when_true", self.delete_when_true), *(("order", name) for name in self.order)]:
            if name is not None and name not in schema.names:
                raise SchemaMismatch(
                    "column-missing", f"{what}= names {name!r}, and the rows have {', '.join(schema.names)}"
                )
        for name in self.order:
            if not _is_ordered(schema.field(name).type):
                raise SchemaMismatch(
                    "column-type",
                    f"order= names {name!r}, which is {schema.field(name).type}, and such values do not compare"
                    " exactly: cast it to an integer, a decimal, a text, a date or a timestamp",
                )
        flag = self.delete_when_true
        if flag is None:
            return declared.bound(schema)
        if not pa.types.is_boolean(schema.field(flag).type):
            raise SchemaMismatch(
                "column-type", f"delete_when_true={flag!r} must be boolean, not {schema.field(flag).type}"
            )
        return declared.bound(schema, without=(flag,))

    def layout(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:  # noqa: ARG002
        """A sink without the tombstone column would leave the old mark, and a row that it puts would stay deleted."""
        return {"tombstone_column": "" if mapping.tombstone_column is None else mapping.tombstone_column.place}

    def writer(self, plan: HBasePlan, task: TaskId) -> RowKeyWriter:
        return RowKeyWriter(self, plan, task)


def _is_ordered(kind: pa.DataType) -> bool:
    kinds = pa.types
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_integer, kinds.is_decimal)
    return any(check(kind) for check in (*checks, kinds.is_temporal))


class RowKeyWriter(WritingThrough):
    """One attempt of one task. Without an order it writes rows as they come; with one, when all have come."""

    def __init__(self, mode: ByRowKey, plan: HBasePlan, task: TaskId) -> None:
        super().__init__(plan.settings.name, task, plan.schema)
        self._plan = plan
        self._mode = mode
        self._table = plan.table()
        self._cells: list[Cells] = []  # families and qualifiers of the columns `cell 0`, ...
        self._repeats = WrittenKeys(lambda keys: self._table.get(keys, self._columns))
        self._held: list[pa.Table] = []  # the first one is folded
        self._fold_at = 2 * BYTES_MAX
        self._buffer: list[pa.RecordBatch] = []
        self._written: list[tuple[pa.BinaryArray, pa.BooleanArray]] = []  # keys, and which HBase has deleted

    def _add(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS_MAX):
            self._buffer.append(batch.slice(start, ROWS_MAX))
            if sum(b.num_rows for b in self._buffer) >= ROWS_MAX or sum(b.nbytes for b in self._buffer) >= BYTES_MAX:
                self._send()

    def _finish(self) -> None:
        self._send()
        if self._held:
            self._fold()
            self._put(self._held[0])
        check_shown(self._table, self._written, self._columns, self._plan, self._task)

    def _undo(self) -> None:
        self._buffer, self._held, self._written = [], [], []

    @property
    def _columns(self) -> list[tuple[bytes, bytes]]:
        return [(cell.family, cell.qualifier) for cell in self._cells]

    def _send(self) -> None:
        """Puts the rows of the buffer, or holds them where an older version could come after a newer one."""
        if not self._buffer:
            return
        (batch,) = pa.Table.from_batches(self._buffer).combine_chunks().to_batches()
        self._buffer = []
        rows = self._encoded(batch)
        if self._mode.order:
            self._hold(rows)
        else:
            self._put(self._repeats.new(rows))

    def _hold(self, rows: pa.Table) -> None:
        self._held.append(rows)
        if sum(part.nbytes for part in self._held) >= self._fold_at:
            self._fold()

    def _fold(self) -> None:
        held = newest(pa.concat_tables(self._held), self._mode.order)
        if held.nbytes > HELD_BYTES_MAX:
            raise ConfigError(
                "task-too-large",
                f"{self._where}: a task with order= holds one row of each key until it has all of them, and this one"
                f" holds more than {HELD_BYTES_MAX >> 20} MB: read fewer records in an epoch (max_offsets_per_trigger),"
                " or raise spark.sql.shuffle.partitions",
            )
        self._held, self._fold_at = [held], held.nbytes + max(held.nbytes // 2, 2 * BYTES_MAX)

    def _put(self, rows: pa.Table) -> None:
        """Write rows of distinct keys. A key has a put or a delete, never both: HBase would hide the put."""
        timestamp_ms = self._task.timestamp_ms
        has_deletes = self._mode.has_real_deletes
        self._written += [
            (part.column(KEY), part.column(DELETED) if has_deletes else pa.repeat(pa.scalar(False), len(part)))
            for part in rows.select([KEY, DELETED]).to_batches()
        ]
        if has_deletes:
            gone = rows.filter(rows[DELETED])[KEY].combine_chunks()
            rows = rows.filter(pc.invert(rows[DELETED]))
            if len(gone):
                self._table.delete(gone, self._columns, timestamp_ms)
        for batch in rows.combine_chunks().to_batches():
            keys = batch.column(KEY)
            cells = [replace(cell, values=batch.column(f"cell {i}")) for i, cell in enumerate(self._cells)]
            self._table.put(keys, cells, timestamp_ms)
            self._bytes += keys.nbytes + sum(cell.values.nbytes for cell in cells)

    def _encoded(self, batch: pa.RecordBatch) -> pa.Table:
        mode, mapping = self._mode, self._plan.mapping
        deleted = None if mode.delete_when_true is None else pc.fill_null(batch.column(mode.delete_when_true), False)
        orders = [batch.column(name) for name in mode.order]
        for name, values in zip(mode.order, orders, strict=True):
            if values.null_count:
                raise BadRecord(
                    "order-null", f"the column {name!r} is null, and it is order=: filter such rows before the sink"
                )
        flags = deleted if deleted is not None else pa.repeat(pa.scalar(False), batch.num_rows)
        self._cells = mapping.cells(batch, None if mode.has_real_deletes else deleted)
        values = [cell.values for cell in self._cells]
        if mode.has_real_deletes:  # the other values of a deleted row make no difference
            values = [pc.if_else(flags, pa.scalar(NULL, pa.binary()), array) for array in values]
        return rows_of(mapping.keys(batch), flags, orders, values)
