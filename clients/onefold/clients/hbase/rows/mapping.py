"""Arrow columns as rows of an HBase table: declared once for writing, reading and verifying."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.column_encoder import NULL, CellColumn
from onefold.clients.hbase.rows.rowkeys import RowKey
from onefold.clients.hbase.table_admin import checked_name
from onefold.core.checks import require
from onefold.core.errors import ConfigError, SchemaMismatch

_FAMILY = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ASSIGNED = re.compile(r"\s*(?P<name>[^=]+?)\s*=\s*(?P<cell>.+?)\s*")
_BETWEEN = re.compile(r",(?![^(]*\))")
_TRUE, _FALSE = b"\xff", b"\x00"


@dataclass(frozen=True, slots=True)
class TableMapping:
    """The table, its rows' keys, and the cell of each other column; best made by `of`.

    `family`: columns that are not named go there, under their own names. `tombstone_column` is the HBase
    column that says, in every row, whether the row is deleted. Encodings that are not said come from the rows, with
    `bound`; only a mapping that is bound encodes and decodes.
    """

    table: str
    row_key: RowKey
    columns: tuple[CellColumn, ...] = ()
    family: str | None = None
    tombstone_column: CellColumn | None = None

    @classmethod
    def of(
        cls,
        table: str,
        row_key: str | Sequence[str] | RowKey,
        columns: Mapping[str, str] | str | None = None,
        family: str | None = None,
        tombstone_column: str | None = None,
    ) -> TableMapping:
        """Makes a mapping of texts:

            TableMapping.of("orders", "customer, id", {"amount": "f:amount decimal(12,2)"}, family="f")

        `columns` may be a text as well: `amount = f:amount decimal(12,2), note = f:note`, or a JSON object.
        """
        cells = (
            pairs_of("columns", columns, "f:amount decimal(12,2)") if isinstance(columns, str) else dict(columns or {})
        )
        return cls(
            table,
            row_key if isinstance(row_key, RowKey) else RowKey.of(row_key),
            tuple(CellColumn.cell(name, text) for name, text in cells.items()),
            family,
            None if tombstone_column is None else CellColumn.cell("deleted", f"{tombstone_column} boolean"),
        )

    def __post_init__(self) -> None:
        checked_name(self.table)
        names = [column.name for column in (*self.row_key.columns, *self.columns)]
        if len(set(names)) != len(names):
            raise ConfigError(
                "column-mapped-twice",
                f"a column is mapped twice, among {', '.join(names)}: to a cell, or into the row key",
            )
        places = [(column.family, column.qualifier) for column in self._all_cells]
        if len(set(places)) != len(places):
            raise ConfigError(
                "column-mapped-twice",
                f"two columns have the same cell: {', '.join(c.cell_text for c in self._all_cells)}",
            )
        for family in self.families:
            if not _FAMILY.fullmatch(family):
                raise ConfigError(
                    "option-value", f"{family.decode(errors='replace')!r} is no family's name: letters, digits, _ - ."
                )

    @property
    def families(self) -> tuple[bytes, ...]:
        """Each family once, in order."""
        own = [self.family.encode()] if self.family is not None else []
        return tuple(dict.fromkeys([*own, *(column.family for column in self._all_cells)]))

    @property
    def _all_cells(self) -> tuple[CellColumn, ...]:
        return self.columns if self.tombstone_column is None else (*self.columns, self.tombstone_column)

    def bound(self, schema: pa.Schema, without: Iterable[str] = ()) -> TableMapping:
        """The mapping for writing rows of this schema, `without` some columns. Raises SchemaMismatch."""
        if missing := [column.name for column in self.columns if column.name not in schema.names]:
            raise SchemaMismatch(
                "column-missing", f"the mapping names {missing[0]!r}, and the rows have {', '.join(schema.names)}"
            )
        return self._with(self.row_key.bound(schema), [field for field in schema if field.name not in without])

    def reading(self, schema: pa.Schema | None = None) -> TableMapping:
        """The mapping for reading all declared columns, or the columns of a schema with its types.

        Raises SchemaMismatch, and ConfigError where an encoding has to be said.
        """
        if schema is not None:
            there = pa.schema([field for field in schema if field.name in self.row_key.names])
            return self._with(self.row_key.bound(there, is_whole=False), list(schema))
        for column in (*self.row_key.columns, *self.columns):
            if not column.is_bound:
                raise ConfigError(
                    "schema-missing",
                    f"{self.table}: how is the column {column.name!r} written? Say its encoding, such as "
                    f"'{column.text} integer', or give a schema",
                )
        if not self.columns:
            raise ConfigError(
                "schema-missing",
                f"which columns of {self.table} are to be read? Name them in columns=, or give a schema",
            )
        return self

    def _with(self, row_key: RowKey, fields: Iterable[pa.Field]) -> TableMapping:
        """The mapping of these fields: each field outside the row key gets its cell."""
        declared = {column.name: column for column in self.columns}
        columns = []
        for field in fields:
            if field.name in row_key.names:
                continue
            column = declared.get(field.name)
            if column is None:
                if self.family is None:
                    raise SchemaMismatch(
                        "column-not-mapped",
                        f"the column {field.name!r} has no cell: name one in columns=, or a family= for all others",
                    )
                column = CellColumn(field.name, family=self.family.encode(), qualifier=field.name.encode())
            columns.append(column.bound(field.type))
        if not columns:
            raise SchemaMismatch(
                "no-value-column",
                f"no column is left beside the row key ({', '.join(row_key.names)}): a row is its cells",
            )
        return replace(self, row_key=row_key, columns=tuple(columns))

    @property
    def schema(self) -> pa.Schema:
        """What `decode` returns: the row key's columns, then the others."""
        return pa.schema([(column.name, column.kind) for column in (*self.row_key.columns, *self.columns)])

    @property
    def cell_columns(self) -> list[tuple[bytes, bytes]]:
        """Family and qualifier of each column, in order."""
        return [(column.family, column.qualifier) for column in self.columns]

    def keys(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The row key of each row. Raises BadRecord."""
        return self.row_key.encode(batch)

    def cells(self, batch: pa.RecordBatch, deleted: pa.BooleanArray | None = None) -> list[Cells]:
        """The cells of all columns, in order, and the one that says which rows are deleted: their others are null.

        Raises BadRecord.
        """
        values = [column.encode(batch.column(column.name)) for column in self.columns]
        if deleted is not None:
            require(self.tombstone_column is not None, "no tombstone_column was named")
            deleted = pc.fill_null(deleted, False)
            values = [pc.if_else(deleted, pa.scalar(NULL, pa.binary()), array) for array in values]
        cells = [Cells(c.family, c.qualifier, array) for c, array in zip(self.columns, values, strict=True)]
        if self.tombstone_column is not None:
            flags = deleted if deleted is not None else pa.repeat(pa.scalar(False), batch.num_rows)
            marks = pc.if_else(flags, pa.scalar(_TRUE, pa.binary()), pa.scalar(_FALSE, pa.binary()))
            cells.append(Cells(self.tombstone_column.family, self.tombstone_column.qualifier, marks))
        return cells

    def decode(self, keys: pa.BinaryArray, values: Sequence[pa.BinaryArray]) -> pa.RecordBatch:
        """Rows of `schema`, of their keys and the values of `cell_columns`; null where there is no cell.

        Raises BadRecord.
        """
        arrays = [column.decode(array) for column, array in zip(self.columns, values, strict=True)]
        return pa.RecordBatch.from_arrays([*self.row_key.decode(keys), *arrays], schema=self.schema)

    def living(self, marks: pa.BinaryArray) -> pa.BooleanArray:
        """Which rows are not deleted, of the values of `tombstone_column`."""
        return pc.fill_null(pc.not_equal(marks, _TRUE), True)

    def options(self) -> dict[str, Any]:
        """What HBaseTableConfig says of the table, for the same mapping."""
        return {
            "table": self.table,
            "row_key": self.row_key.text,
            "salt": self.row_key.salt,
            "hash": self.row_key.hash,
            "columns": {column.name: column.cell_text for column in self.columns} or None,
            "family": self.family,
            "tombstone_column": self.tombstone_column and self.tombstone_column.cell_text.removesuffix(" boolean"),
        }


def pairs_of(option: str, text: str, example: str) -> dict[str, str]:
    """What an option's text says of each column: `name = this, other = that`, or a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError("option-value", f"{option} is no JSON object: {error}") from None
        if not all(isinstance(cell, str) for cell in found.values()):
            raise ConfigError("option-value", f'{option} maps names to texts: {{"amount": "{example}"}}')
        return dict(found)
    pairs = {}
    for part in _BETWEEN.split(text):
        assigned = _ASSIGNED.fullmatch(part)
        if assigned is None:
            raise ConfigError("option-value", f"{option}: {part.strip()!r} is not as in amount = {example}")
        pairs[assigned["name"]] = assigned["cell"]
    return pairs
