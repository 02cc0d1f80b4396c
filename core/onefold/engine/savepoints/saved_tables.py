"""The tables of a savepoint: one state of one operator as Arrow tables, and back, exactly.

Columns are named for people and other programs: `key.NAME`, `map` or `at` of a map's keys, a list's places and timers,
`value` of what is kept. A column whose values have one type that a column keeps exactly is of that type; any other is
bytes of codec.py, and the table says so. Rows of a folding, and blocks of rows, have the columns that they are kept in,
and blocks their numbers (`$block.slice`, `$block.number`) besides; one of a type that Parquet does not give back as it
was is an Arrow IPC stream, in its first row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onefold.engine.key_groups import groups_of
from onefold.engine.state.arrow_entries import Entries, from_batch, guarded, to_batch
from onefold.engine.state.columns.block_codec import from_stream, to_stream
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockId, StateKind, StateSpec

ROWS_MAX = 250_000  # of a table, and so of a file
_PLACES = b"onefold"
_STREAM = {b"onefold": b"stream"}  # of a field
_SLICE, _NUMBER = "$block.slice", "$block.number"
_SUBS = {StateKind.MAP: "map", StateKind.LIST: "at", StateKind.TIMERS: "at_ms"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedTable:
    """Some of the entries of one state; `keys` are how many columns the key of a row or a block has."""

    spec: StateSpec
    table: pa.Table
    keys: int = 0

    def check(self) -> None:
        """Raise ValueError where the table is not one of that kind of state."""
        names, kind = self.table.column_names, self.spec.kind
        is_block = names[:2] == [_SLICE, _NUMBER]
        has_rows = kind in (StateKind.ROWS, StateKind.BLOCKS)
        if (
            has_rows == (_PLACES in (self.table.schema.metadata or {}))
            or is_block != (kind is StateKind.BLOCKS)
            or not 0 <= self.keys <= len(names) - (2 if is_block else 0)
        ):
            raise ValueError(f"what it has of {self.spec.uid}/{self.spec.name} is no table of {kind.value}")


@dataclass(frozen=True, slots=True)
class Names:
    """Of the places of keys', subs' and values' tuples, as far as they have some."""

    key: Sequence[str] = ()
    sub: Sequence[str] = ()
    value: Sequence[str] = ()


def table_of_entries(kind: StateKind, called: Names, entries: Entries) -> pa.Table:
    """Of entries that are there."""
    batch, coded = to_batch(entries)
    batch = batch.select([name for name in batch.schema.names if name != "gone"])
    places = [*batch.schema.names]
    names = [_named(kind, called, place) for place in places]
    notes = json.dumps({"places": places, "coded": [*coded]}).encode()
    return pa.table(batch.columns, names=names).replace_schema_metadata({_PLACES: notes})


def entries_of(table: pa.Table, groups: Collection[int] | None = None, max_parallelism: int = 0) -> Entries:
    """Those of the key groups; of all, without. Raises DataLoss for a table that `table_of_entries` has not made."""

    def read() -> Entries:
        notes = json.loads((table.schema.metadata or {})[_PLACES])
        gone = pa.array(np.zeros(len(table), bool))
        columns = [*(column.combine_chunks() for column in table.columns), gone]
        found = pa.record_batch(columns, names=[*notes["places"], "gone"])
        return from_batch(found, frozenset(notes["coded"]), groups, max_parallelism)

    return guarded(read)


def to_file(table: pa.Table) -> pa.Buffer:
    """A file of Parquet, of which `from_file` makes the same table."""
    fields, columns = [*table.schema], [*table.columns]
    for at, field in enumerate(fields):
        if len(table) and not _is_kept(field.type):
            stream = to_stream(one_batch(table.select([at]))).to_pybytes()
            columns[at] = pa.array([stream, *[None] * (len(table) - 1)], pa.large_binary())
            fields[at] = pa.field(field.name, pa.large_binary(), metadata=_STREAM)
    return _parquet(pa.table(columns, schema=pa.schema(fields, table.schema.metadata)))


def from_file(content: bytes | pa.Buffer) -> pa.Table:
    """The table. Raises Arrow's errors, or DataLoss, for bytes that `to_file` has not made."""
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        table = file.read()
    for at, field in enumerate(table.schema):
        if (field.metadata or {}).items() >= _STREAM.items():
            batch = from_stream(table.column(at)[0].as_py())
            table = table.set_column(at, batch.schema.field(0), batch.column(0))
    return table


@cache
def _is_kept(kind: pa.DataType) -> bool:
    """Whether Parquet gives columns of that type back as they were."""
    empty = pa.schema([("column", kind)]).empty_table()
    try:
        return bool(from_file(_parquet(empty)).schema.field(0).type == kind)
    except (pa.ArrowException, OSError):
        return False


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue()


def tables_of_blocks(blocks: Iterable[tuple[BlockId, pa.RecordBatch]]) -> Iterator[pa.Table]:
    """The blocks' rows, with the numbers of their blocks before them: so many to a table as it has room for."""
    some, rows = list[pa.Table](), 0
    for (slice_, number), block in blocks:
        ids = [pa.array([each] * len(block), pa.int64()) for each in (slice_, number)]
        schema = pa.schema([(_SLICE, pa.int64()), (_NUMBER, pa.int64()), *block.schema.remove_metadata()])
        some.append(pa.Table.from_arrays([*ids, *block.columns], schema=schema))
        rows += len(block)
        if rows >= ROWS_MAX:
            yield pa.concat_tables(some)
            some, rows = [], 0
    if some:
        yield pa.concat_tables(some)


def blocks_of(table: pa.Table) -> Iterator[tuple[BlockId, pa.RecordBatch]]:
    """The blocks of a table, in its order."""
    slices, numbers = (table.column(at).to_numpy() for at in range(2))
    begins = np.flatnonzero((np.diff(slices, prepend=0) != 0) | (np.diff(numbers, prepend=0) != 0))
    bounds = sorted({0, len(table), *begins.tolist()})
    rows = table.select(range(2, table.num_columns)).replace_schema_metadata(None)
    for at, end in pairwise(bounds):
        yield (int(slices[at]), int(numbers[at])), one_batch(rows.slice(at, end - at))


def of_groups(table: pa.Table, columns: Sequence[int], wanted: Wanted) -> pa.Table:
    """The rows whose key, in these columns, is of the key groups that are wanted. Without a key, that is group 0."""
    if not columns:
        return table if 0 in wanted.groups else table.slice(0, 0)
    groups = groups_of([table.column(at).combine_chunks() for at in columns], wanted.max_parallelism)
    return table.filter(pa.array((groups >= wanted.groups.start) & (groups < wanted.groups.stop)))


def in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    each = iter(items)
    while some := list(islice(each, ROWS_MAX)):
        yield some


def one_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)]) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def readable(table: pa.Table) -> pa.Table:
    """With texts in the places of times and durations: Python has no values for all of them."""
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type) and not pa.types.is_interval(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
    return table


def _named(kind: StateKind, called: Names, place: str) -> str:
    """What a place of the entries' tuples is called: `k1` is the key's second."""
    of, number = place[0], place[1:]
    prefix, names = {
        "k": ("key", called.key),
        "s": (_SUBS.get(kind, "sub"), called.sub if kind is StateKind.MAP else ()),
        "v": ("value", called.value),
    }[of]
    at = int(number) if number.isdecimal() else len(names)
    if of == "s" and not names and number == "0":
        return prefix
    return f"{prefix}.{names[at] if at < len(names) else number}"
