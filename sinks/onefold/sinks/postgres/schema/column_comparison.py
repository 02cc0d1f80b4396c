"""The rows and the table, column by column: how each travels, or why it cannot, and both side by side for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.clients.postgres.quoting import NAME_BYTES_MAX, identifier
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.schema.target import TargetColumn, TargetTable
from onefold.sinks.postgres.schema.type_mapping import Column, default_type, fit
from onefold.sinks.postgres.schema.widening import Alteration, addition, widening

_FITTING_MAX = 40  # of the columns that fit, this many are shown; of those that don't, all
_TYPE_CHARACTERS_MAX = 60  # a struct's type names all that is in it


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column as the rows and as the table have it, or one of the two. Either it travels as `column`, or it has a
    `problem`, or it is the table's alone and is left to its default. `alteration` is what would mend that.
    """

    name: str
    rows: str | None
    table: str | None
    column: Column | None = None
    problem: str | None = None
    alteration: Alteration | None = None


def compare(target: TargetTable, schema: pa.Schema) -> tuple[ComparedColumn, ...]:
    """A line for each column of the rows, in their order, then for each that the table alone has."""
    theirs = {column.name: column for column in target.columns}
    lines = [_line(field, theirs.get(field.name), target, schema) for field in schema]
    for column in target.columns:
        if column.name not in schema.names:
            problem = None
            if column.is_required and not column.is_generated:
                problem = "NOT NULL without a default: add it to the rows, or give it a default"
            lines.append(ComparedColumn(column.name, None, column.declared, problem=problem))
    return tuple(lines)


def columns_of(target: TargetTable, schema: pa.Schema) -> tuple[Column, ...]:
    """How each field of `schema` travels into `target`. Raises SchemaMismatch that shows both side by side."""
    lines = compare(target, schema)
    if not schema.names or any(line.problem for line in lines):
        raise mismatch(target, lines)
    check_may_insert(target, schema.names)
    return tuple(line.column for line in lines if line.column is not None)


def check_may_insert(target: TargetTable, names: Collection[str] | None) -> None:
    """Raise ConfigError where the role may not insert into all of these columns; of None, where it may into no one."""
    denied = [c.name for c in target.columns if not c.may_insert and (names is None or c.name in names)]
    if denied and (names is not None or len(denied) == len(target.columns)):
        raise ConfigError(
            "table-permission",
            f"no permission to insert into {', '.join(denied)} of table {target.table}: "
            f"GRANT INSERT ON {target.table.sql} to the role of the sink's URL",
        )


def mismatch(target: TargetTable, lines: Sequence[ComparedColumn], because: str = "") -> SchemaMismatch:
    """The error that shows `lines` as a table; `because` is a reason that is no single column's."""
    what = f"the rows do not fit into table {target.table}"
    if not any(line.rows is not None for line in lines):
        because = because or "the rows have no columns at all"
    return SchemaMismatch("table-mismatch", f"{what}{': ' if because else ''}{because}:\n{_side_by_side(lines)}")


def _line(field: pa.Field, there: TargetColumn | None, target: TargetTable, schema: pa.Schema) -> ComparedColumn:
    name, kind = field.name, str(field.type)
    declared = None if there is None else there.declared
    if schema.names.count(name) > 1:
        return ComparedColumn(name, kind, declared, problem="there are two columns of this name in the rows")
    if there is None:
        return _missing(field, target)
    if there.is_generated:
        return ComparedColumn(name, kind, declared, problem="the table generates it always: drop it from the rows")
    column = fit(name, field.type, there.type)
    alteration = None if there.domain or target.is_view else widening(field, there.type, there.collation)
    if column is not None:
        return ComparedColumn(name, kind, declared, replace(column, sql=there.sql), alteration=alteration)
    if alteration is not None:
        remedy = f"cast the rows' column, or ALTER TABLE {target.table.sql} {alteration.clause} (evolve=True does it)"
    else:
        remedy = "cast the rows' column, or alter the table's" + _to(default_type(field.type))
    return ComparedColumn(name, kind, declared, None, f"the table's cannot take every such value: {remedy}", alteration)


def _to(declared: str | None) -> str:
    return f" to {declared}" if declared else ""


def _missing(field: pa.Field, target: TargetTable) -> ComparedColumn:
    name, kind = field.name, str(field.type)
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        return ComparedColumn(
            name, kind, None, problem=f"{size} bytes, and Postgres cuts names after {NAME_BYTES_MAX}: rename it"
        )
    near = next((c.name for c in target.columns if c.name.casefold() == name.casefold()), None)
    if near is not None:
        return ComparedColumn(name, kind, None, problem=f"the table has {near!r}, and case matters: rename one of them")
    alteration = None if target.is_view else addition(field)
    if alteration is not None:
        remedy = f"ALTER TABLE {target.table.sql} {alteration.clause} (evolve=True does it), or leave it out"
    elif target.is_view:
        remedy = "add it to the view, or leave it out"
    else:
        remedy = f"ALTER TABLE {target.table.sql} ADD COLUMN {identifier(name)} ..., or cast it, or leave it out"
    return ComparedColumn(name, kind, None, problem=f"the table has no such column: {remedy}", alteration=alteration)


def _side_by_side(lines: Sequence[ComparedColumn]) -> str:
    """One line for each column; those that do not fit are marked with ! and say why."""
    fitting = [line for line in lines if line.problem is None]
    hidden = set(fitting[_FITTING_MAX:])
    rows = [("", "column", "the rows have", "the table has", "")]
    for line in lines:
        if line not in hidden:
            mark = "" if line.problem is None else "!"
            rows.append((mark, _shown(line.name), _shown(line.rows), _shown(line.table), line.problem or ""))
    widths = [max(len(row[i]) for row in rows) for i in range(1, 4)]
    text = [
        f"{mark:2}{name:{widths[0]}}  {have:{widths[1]}}  {has:{widths[2]}}  {why}".rstrip()
        for mark, name, have, has, why in rows
    ]
    if hidden:
        text.append(f"  and {len(hidden)} columns more, which fit")
    return "\n".join(f"  {line}" for line in text)


def _shown(text: str | None) -> str:
    text = text or "-"
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _TYPE_CHARACTERS_MAX + 3 else text[:_TYPE_CHARACTERS_MAX] + "..."
