"""The user's table: what it is, whether the rows fit into it, and making it where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.name_parts import TableName
from onefold.sinks.sql.adapters.sql_kinds import kind_of
from onefold.sinks.sql.databases import adapter_of
from onefold.sinks.sql.naming import exactly
from onefold.sinks.sql.sink_plan import SqlColumn
from onefold.sinks.staged.upsert import Changes

There = Mapping[str, Any]  # a column as SQLAlchemy's inspector describes it


def clause(table: TableName) -> sa.TableClause:
    """The table in SQL, without its columns."""
    return sa.table(exactly(table.name), schema=None if table.schema is None else exactly(table.schema))


def is_there(connection: sa.Connection, table: TableName) -> bool:
    return sa.inspect(connection).has_table(table.name, table.schema)


def is_empty(connection: sa.Connection, table: TableName) -> bool:
    return connection.execute(sa.select(sa.literal(1)).select_from(clause(table)).limit(1)).first() is None


def find(connection: sa.Connection, table: TableName) -> dict[str, There] | None:
    """The table's columns by name, None if there is no such table. Raises ConfigError for one that won't do."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name, table.schema):
        return None
    if table.name in inspector.get_view_names(table.schema):
        raise ConfigError("target-is-view", f"{table} is a view: name the table that is to hold the rows")
    found, adapter = sa.table(table.name, schema=table.schema), adapter_of(connection.dialect)
    adapter.check_target(connection, found)
    columns: dict[str, There] = {c["name"]: c for c in inspector.get_columns(table.name, table.schema)}
    for name, collation in adapter.collations(connection, found).items():
        kind = columns[name]["type"]
        if isinstance(kind, sa.String):
            kind.collation = collation
    return columns


def create(connection: sa.Connection, table: TableName, schema: pa.Schema, key: Sequence[str]) -> None:
    """CREATE TABLE with a column for each field, and the key as primary key."""
    new(connection.dialect, table, schema, key).create(connection, checkfirst=True)


def new(dialect: sa.Dialect, table: TableName, schema: pa.Schema, key: Sequence[str]) -> sa.Table:
    """The table that `create` makes. Raises SchemaMismatch for types that have no place there."""
    columns, own = _new_columns(dialect, table, schema, key), adapter_of(dialect).stage_options
    options = {name: value for name, value in own.items() if name.startswith(("mysql", "mariadb"))}
    return sa.Table(exactly(table.name), sa.MetaData(), *columns, schema=table.schema, **options)


def as_found(made: sa.Table) -> dict[str, There]:
    """What `find` will say of a table that `new` describes."""
    return {
        column.name: {"name": column.name, "type": column.type, "nullable": column.nullable, "default": None}
        for column in made.columns
    }


def _new_columns(dialect: sa.Dialect, table: TableName, schema: pa.Schema, key: Sequence[str]) -> list[sa.Column[Any]]:
    """The columns that a new table gets. Raises SchemaMismatch for types that have no place there."""
    adapter, kinds = adapter_of(dialect), {field.name: kind_of(field.type) for field in schema}
    unknown = [f"{f.name}: {f.type} has no type in a table; cast it" for f in schema if kinds[f.name] is None]
    if unknown:
        raise SchemaMismatch("table-not-creatable", _listed(f"table {table} cannot be created", unknown))
    columns: list[sa.Column[Any]] = [
        sa.Column(exactly(name), adapter.column_type(kind, len(key) if name in key else 0), primary_key=name in key)
        for name, kind in kinds.items()
        if kind is not None
    ]
    for column in columns:
        column.autoincrement = False
    return columns


def columns_of(
    dialect: sa.Dialect,
    table: TableName,
    there: Mapping[str, There],
    schema: pa.Schema,
    order: Sequence[str],
) -> tuple[SqlColumn, ...]:
    """How each field of `schema` travels. Raises SchemaMismatch naming every column that cannot."""
    names, adapter = schema.names, adapter_of(dialect)
    problems = [
        f"{name}: there are two columns of this name in the rows" for name in sorted({*names}) if names.count(name) > 1
    ]
    columns = []
    for field in schema:
        kind = kind_of(field.type)
        column = there.get(field.name)
        if kind is None:
            problems.append(f"{field.name}: the rows have {field.type}, which has no type in a table; cast it")
        elif column is None:
            problems.append(
                f"{field.name}: the rows have {field.type}, the table has no such column; add it to the table, or "
                "leave it out" + _near(field.name, there)
            )
        elif column.get("computed") or (column.get("identity") or {}).get("always"):
            problems.append(f"{field.name}: the table generates it always; drop it from the rows")
        elif not adapter.takes(kind, column["type"]):
            declared = adapter.column_type(kind).compile(dialect)
            problems.append(
                f"{field.name}: the rows have {field.type}, the table has {column['type']}, which cannot take every "
                f"such value; cast the rows' column, or alter the table's to {declared}"
            )
        else:
            columns.append(SqlColumn(field.name, field.type, kind))
    problems += [
        f"{name}: the table says NOT NULL without a default, and the rows bring no such column (that which "
        "delete_when_true names is not written); add it to the rows, or give it a default"
        for name, column in there.items()
        if name not in names and _is_required(column)
    ]
    if not names:
        problems.append("the rows have no columns at all")
    if problems:
        raise SchemaMismatch("table-mismatch", _listed(f"the rows do not fit into table {table}", problems))
    for resolved in columns:
        if resolved.name in order and resolved.kind.family in adapter.unordered:
            raise ConfigError(
                "order-not-comparable",
                f"order={resolved.name!r}: {resolved.source} does not tell here which row is newer; order by a "
                "number, a date or a timestamp",
            )
    return tuple(columns)


def check_key(connection: sa.Connection, table: TableName, changes: Changes) -> None:
    """Raises ConfigError unless a unique index of exactly the key's columns keeps one row for each key."""
    inspector, wanted = sa.inspect(connection), {*changes.key}
    primary = inspector.get_pk_constraint(table.name, table.schema)
    indexes = inspector.get_indexes(table.name, table.schema)
    partial = {index["name"] for index in indexes if _is_partial(index)}
    constraints = inspector.get_unique_constraints(table.name, table.schema)
    unique: list[Sequence[str | None]] = [primary["constrained_columns"] if primary else []]
    unique += [found["column_names"] for found in constraints if found["name"] not in partial]
    unique += [index["column_names"] for index in indexes if index["unique"] and index["name"] not in partial]
    if wanted not in [{*names} for names in unique]:
        columns = ", ".join(changes.key)
        raise ConfigError(
            "unique-index-missing",
            f"mode='upsert' needs a unique index on exactly the key ({columns}), and table {table} has none: "
            f"CREATE UNIQUE INDEX ... ON {table} ({columns}), or name the columns of one it has as key",
        )


def _is_partial(index: Any) -> bool:
    """Over some rows only, or over the first characters of a text."""
    options = index.get("dialect_options") or {}
    found = [value for name, value in options.items() if name.endswith(("_where", "_length"))]
    return any(value if isinstance(value, Mapping) else value is not None for value in found)


def _is_required(column: There) -> bool:
    filled = column.get("default") is not None or column.get("computed") or column.get("identity")
    return not column["nullable"] and not filled and column.get("autoincrement") is not True


def _near(name: str, theirs: Mapping[str, There]) -> str:
    near = [other for other in theirs if other.casefold() == name.casefold()]
    return f" (the table has {near[0]!r}: case matters)" if near else ""


def _listed(what: str, problems: list[str]) -> str:
    return what + ":" + "".join(f"\n  {problem}" for problem in problems)
