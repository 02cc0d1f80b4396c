"""The user's table: what it is, whether the rows fit into it, and making it where it is missing."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.connection import Connection
from onefold.sinks.postgres.naming import Table, identifier
from onefold.sinks.postgres.types import Column, PostgresType, default_type, fit

__all__ = ["Target", "columns_of", "create", "find"]


@dataclass(frozen=True, slots=True)
class TargetColumn:
    name: str
    type: PostgresType
    is_required: bool  # NOT NULL, and nothing fills it in
    is_generated: bool
    may_insert: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A table as the catalogue has it. `blockers` are reasons against two-phase delivery, for people."""

    table: Table
    kind: str
    columns: tuple[TargetColumn, ...]
    blockers: tuple[str, ...]  # sibling tasks' prepared rows would wait for one another
    cautions: tuple[str, ...]  # two-phase works, and `auto` rather doesn't

    @property
    def takes_copy(self) -> bool:
        return self.kind in ("r", "p")


_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, current_user, has_schema_privilege(n.oid, 'USAGE'),
       row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, b.typname, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, e.typname,
       b.typtype = 'e', format_type(b.oid, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END),
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL,
       a.attgenerated <> '' OR a.attidentity = 'a', has_column_privilege(a.attrelid, a.attnum, 'INSERT')
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TREE = "(SELECT %(t)s::oid AS relid UNION SELECT relid FROM pg_partition_tree(%(t)s::oid))"
_BLOCKERS = f"""
WITH tree AS {_TREE}
SELECT 'unique index ' || i.indexrelid::regclass FROM pg_index i JOIN tree ON i.indrelid = relid WHERE i.indisunique
UNION ALL SELECT 'exclusion constraint ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'x'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger JOIN tree ON tgrelid = relid WHERE NOT tgisinternal
    AND tgenabled <> 'D'
ORDER BY 1
"""
_CAUTIONS = f"""
WITH tree AS {_TREE}
SELECT DISTINCT 'foreign key ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'f'
ORDER BY 1
"""
_FOREIGN = f"""
WITH tree AS {_TREE} SELECT relid::regclass::text FROM tree JOIN pg_class c ON c.oid = relid WHERE c.relkind = 'f'
"""


def find(connection: Connection, table: Table) -> Target | None:
    """The table, None if there is none. Raises ConfigError for one that can't hold what it acknowledges."""
    row = connection.execute(_FIND, (table.sql,)).fetchone()
    if row is None:
        return None
    oid, schema, name, kind, persistence, user, may_use, row_security = row
    found = Table(schema, name)
    if not may_use:
        raise ConfigError(
            f"role {user!r} may not use schema {schema!r}: GRANT USAGE ON SCHEMA {identifier(schema)} "
            f"TO {identifier(user)}"
        )
    if kind not in ("r", "p", "v"):
        raise ConfigError(f"{found} is no table that rows can be inserted into within one transaction (kind {kind!r})")
    if persistence != "p":
        raise ConfigError(
            f"table {found} is UNLOGGED or temporary: a crash of the server empties it, and exactly-once with it. "
            f"ALTER TABLE {found.sql} SET LOGGED"
        )
    foreign = connection.execute(_FOREIGN, {"t": oid}).fetchone()
    if foreign is not None:
        raise ConfigError(
            f"partition {foreign[0]} of {found} is a foreign table, which does not commit with its parent"
        )
    blockers = [r[0] for r in connection.execute(_BLOCKERS, {"t": oid})]
    if kind == "v":
        blockers.append("it is a view")
    if row_security:
        blockers.append("row-level security, which COPY refuses")
    return Target(
        found,
        kind,
        tuple(
            TargetColumn(c[0], PostgresType(c[1], c[2], c[3], c[4], c[5]), c[6], c[7], c[8])
            for c in connection.execute(_COLUMNS, (oid,))
        ),
        tuple(blockers),
        tuple(r[0] for r in connection.execute(_CAUTIONS, {"t": oid})),
    )


def create(connection: Connection, table: Table, schema: pa.Schema) -> None:
    """CREATE TABLE with a column for each field. Raises SchemaMismatch for types that Postgres has no place for."""
    unknown = [f"{f.name}: {f.type} has no type in Postgres; cast it" for f in schema if default_type(f.type) is None]
    if unknown:
        raise SchemaMismatch(_listed(f"table {table} cannot be created", unknown))
    row = connection.execute(
        "SELECT current_user, n.nspname, has_schema_privilege(n.oid, 'CREATE') "
        "FROM pg_namespace n WHERE n.nspname = coalesce(%s, current_schema())",
        (table.schema,),
    ).fetchone()
    if row is None:
        raise ConfigError(f"table {table} cannot be created: schema {table.schema!r} does not exist. CREATE SCHEMA it")
    user, namespace, may_create = row
    if not may_create:
        raise ConfigError(
            f"table {table} does not exist and role {user!r} may not create it: GRANT CREATE ON SCHEMA "
            f"{identifier(namespace)} TO {identifier(user)}, or create the table"
        )
    columns = ", ".join(f"{identifier(f.name)} {default_type(f.type)}" for f in schema)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {Table(namespace, table.name).sql} ({columns})")


def columns_of(target: Target, schema: pa.Schema) -> tuple[Column, ...]:
    """How each field of `schema` travels into `target`. Raises SchemaMismatch naming every column that cannot."""
    names = schema.names
    problems = [
        f"{name}: there are two columns of this name in the rows" for name in set(names) if names.count(name) > 1
    ]
    theirs = {column.name: column for column in target.columns}
    resolved: list[Column] = []
    for field in schema:
        there = theirs.get(field.name)
        if there is None:
            declared = default_type(field.type) or "..."
            problems.append(
                f"{field.name}: the rows have {field.type}, the table has no such column; "
                f"ALTER TABLE {target.table.sql} ADD COLUMN {identifier(field.name)} {declared}, or leave it out"
                + _near(field.name, theirs)
            )
        elif there.is_generated:
            problems.append(f"{field.name}: the table generates it always; drop it from the rows")
        else:
            column = fit(field.name, field.type, there.type)
            if column is None:
                declared = default_type(field.type) or "another type"
                problems.append(
                    f"{field.name}: the rows have {field.type}, the table has {there.type.sql}, which cannot take "
                    f"every such value; cast the rows' column, or alter the table's to {declared}"
                )
            else:
                resolved.append(column)
    problems += [
        f"{column.name}: the table says NOT NULL without a default, the rows have no such column; "
        "add it to the rows, or give it a default"
        for column in target.columns
        if column.is_required and not column.is_generated and column.name not in names
    ]
    if not names:
        problems.append("the rows have no columns at all")
    if problems:
        raise SchemaMismatch(_listed(f"the rows do not fit into table {target.table}", problems))
    denied = [name for name in names if not theirs[name].may_insert]
    if denied:
        raise ConfigError(
            f"no permission to insert into {', '.join(denied)} of table {target.table}: "
            f"GRANT INSERT ON {target.table.sql} to the role of the sink's URL"
        )
    return tuple(resolved)


def _near(name: str, theirs: dict[str, TargetColumn]) -> str:
    near = [other for other in theirs if other.casefold() == name.casefold()]
    return f" (the table has {near[0]!r}: case matters)" if near else ""


def _listed(what: str, problems: list[str]) -> str:
    return what + ":" + "".join(f"\n  {problem}" for problem in problems)
