"""What a table keeps of rows that are merged into it: the mapping of states, and the sink's own cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from onefold.clients.hbase.rows.column_encoder import CellColumn
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.hbase.aggregates import Declared, Function, Own, RowMerge

Merge = Declared | Function
OWN_CELLS = b"_onefold."  # what the qualifiers of cells begin with that no column has


def merge_of(given: Mapping[str, str] | Function | str, order: Sequence[str] = ()) -> Merge:
    """The merge that a user has written, other than 'replace'. Raises ConfigError."""
    if isinstance(given, Mapping):
        return Declared.of(given, order)
    if not callable(given):
        raise ConfigError(
            "option-value", f"merge={given!r} is {{'amount': 'sum'}}, or a function of two record batches, or 'replace'"
        )
    if order:
        raise ConfigError(
            "options-conflict", "order= belongs to the merge 'last': a function is given all columns, and no order"
        )
    return given


def check(merge: Merge | None, declared: TableMapping) -> None:
    """Raise ConfigError where merge and mapping contradict each other."""
    if declared.tombstone_column is not None:
        raise ConfigError("options-conflict", "rows that are merged are never deleted: leave out tombstone_column=")
    names = [name for name, _ in merge.merges] if isinstance(merge, Declared) else []
    if both := sorted({*names} & {*declared.row_key.names}):
        raise ConfigError(
            "options-conflict", f"{both[0]!r} is in the row key, which tells rows apart: it cannot be merged"
        )


def bound(merge: Merge | None, declared: TableMapping, schema: pa.Schema, without: Sequence[str] = ()) -> TableMapping:
    """The mapping of what the table keeps of rows of this schema. Raises SchemaMismatch."""
    mapping = declared.bound(_kept(merge, declared, schema, without))
    if taken := [column.name for column in mapping.columns if column.qualifier.startswith(OWN_CELLS)]:
        raise SchemaMismatch(
            "column-name-reserved",
            f"the cell of {taken[0]!r} is named {OWN_CELLS.decode()}..., as the sink's own: rename it",
        )
    return mapping


def _kept(merge: Merge | None, declared: TableMapping, schema: pa.Schema, without: Sequence[str]) -> pa.Schema:
    """The row key's columns, and those of the states."""
    keys = [schema.field(name) for name in declared.row_key.names if name in schema.names]
    others = [field for field in schema if field not in keys and field.name not in without]
    if not isinstance(merge, Declared):
        return pa.schema([*keys, *others])
    states = merge.states(schema)
    if unmerged := [field.name for field in others if field.name not in states.names]:
        raise SchemaMismatch(
            "column-not-merged",
            f"merge= says nothing of the column {unmerged[0]!r}: say how its values become one, or leave it out",
        )
    return pa.schema([*keys, *states])


def aggregate_of(merge: Merge, mapping: TableMapping) -> RowMerge:
    """The aggregate that merges rows of the bound `mapping`."""
    return merge if isinstance(merge, Declared) else Own(merge, tuple(column.name for column in mapping.columns))


def base_states(mapping: TableMapping, values: Sequence[pa.BinaryArray]) -> pa.RecordBatch:
    """The states in the table's cells, as columns without the row key. Raises BadRecord."""
    return pa.record_batch({c.name: c.decode(cells) for c, cells in zip(mapping.columns, values, strict=True)})


def own_cell(mapping: TableMapping, name: bytes) -> tuple[bytes, bytes]:
    """A cell of the sink's own. Its family does not depend on the order of the columns."""
    return min(mapping.families), OWN_CELLS + name


def own_family_of(declared: TableMapping) -> dict[str, str]:
    """For the ledger: in another family the sink would not find its own cells."""
    return {"first family": min(declared.families).decode()}


def states_of(mapping: TableMapping) -> dict[str, str]:
    """For the ledger: the cells that the next epoch merges into, and their encodings. In another cell a column would
    begin anew, and another encoding would misread a cell, also for a column of another name."""
    places = {f"column {column.name}": column.place for column in mapping.columns}
    return places | {f"cell {column.place}": column.kept for column in mapping.columns}


def previous_cell(column: CellColumn) -> tuple[bytes, bytes]:
    """The cell that keeps the value from before the epoch."""
    return column.family, OWN_CELLS + b"previous." + column.qualifier
