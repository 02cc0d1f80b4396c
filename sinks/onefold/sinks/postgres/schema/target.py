"""The user's table: what it is, and making it where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.clients.postgres import trust
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection
from onefold.core.checks import present
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema.type_mapping import PostgresType, default_type


@dataclass(frozen=True, slots=True)
class TargetColumn:
    name: str
    type: PostgresType
    is_required: bool  # NOT NULL, and nothing fills it in
    is_generated: bool
    may_insert: bool
    domain: str | None = None  # the domain's name in SQL; `type` is what it comes down to
    collation: str | None = None  # in SQL, where it isn't the type's own
    own_type: str = ""  # as `types` says it: the column's own, also where that is a domain
    is_loose: bool = False  # its collation takes some texts for equal that are not the same

    @property
    def sql(self) -> str:
        """The type and the collation that a column of ours has, so that both compare alike. As `declared` says it."""
        return self.type.sql if self.collation is None else f"{self.type.sql} COLLATE {self.collation}"

    @property
    def declared(self) -> str:
        """The type for people, with NOT NULL where only the rows can give a value."""
        kind = self.type.sql if self.domain is None else f"{self.domain}, a domain over {self.type.sql}"
        return f"{kind} NOT NULL" if self.is_required else kind


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`columns` is empty where the index has expressions or a condition, or is checked late: it names no key."""

    name: str
    columns: frozenset[str]
    is_own: bool  # the table's; else one of its partitions has it


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the catalogue has it."""

    table: TargetName
    kind: str
    columns: tuple[TargetColumn, ...]
    unique: tuple[UniqueIndex, ...]
    obstacles: tuple[str, ...]  # besides unique indexes, what speaks against prepared transactions or COPY
    cautions: tuple[str, ...]  # two-phase works, and `auto` rather doesn't
    denied: tuple[str, ...]  # what else than INSERT the role may not do here: SELECT, UPDATE, DELETE
    owner: str
    is_mine: bool  # this session may alter it

    def has_key(self, key: Sequence[str]) -> bool:
        """Whether the table has a unique index on exactly these columns. One of a partition alone says nothing."""
        return any(index.is_own and index.columns == set(key) for index in self.unique)

    def blockers(self, key: Sequence[str]) -> tuple[str, ...]:
        """Reasons against two-phase delivery, for people. An index on `key` is none: no two tasks share a key."""
        indexes = (i.name for i in self.unique if not key or i.columns != set(key))
        return (*(f"unique index {name}" for name in indexes), *self.obstacles)

    @property
    def takes_copy(self) -> bool:
        return self.kind in ("r", "p")

    @property
    def is_view(self) -> bool:
        return self.kind == "v"


_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, current_user, has_schema_privilege(n.oid, 'USAGE'),
       row_security_active(c.oid), pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_OWN_TYPE = "concat_ws(' ', a.atttypid, a.atttypmod)"
# A domain may be over another domain: `type` goes down to what the innermost is over. Each has the modifiers of the
# one below, its own NOT NULL, and the default of the one below unless it has another.
_COLUMNS = f"""
WITH RECURSIVE type AS (
    SELECT a.attnum, t.oid, a.atttypmod AS typmod, false AS is_not_null, false AS is_filled, 0 AS depth
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %(t)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT type.attnum, t.typbasetype, t.typtypmod, type.is_not_null OR t.typnotnull,
           type.is_filled OR t.typdefault IS NOT NULL, type.depth + 1
    FROM type JOIN pg_type t ON t.oid = type.oid WHERE t.typtype = 'd'
)
SELECT a.attname, b.typname, type.typmod, e.typname, b.typtype = 'e', format_type(b.oid, type.typmod),
       (a.attnotnull OR type.is_not_null) AND NOT a.atthasdef AND a.attidentity = '' AND NOT type.is_filled,
       a.attgenerated <> '' OR a.attidentity = 'a', has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
       CASE WHEN type.depth > 0 THEN format_type(a.atttypid, NULL) END,
       (SELECT format('%%I.%%I', nspname, collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = collnamespace
        WHERE c.oid = a.attcollation AND c.oid <> b.typcollation), {_OWN_TYPE},
       EXISTS (SELECT FROM pg_collation c WHERE c.oid = a.attcollation AND NOT collisdeterministic)
FROM pg_attribute a
JOIN (SELECT DISTINCT ON (attnum) * FROM type ORDER BY attnum, depth DESC) type ON type.attnum = a.attnum
JOIN pg_type b ON b.oid = type.oid
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %(t)s ORDER BY a.attnum
"""
_TREE = "(SELECT %(t)s::oid AS relid UNION SELECT relid FROM pg_partition_tree(%(t)s::oid))"
_UNIQUE = f"""
WITH tree AS {_TREE}
SELECT c.relname, i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL,
       (SELECT array_agg(attname::text) FROM pg_attribute
        WHERE attrelid = i.indrelid AND attnum = ANY(i.indkey[0:i.indnkeyatts - 1])), i.indrelid = %(t)s
FROM pg_index i JOIN tree ON i.indrelid = relid JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indisunique ORDER BY 1
"""
_OBSTACLES = f"""
WITH tree AS {_TREE}
SELECT 'exclusion constraint ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'x'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger JOIN tree ON tgrelid = relid WHERE NOT tgisinternal
    AND tgenabled IN ('O', 'A')
UNION ALL SELECT 'rule ' || rulename || ', which COPY passes over' FROM pg_rewrite JOIN tree ON ev_class = relid
    WHERE ev_type = '3' AND ev_enabled IN ('O', 'A')
ORDER BY 1
"""
_CAUTIONS = f"""
WITH tree AS {_TREE}
SELECT DISTINCT 'foreign key ' || conname FROM pg_constraint JOIN tree ON conrelid = relid WHERE contype = 'f'
ORDER BY 1
"""
_RIGHTS = """
SELECT r FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE']) r WHERE NOT has_table_privilege(%(t)s::oid, r)
"""
_UNSAFE = f"""
WITH tree AS {_TREE} SELECT relid::regclass::text, c.relkind = 'f' FROM tree JOIN pg_class c ON c.oid = relid
WHERE c.relkind = 'f' OR c.relpersistence <> 'p' ORDER BY 2 DESC, 1
"""
# Tables and partitions that are in a publication of what an upsert does, and of whose rows it cannot say which change.
_UNIDENTIFIED = f"""
WITH tree AS {_TREE}
SELECT relid::regclass::text FROM tree JOIN pg_class c ON c.oid = relid
WHERE c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = relid AND i.indimmediate AND i.indisvalid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
    AND EXISTS (
        SELECT FROM pg_publication p JOIN pg_publication_tables USING (pubname)
        JOIN pg_class k ON k.relname = tablename JOIN pg_namespace n ON n.oid = k.relnamespace AND nspname = schemaname
        WHERE (p.pubupdate OR p.pubdelete)
            AND (k.oid = relid OR k.oid IN (SELECT ancestor.relid FROM pg_partition_ancestors(tree.relid) ancestor)))
ORDER BY 1 LIMIT 1
"""

_NAMED_TYPES = """
SELECT b.typname, m.typmod, e.typname, b.typtype = 'e', format_type(b.oid, m.typmod)
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS m (oid, typmod, number) JOIN pg_type b ON b.oid = m.oid
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A' ORDER BY m.number
"""
_UNSEEN = """
SELECT format_type(opcintype, NULL), nspname
FROM unnest(%s::text[]) type JOIN pg_opclass ON opcintype = to_regtype(type) AND opcdefault
JOIN pg_am am ON am.oid = opcmethod AND amname = 'btree'
JOIN pg_amop ON amopfamily = opcfamily AND amoplefttype = opcintype AND amoprighttype = opcintype
JOIN pg_operator o ON o.oid = amopopr JOIN pg_namespace n ON n.oid = oprnamespace
WHERE NOT pg_operator_is_visible(o.oid) LIMIT 1
"""
_DECLARED = """
SELECT attname, format_type(atttypid, atttypmod) || coalesce(
    (SELECT format(' COLLATE %%I.%%I', nspname, collname)
     FROM pg_collation c JOIN pg_namespace n ON n.oid = collnamespace
     WHERE c.oid = attcollation AND c.oid <> typcollation), '')
FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def declared(connection: Connection, name: str) -> list[tuple[str, str]]:
    """Columns and declared types of one of onefold's own tables, with a collation or precision that is not the default.

    Empty if the table is missing.
    """
    (found,) = connection.ask(asking_declared(name))
    return found


def asking_declared(name: str) -> Statement:
    """Answers with what `declared` says."""
    return _DECLARED, (name,)


def asking_types(name: str, columns: Sequence[str]) -> Statement:
    """Answers with these columns' types with their modifiers, as they are now, to be compared; a column that is gone is
    left out. Those of a table that was made UNLOGGED compare as others.

    A numeric of fewer places is of the same type, and rounds what it is given.
    """
    query = f"""SELECT a.attname, concat_ws(' ', {_OWN_TYPE}, nullif(c.relpersistence::text, 'p'))
                FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY(%s) AND NOT a.attisdropped"""
    return query, (name, list(columns))


def types(connection: Connection, name: str, columns: Sequence[str]) -> dict[str, str]:
    """What `asking_types` answers."""
    query, parameters = asking_types(name, columns)
    return dict(connection.execute(query.encode(), parameters).fetchall())


def unseen(connection: Connection, columns: Sequence[TargetColumn]) -> tuple[str, str] | None:
    """A type of these columns whose own comparisons are in a schema where names are not looked up, and that schema.

    Its values would be compared as another type's that they cast to: `citext` as `text`, with case.
    """
    return connection.execute(_UNSEEN, ([column.type.sql for column in columns],)).fetchone()


def unidentified(connection: Connection, table: TargetName) -> str | None:
    """The table, or a partition of it, whose published rows nobody could update or delete for want of a replica
    identity."""
    ((oid,),) = connection.execute("SELECT to_regclass(%s)::oid", (table.sql,))
    row = connection.execute(_UNIDENTIFIED, {"t": oid}).fetchone()
    return None if row is None else str(row[0])


def find(connection: Connection, table: TargetName) -> TargetTable | None:
    """The table, None if there is none. Raises ConfigError for one that can't hold what it acknowledges."""
    row = connection.execute(_FIND, (table.sql,)).fetchone()
    if row is None:
        if table.schema is None:
            trust.check_path(connection, table.name)
        return None
    oid, schema, name, kind, persistence, user, may_use, row_security, owner, is_mine = row
    found = TargetName(schema, name)
    if not may_use:
        raise ConfigError(
            "schema-permission",
            f"role {user!r} may not use schema {schema!r}: GRANT USAGE ON SCHEMA {identifier(schema)} "
            f"TO {identifier(user)}",
        )
    if kind not in ("r", "p", "v"):
        raise ConfigError(
            "table-kind", f"{found} is no table that rows can be inserted into within one transaction (kind {kind!r})"
        )
    if persistence != "p":
        raise ConfigError(
            "table-unlogged",
            f"table {found} is UNLOGGED or temporary: a crash of the server empties it, and exactly-once with it. "
            f"ALTER TABLE {found.sql} SET LOGGED",
        )
    unsafe, obstacles, unique, rights, columns, cautions = connection.ask(
        *((asked, {"t": oid}) for asked in (_UNSAFE, _OBSTACLES, _UNIQUE, _RIGHTS, _COLUMNS, _CAUTIONS))
    )
    if unsafe:
        partition, is_foreign = unsafe[0]
        raise ConfigError(
            "partition-not-durable",
            f"partition {partition} of {found} is a foreign table, which does not commit with its parent"
            if is_foreign
            else f"partition {partition} of {found} is UNLOGGED: a crash of the server empties it, and exactly-once "
            f"with it. ALTER TABLE {partition} SET LOGGED",
        )
    against = [obstacle for (obstacle,) in obstacles]
    if kind == "v":
        against.append("it is a view")
    if row_security:
        against.append("row-level security, which COPY refuses")
    return TargetTable(
        found,
        kind,
        tuple(TargetColumn(c[0], PostgresType(*c[1:6]), *c[6:]) for c in columns),
        tuple(UniqueIndex(name, frozenset(of if is_key else ()), is_own) for name, is_key, of, is_own in unique),
        tuple(against),
        tuple(caution for (caution,) in cautions),
        tuple(right for (right,) in rights),
        owner,
        is_mine,
    )


def creating(connection: Connection, table: TargetName, schema: pa.Schema, key: Sequence[str] = ()) -> str:
    """The CREATE TABLE with a column for each field, and `key` as its primary key.

    Raises SchemaMismatch for types that Postgres has no place for, ConfigError where the table cannot be made.
    """
    unknown = [f"{f.name}: {f.type} has no type in Postgres; cast it" for f in schema if default_type(f.type) is None]
    if unknown:
        raise SchemaMismatch("table-not-creatable", _listed(f"table {table} cannot be created", unknown))
    parts = [f"{identifier(f.name)} {default_type(f.type)}" for f in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(identifier, key))})")
    made = TargetName(place(connection, table), table.name)
    return f"CREATE TABLE IF NOT EXISTS {made.sql} ({', '.join(parts)})"


def created(connection: Connection, table: TargetName, schema: pa.Schema) -> TargetTable:
    """The table that `creating` makes, as far as what the sink keeps beside it depends on it: its name and columns."""
    made = TargetTable(TargetName(place(connection, table), table.name), "r", (), (), (), (), (), "", is_mine=True)
    return with_types(connection, made, {f.name: default_type(f.type) or "text" for f in schema})


def with_types(connection: Connection, target: TargetTable, types: Mapping[str, str]) -> TargetTable:
    """The table with these columns' types, which are SQL, in the place of its own, and new columns behind them."""
    if not types:
        return target
    found = present(
        connection.execute(f"SELECT {', '.join(f'NULL::{t}' for t in types.values())}".encode()).pgresult, "rows"
    )
    asked = [found.ftype(at) for at in range(found.nfields)], [found.fmod(at) for at in range(found.nfields)]
    rows = connection.execute(_NAMED_TYPES, asked).fetchall()
    now = {name: PostgresType(*row) for name, row in zip(types, rows, strict=True)}
    kept = tuple(replace(c, type=now.pop(c.name, c.type)) for c in target.columns)
    new = tuple(TargetColumn(name, type, False, False, may_insert=True) for name, type in now.items())
    return replace(target, columns=(*kept, *new))


def place(connection: Connection, table: TargetName) -> str:
    """The schema in which a missing table can be made. Raises ConfigError."""
    row = connection.execute(
        "SELECT current_user, n.nspname, has_schema_privilege(n.oid, 'CREATE') "
        "FROM pg_namespace n WHERE n.nspname = coalesce(%s, current_schema())",
        (table.schema,),
    ).fetchone()
    if row is None:
        raise ConfigError(
            "database-schema-missing",
            f"table {table} cannot be created: schema {table.schema!r} does not exist. CREATE SCHEMA it",
        )
    user, namespace, may_create = row
    if not may_create:
        raise ConfigError(
            "create-permission",
            f"table {table} does not exist and role {user!r} may not create it: GRANT CREATE ON SCHEMA "
            f"{identifier(namespace)} TO {identifier(user)}, or create the table",
        )
    return str(namespace)


def _listed(what: str, problems: list[str]) -> str:
    return what + ":" + "".join(f"\n  {problem}" for problem in problems)
