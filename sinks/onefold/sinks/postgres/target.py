"""The user's table: what it is, whether the rows fit into it, and making it where it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.connection import Connection
from onefold.sinks.postgres.naming import Table, identifier
from onefold.sinks.postgres.types import Column, PostgresType, default_type, fit

__all__ = ["Target", "UniqueIndex", "columns_of", "create", "find"]


@dataclass(frozen=True, slots=True)
class TargetColumn:
    name: str
    type: PostgresType
    is_required: bool  # NOT NULL, and nothing fills it in
    is_generated: bool
    may_insert: bool


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`columns` is empty where the index has expressions or a condition, or is checked late: it names no key."""

    name: str
    columns: frozenset[str]
    is_parts: bool  # a partition's share of the index of its parent


@dataclass(frozen=True, slots=True)
class Target:
    """A table as the catalogue has it."""

    table: Table
    kind: str
    columns: tuple[TargetColumn, ...]
    unique: tuple[UniqueIndex, ...]
    obstacles: tuple[str, ...]  # besides unique indexes, what makes sibling tasks' prepared rows wait for one another
    cautions: tuple[str, ...]  # two-phase works, and `auto` rather doesn't
    denied: tuple[str, ...]  # what else than INSERT the role may not do here: SELECT, UPDATE, DELETE

    def key_indexes(self, key: Sequence[str]) -> tuple[str, ...]:
        """The unique indexes on exactly these columns, with those of the partitions; none if the table has none."""
        found = [index for index in self.unique if index.columns == set(key)]
        return () if all(index.is_parts for index in found) else tuple(index.name for index in found)

    def blockers(self, key: Sequence[str]) -> tuple[str, ...]:
        """Reasons against two-phase delivery, for people. An index on `key` is none: no two tasks share a key."""
        indexes = (i.name for i in self.unique if not key or i.columns != set(key))
        return (*(f"unique index {name}" for name in indexes), *self.obstacles)

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
_UNIQUE = f"""
WITH tree AS {_TREE}
SELECT c.relname, i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL,
       (SELECT array_agg(attname::text) FROM pg_attribute
        WHERE attrelid = i.indrelid AND attnum = ANY(i.indkey[0:i.indnkeyatts - 1])), c.relispartition
FROM pg_index i JOIN tree ON i.indrelid = relid JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indisunique ORDER BY 1
"""
_OBSTACLES = f"""
WITH tree AS {_TREE}
SELECT 'exclusion constraint ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'x'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger JOIN tree ON tgrelid = relid WHERE NOT tgisinternal
    AND tgenabled <> 'D'
ORDER BY 1
"""
_CAUTIONS = f"""
WITH tree AS {_TREE}
SELECT DISTINCT 'foreign key ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'f'
ORDER BY 1
"""
_RIGHTS = """
SELECT r FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE']) r WHERE NOT has_table_privilege(%s::oid, r)
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
    obstacles = [r[0] for r in connection.execute(_OBSTACLES, {"t": oid})]
    if kind == "v":
        obstacles.append("it is a view")
    if row_security:
        obstacles.append("row-level security, which COPY refuses")
    unique = [
        UniqueIndex(name, frozenset(columns if is_key else ()), is_parts)
        for name, is_key, columns, is_parts in connection.execute(_UNIQUE, {"t": oid})
    ]
    rights = connection.execute(_RIGHTS, (oid,)).fetchall()
    return Target(
        found,
        kind,
        tuple(
            TargetColumn(c[0], PostgresType(c[1], c[2], c[3], c[4], c[5]), c[6], c[7], c[8])
            for c in connection.execute(_COLUMNS, (oid,))
        ),
        tuple(unique),
        tuple(obstacles),
        tuple(r[0] for r in connection.execute(_CAUTIONS, {"t": oid})),
        tuple(right for (right,) in rights),
    )


def create(connection: Connection, table: Table, schema: pa.Schema, key: Sequence[str] = ()) -> None:
    """CREATE TABLE with a column for each field, and `key` as its primary key.

    Raises SchemaMismatch for types that Postgres has no place for.
    """
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
    parts = [f"{identifier(f.name)} {default_type(f.type)}" for f in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(identifier, key))})")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {Table(namespace, table.name).sql} ({', '.join(parts)})")


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
