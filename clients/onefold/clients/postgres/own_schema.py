"""The one schema of a Postgres database that holds onefold's own tables: the checkpoint store's, and the sinks'.

A sink's `ledger` names it, and `?schema=` in a store's URL. No look-up of these tables goes by search_path: the schemas
that it names may have another pipeline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onefold.clients.postgres import trust
from onefold.clients.postgres.quoting import quoted, with_parameters
from onefold.clients.postgres.sessions import Connection, create_beside_others
from onefold.clients.postgres.trust import rows
from onefold.core.errors import ConfigError

OWN_SCHEMA = "onefold_sinks"  # where nobody names another
LOCKS = "onefold_locks"  # is made before all other tables, for drivers to take turns
_LOOK, _WORK = ("SELECT",), ("SELECT", "INSERT", "UPDATE", "DELETE")
_PLACE = """
SELECT current_user, current_database(), pg_get_userbyid(n.nspowner),
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""
_TABLES = "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s"
_DENIED = """
SELECT current_user, pg_get_userbyid(n.nspowner), c.relname, r
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(%s::text[]) r
WHERE n.nspname = %s AND c.relname = ANY(%s)
    AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, r))
ORDER BY c.relname, r LIMIT 1
"""
_OWN_ONE = "give the pipeline a schema of its own (the sinks' ledger=, or ?schema= in the store's URL)"


def check_rights(connection: Connection, names: Sequence[str], schema: str, *, to_look: bool) -> None:
    """Raise ConfigError where this role may not read, or write to, one of these tables; missing ones are fine."""
    _refuse_denied(rows(connection, *_asking_denied(names, schema, to_look)), schema, to_look)


def checked_tables(connection: Connection, names: Sequence[str], schema: str, *, to_look: bool) -> set[str]:
    """The names of the tables in the schema, in one message with what `trust.check_ours` and `check_rights` ask of
    those of `names`, and raise."""
    foreign, denied, found = connection.ask(
        trust.asking_foreign(names, schema), _asking_denied(names, schema, to_look), (_TABLES, (schema,))
    )
    trust.refuse_foreign(connection, foreign)
    _refuse_denied(denied, schema, to_look)
    return {name for (name,) in found}


def _asking_denied(names: Sequence[str], schema: str, to_look: bool) -> tuple[str, tuple[object, ...]]:
    return _DENIED, (list(_LOOK if to_look else _WORK), schema, list(names))


def _refuse_denied(found: Sequence[Any], schema: str, to_look: bool) -> None:
    if found:
        rights = _LOOK if to_look else _WORK
        me, owner, table, right = found[0]
        raise ConfigError(
            "own-tables-permission",
            f"role {me!r} may not {right} {schema}.{table}, a table of onefold's own, in schema {schema!r} of role"
            f" {owner!r}. As that role, GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(me)}; GRANT"
            f" {', '.join(rights)} ON ALL TABLES IN SCHEMA {quoted(schema)} TO {quoted(me)}; or {_OWN_ONE}: CREATE"
            f" SCHEMA {quoted(me)} AUTHORIZATION {quoted(me)}",
        )


def check_place(connection: Connection, schema: str) -> bool:
    """Whether the schema is there. Raises ConfigError where this role may not make it, or no tables in it."""
    ((me, database, owner, may_create),) = rows(connection, _PLACE, (schema,))
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


def making_place(connection: Connection, schema: str) -> list[str]:
    """The statements that make the schema, and the table by which drivers take turns in it; none where they are there.
    Raises ConfigError where this role may make neither the schema nor tables in it."""
    if LOCKS in tables(connection, schema):
        return []
    made = [] if check_place(connection, schema) else [f"CREATE SCHEMA {quoted(schema)}"]
    return [*made, f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.{LOCKS} (name text PRIMARY KEY)"]


def tables(connection: Connection, schema: str) -> set[str]:
    """The names of those in the schema. Not by to_regclass: a session that just waited for the lock may still remember
    that there was no such schema."""
    return {name for (name,) in rows(connection, _TABLES, (schema,))}


def lock(connection: Connection, schema: str, name: str) -> None:
    """Until the end of the transaction nobody else has the lock of that name in this schema. Where that is not there,
    it is made, and the table of locks with it: two that make them at once would collide in the catalogue, as they may
    here, and then wait. Raises ConfigError."""
    trust.check_ours(connection, [LOCKS], schema)
    made = making_place(connection, schema)
    for statement in made:
        create_beside_others(connection, statement)
    if made:
        trust.check_ours(connection, [LOCKS], schema)
    take_turn(connection, schema, name)


def take_turn(connection: Connection, schema: str, name: str) -> None:
    """To the transaction's end nobody else has the lock of that name: a row of the table of locks, so that only who may
    write there can take it. (An advisory lock is a number, which any role of the database may hold.)"""
    locks = with_parameters(f"{quoted(schema)}.{LOCKS}")
    mine = f"SELECT name FROM {locks} WHERE name = %s FOR UPDATE"
    if not rows(connection, mine, (name,)):
        rows(connection, f"INSERT INTO {locks} VALUES (%s) ON CONFLICT DO NOTHING", (name,))
        rows(connection, mine, (name,))
