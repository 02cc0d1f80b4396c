"""The one schema of a Postgres database that holds onefold's own tables: the checkpoint store's, and the sinks'.

A sink's `ledger` names it, and `?schema=` in a store's URL. No look-up of these tables goes by search_path: the schemas
that it names may have another pipeline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onefold.core.errors import ConfigError
from onefold.core.sql.postgres_trust import Ask, asked, check_ours, quoted

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "OWN_SCHEMA",
    "apart",
    "check_place",
    "check_rights",
    "check_tables",
    "in_schema",
    "making_place",
    "own_schema",
]

OWN_SCHEMA = "onefold_sinks"  # where nobody names another
_OPTION = "schema"
_LOOK, _WORK = ("SELECT",), ("SELECT", "INSERT", "UPDATE", "DELETE")
_PLACE = """
SELECT current_user, current_database(), pg_get_userbyid(n.nspowner),
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""
# Not to_regclass: a session that just waited for the lock may still remember that there was no such schema.
_HAS_LOCKS = """
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'onefold_locks' AND nspname = %s
"""
_DENIED = """
SELECT current_user, pg_get_userbyid(n.nspowner), c.relname, r
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(%s::text[]) r
WHERE n.nspname = %s AND c.relname = ANY(%s)
    AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, r))
ORDER BY c.relname, r LIMIT 1
"""
_OWN_ONE = "give the pipeline a schema of its own (the sinks' ledger=, or ?schema= in the store's URL)"


def apart(url: sa.URL) -> tuple[sa.URL, str]:
    """A store's URL as the driver takes it, and the schema that it names."""
    schema = url.query.get(_OPTION, OWN_SCHEMA)
    if not isinstance(schema, str) or not schema:
        raise ConfigError("option-value", f"?{_OPTION}= in a store's URL names one schema, not {schema!r}")
    return url.difference_update_query([_OPTION]), schema


def in_schema(schema: str) -> dict[str, str]:
    """What a URL's query says for that schema; nothing for the one that it means anyway."""
    return {} if schema == OWN_SCHEMA else {_OPTION: schema}


def own_schema(connection: sa.Connection) -> str | None:
    """Where a store's connection has onefold's tables; None where the database has no schemas."""
    names: dict[str | None, str] = connection.get_execution_options().get("schema_translate_map") or {}
    return names.get(None)


def check_tables(connection: sa.Connection, names: Sequence[str], *, to_look: bool = False) -> None:
    """Refuse tables of onefold's that others could change, or that this role may not use. Other databases than Postgres
    have one owner each. Raises ConfigError."""
    schema = own_schema(connection)
    if schema is not None:
        check_ours(asked(connection), names, schema)
        check_rights(asked(connection), names, schema, to_look=to_look)


def check_rights(ask: Ask, names: Sequence[str], schema: str, *, to_look: bool) -> None:
    """Raise ConfigError where this role may not read, or write to, one of these tables; missing ones are fine."""
    rights = _LOOK if to_look else _WORK
    found = ask(_DENIED, (list(rights), schema, list(names)))
    if found:
        me, owner, table, right = found[0]
        raise ConfigError(
            "own-tables-permission",
            f"role {me!r} may not {right} {schema}.{table}, a table of onefold's own, in schema {schema!r} of role"
            f" {owner!r}. As that role, GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(me)}; GRANT"
            f" {', '.join(rights)} ON ALL TABLES IN SCHEMA {quoted(schema)} TO {quoted(me)}; or {_OWN_ONE}: CREATE"
            f" SCHEMA {quoted(me)} AUTHORIZATION {quoted(me)}",
        )


def check_place(ask: Ask, schema: str) -> bool:
    """Whether the schema is there. Raises ConfigError where this role may not make it, or no tables in it."""
    ((me, database, owner, may_create),) = ask(_PLACE, (schema,))
    if owner is None and may_create and me == schema:
        # search_path starts with "$user": the new schema would come first in every later look-up of a bare name.
        raise ConfigError(
            "schema-named-as-role",
            f"schema {schema!r} has also the role's name, so creating it would hide the tables in 'public' from that"
            " role: name another schema",
        )
    if not may_create and owner is None:
        raise ConfigError(
            "ledger-permission",
            f"schema {schema!r} for onefold's own tables is not there, and role {me!r} may not make it in database"
            f" {database!r}. An administrator runs CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(me)}, or GRANT"
            f" CREATE ON DATABASE {quoted(database)} TO {quoted(me)}; or {_OWN_ONE}",
        )
    if not may_create:
        raise ConfigError(
            "ledger-permission",
            f"role {me!r} may not create onefold's own tables in schema {schema!r} of role {owner!r}. As that role,"
            f" GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(me)}; or {_OWN_ONE}: CREATE SCHEMA"
            f" {quoted(me)} AUTHORIZATION {quoted(me)}",
        )
    return owner is not None


def making_place(ask: Ask, schema: str) -> list[str]:
    """The statements that make the schema, and the table by which drivers take turns in it; none where they are there.
    Raises ConfigError where this role may make neither the schema nor tables in it."""
    if ask(_HAS_LOCKS, (schema,)):
        return []
    made = [] if check_place(ask, schema) else [f"CREATE SCHEMA {quoted(schema)}"]
    return [*made, f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.onefold_locks (name text PRIMARY KEY)"]
