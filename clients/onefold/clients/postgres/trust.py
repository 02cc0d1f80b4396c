"""Whom a Postgres session believes, where roles that it doesn't trust share its database.

Trusted are the session's own roles, every role that they are members of, superusers, the database's owner, and roles
that can become that owner. A superuser counts as a member only of what was granted to it: else all roles were its own.
So does who makes roles: since Postgres 16 it may administer each of them, which is no sign of trust. (A membership with
neither INHERIT nor SET nor ADMIN gives nothing but trust: for roles that only look.)

Two rules follow. Names are looked up only in schemas in which nobody else can create anything: an operator or function
of somebody else's would run as the session's role. And a table of onefold's own is used only where a trusted role owns
it and its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from onefold.clients.postgres.quoting import quoted
from onefold.core.errors import ConfigError
from onefold.core.values.plain import plain

Connection = psycopg.Connection[tuple[Any, ...]]

# Written so that it means the same under any search_path: SAFE_PATH runs it under the one that it replaces.
_MINE = """
WITH RECURSIVE mine(role) AS (
    SELECT oid FROM pg_catalog.pg_roles
    WHERE rolname OPERATOR(pg_catalog.=) current_user OR rolname OPERATOR(pg_catalog.=) session_user
    UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN mine ON m.member OPERATOR(pg_catalog.=) mine.role
        AND coalesce((pg_catalog.to_jsonb(m) OPERATOR(pg_catalog.->>) 'inherit_option')::pg_catalog.bool
            OR (pg_catalog.to_jsonb(m) OPERATOR(pg_catalog.->>) 'set_option')::pg_catalog.bool
            OR NOT m.admin_option, true))
"""
_OWNS_DATABASE = """
(SELECT datdba FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
"""


def _trusted(role: str) -> str:
    """A condition on the OID of a role; 0 is PUBLIC."""
    return f"""({role} OPERATOR(pg_catalog.=) ANY (SELECT role FROM mine)
        OR pg_catalog.pg_get_userbyid({role}) OPERATOR(pg_catalog.=) 'pg_database_owner'
        OR {role} OPERATOR(pg_catalog.<>) 0 AND pg_catalog.pg_has_role({role}, {_OWNS_DATABASE}, 'MEMBER'))"""


_OTHERS = f"""
LEFT JOIN LATERAL (
    SELECT acl.grantee FROM pg_catalog.aclexplode(n.nspacl) acl
    WHERE acl.privilege_type OPERATOR(pg_catalog.=) 'CREATE' AND NOT {_trusted("acl.grantee")} LIMIT 1
) other ON true
"""
# For the transaction at hand: the role's own path without the schemas that others can create in. Temporary tables come
# last, and not first. Where nothing is left, nothing can be created: never a temporary table instead of a lasting one.
SAFE_PATH = (
    "SET LOCAL search_path = DEFAULT",
    f"""{_MINE} SELECT pg_catalog.set_config('search_path', coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.quote_ident(path.name), ', ' ORDER BY place)
        FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY path(name, place)
        JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) path.name
            AND n.oid OPERATOR(pg_catalog.<>) pg_catalog.pg_my_temp_schema() {_OTHERS}
        WHERE {_trusted("n.nspowner")} AND other.grantee IS NULL
    ), 'pg_catalog') OPERATOR(pg_catalog.||) ', pg_temp', true)""",
)
_LEFT_OUT = f"""
{_MINE} SELECT n.nspname,
    CASE other.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(other.grantee)) END,
    EXISTS (SELECT FROM pg_class c
            WHERE c.relnamespace = n.oid AND c.relname = %s AND {_trusted("c.relowner")}) AS there
FROM pg_namespace n {_OTHERS}
WHERE n.nspname = ANY(%s) AND {_trusted("n.nspowner")} AND other.grantee IS NOT NULL
ORDER BY there DESC, array_position(%s::name[], n.nspname) LIMIT 1
"""
_EVERYWHERE = f"""
{_MINE} SELECT nspname, quote_ident(nspname) || '.' || quote_ident(relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
JOIN pg_attribute a ON attrelid = c.oid AND attname = 'store_id' AND atttypid = %s::regtype
WHERE relname = %s AND relkind = 'r' AND NOT relrowsecurity AND {_trusted("nspowner")} AND
    {_trusted("relowner")} AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid OR inhparent = c.oid)
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
"""
# `schema` is NULL where the names are looked up in the safe path.
_FOREIGN = f"""
{_MINE}, ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner, n.nspname
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE c.relname = ANY(%s) AND CASE WHEN %s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE nspname = %s END)
SELECT 0, nspname, nspname, pg_get_userbyid(nspowner) FROM pg_namespace
WHERE (nspname = %s OR nspname IN (SELECT nspname FROM ours)) AND NOT {_trusted("nspowner")}
UNION ALL SELECT 1, nspname, relname, pg_get_userbyid(relowner) FROM ours WHERE NOT {_trusted("relowner")}
UNION ALL SELECT 2, nspname, relname, relkind::text FROM ours
    WHERE relkind <> 'r' OR EXISTS (SELECT FROM pg_inherits WHERE inhrelid = ours.oid OR inhparent = ours.oid)
UNION ALL SELECT 3, nspname, relname, tgname FROM ours JOIN pg_trigger ON tgrelid = ours.oid WHERE NOT tgisinternal
UNION ALL SELECT 4, nspname, ours.relname, pg_get_userbyid(c.relowner)
    FROM ours JOIN pg_constraint ON confrelid = ours.oid JOIN pg_class c ON c.oid = conrelid
    WHERE NOT {_trusted("c.relowner")}
ORDER BY 1, 2, 3 LIMIT 1
"""


def rows(connection: Connection, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
    """What a statement with %s answers; none where it is no question."""
    cursor = connection.execute(statement.encode(), parameters or None)
    return cursor.fetchall() if cursor.description else []


def take_safe_path(connection: Connection) -> tuple[str, list[str]]:
    """Set the safe path for the transaction at hand. Returns it, and what it leaves out of the role's own path."""
    rows(connection, SAFE_PATH[0])
    schemas = "pg_catalog.current_schemas(false)::pg_catalog.text[]"
    ((own,),) = rows(connection, f"SELECT {schemas}")
    for statement in SAFE_PATH:
        rows(connection, statement)
    ((safe, path),) = rows(connection, f"SELECT {schemas}, pg_catalog.current_setting('search_path')")
    return path, [name for name in own if name not in safe]


def check_ours(connection: Connection, names: Sequence[str], schema: str | None = None) -> None:
    """Refuse tables of onefold's own that others could change, or have their code run by; missing ones are fine.

    Without a schema they are those that the safe path finds. For a transaction with that path. Raises ConfigError.
    """
    query, parameters = asking_foreign(names, schema)
    refuse_foreign(connection, rows(connection, query, parameters))


def asking_foreign(names: Sequence[str], schema: str | None) -> tuple[str, tuple[object, ...]]:
    """The statement that asks what `check_ours` refuses of these tables: for `refuse_foreign`."""
    return _FOREIGN, (list(names), schema, schema, schema)


def refuse_foreign(connection: Connection, found: Sequence[Any]) -> None:
    """Raise ConfigError for what `asking_foreign` has found, if that is anything."""
    if not found:
        return
    what, namespace, name, whose = found[0]
    (me,) = rows(connection, "SELECT current_user")[0]
    table, role, mine = f"{quoted(namespace)}.{quoted(name)}", plain(quoted(whose)), quoted(me)
    nothing = "Nothing was read from it or written to it"
    if what == 0:
        raise ConfigError(
            "schema-of-another-role",
            f"schema {namespace!r} is to hold onefold's own tables and belongs to role {whose!r}, of which {me!r} is"
            f" no member. {nothing}: ALTER SCHEMA {quoted(namespace)} OWNER TO {mine}, GRANT {role} TO {mine} if you"
            " trust that role with the pipeline, or name another schema",
        )
    if what == 1:
        raise ConfigError(
            "table-of-another-role",
            f"table {namespace}.{name} is to be onefold's own and belongs to role {whose!r}, of which {me!r} is no"
            f" member. {nothing}: DROP it if it is not a pipeline's, else ALTER TABLE {table} OWNER TO {mine}, or GRANT"
            f" {role} TO {mine} if you trust that role with the pipeline",
        )
    if what == 2:
        raise ConfigError(
            "own-table-foreign",
            f"{namespace}.{name} is to be a plain table of onefold's own, and is a view or a partition, or inherits"
            f" (kind {whose!r}). {nothing}: DROP it, or name another schema",
        )
    if what == 3:  # nobody knows whose it is: a role with TRIGGER can make one of any function that it may call
        raise ConfigError(
            "trigger-not-ours",
            f"table {namespace}.{name}, which is onefold's own, has a trigger {whose!r}, and onefold makes none: its"
            f" function would run as {me!r}. {nothing}: DROP TRIGGER {role} ON {table}, and REVOKE TRIGGER ON {table}"
            " FROM who made it",
        )
    raise ConfigError(
        "foreign-key-not-ours",
        f"table {namespace}.{name}, which is onefold's own, has a foreign key of a table of role {whose!r}, of which"
        f" {me!r} is no member: rows could not be deleted. {nothing}: drop that constraint, and REVOKE REFERENCES ON"
        f" {table} FROM {role}",
    )


def check_path(connection: Connection, name: str) -> None:
    """Before a table of that name is made, since the safe path finds none: refuse where it is, or would be, in a schema
    that the safe path leaves out. Raises ConfigError. For a transaction with that path, which it leaves so."""
    _, names = take_safe_path(connection)
    place = "SELECT current_schema() <> 'pg_catalog', has_schema_privilege(current_schema(), 'CREATE')"
    ((has_place, may_create),) = rows(connection, place)
    left_out = rows(connection, _LEFT_OUT, (name, names, names))
    if left_out and (left_out[0][2] or not (has_place and may_create)):
        schema, whose, is_there = left_out[0]
        raise ConfigError(
            "schema-not-trusted",
            f"table {name!r} {'is' if is_there else 'would be'} in schema {schema!r}, where {whose} may create"
            " functions that then run as this role: names are not looked up there. REVOKE CREATE ON SCHEMA"
            f" {quoted(schema)} FROM {whose} (PUBLIC has none since Postgres 15), or give this role a schema of"
            " its own as search_path; a sink's table can also be named with its schema",
        )
    if not has_place:
        raise ConfigError(
            "database-schema-missing",
            f"there is no schema for table {name!r}: CREATE SCHEMA ... AUTHORIZATION this role, and name it in its"
            " search_path. (Schemas of other roles, and those in which others may create, are left out of that)",
        )


def has_store(connection: Connection, store_id: str) -> bool:
    """Whether the checkpoint store of that id lives in this database, in whichever schema its own connection made it.

    For a transaction with the safe path.
    """
    tables = _trusted_tables(connection, "onefold_store", "varchar")
    return any(rows(connection, f"SELECT 1 FROM {table} WHERE store_id = %s", (store_id,)) for _, table in tables)


def ledger_elsewhere(connection: Connection, schema: str, pipeline: str, sink: str) -> tuple[str, int] | None:
    """Another schema of this database in which that sink of that pipeline has a ledger that a store has bound, and the
    epoch where it stands; None if there is none. For a transaction with the safe path."""
    for other, table in _trusted_tables(connection, "onefold_ledger", "text"):
        mine = f"SELECT epoch FROM {table} WHERE pipeline = %s AND sink = %s AND store_id <> ''"
        if other != schema and (found := rows(connection, mine, (pipeline, sink))):
            return other, found[0][0]
    return None


def _trusted_tables(connection: Connection, name: str, store_id: str) -> list[tuple[str, str]]:
    """The schemas with a table of that name, and the table for SQL with parameters. Only plain tables of trusted roles,
    whose column `store_id` is of that type; nobody's policy runs when they are asked."""
    rows(connection, "SET LOCAL row_security = off")
    return [(schema, table.replace("%", "%%")) for schema, table in rows(connection, _EVERYWHERE, (store_id, name))]
