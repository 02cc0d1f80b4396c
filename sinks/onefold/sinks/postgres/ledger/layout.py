"""The layout of the bookkeeping tables: made by the first start of a schema, found and checked by all others.

They are made in one transaction, under a lock that is a row of a table of ours, which nobody takes who may not write
here: drivers that start at once wait for each other. Tables of another layout are refused.
"""

from __future__ import annotations

from onefold.clients.postgres import own_schema
from onefold.clients.postgres.own_schema import LOCKS
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection
from onefold.core.errors import ConfigError

VERSION = 1  # of the layout
LOCK_TIMEOUT_S = 30
TABLES = (
    "onefold_version",
    "onefold_ledger",
    "onefold_parts",
    "onefold_staged",
    "onefold_staged_dead",
    "onefold_evolutions",
    LOCKS,
)

# `{s}` is the schema. Without a key, rows of a table in a publication (FOR ALL TABLES) cannot be deleted: two tables
# have their whole row as identity.
_STATEMENTS = (
    "CREATE TABLE {s}.onefold_version (version integer NOT NULL)",
    "ALTER TABLE {s}.onefold_version REPLICA IDENTITY FULL",
    """
CREATE TABLE {s}.onefold_ledger (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, positions jsonb NOT NULL, store_id text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink)) WITH (fillfactor = 50)""",
    """
CREATE TABLE {s}.onefold_parts (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, gid text NOT NULL, rows bigint NOT NULL, PRIMARY KEY (pipeline, sink, epoch, gid))""",
    """
CREATE TABLE {s}.onefold_staged (
    stage text NOT NULL, attempt bigint NOT NULL, pipeline text NOT NULL, sink text NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (stage, attempt))""",
    """
CREATE TABLE {s}.onefold_staged_dead (
    stage text NOT NULL, attempt bigint NOT NULL, reason text NOT NULL, sqlstate text, position jsonb,
    "row" jsonb NOT NULL, FOREIGN KEY (stage, attempt) REFERENCES {s}.onefold_staged ON DELETE CASCADE)""",
    "CREATE INDEX onefold_staged_dead_by_attempt ON {s}.onefold_staged_dead (stage, attempt)",
    "ALTER TABLE {s}.onefold_staged_dead REPLICA IDENTITY FULL",
    """
CREATE TABLE {s}.onefold_evolutions (
    evolution bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, pipeline text NOT NULL, sink text NOT NULL,
    target text NOT NULL, statement text NOT NULL, after_epoch bigint, after_generation bigint,
    role text NOT NULL DEFAULT current_user, evolved_at timestamptz NOT NULL DEFAULT now())""",
    f"INSERT INTO {{s}}.onefold_version VALUES ({VERSION})",
)


def is_there(connection: Connection, schema: str, *, to_look: bool = False) -> bool:
    """Whether the tables are in `schema`. Raises ConfigError for another layout, for tables of another role or such
    that this role may not use, and where some are missing. `to_look` asks for no right to write."""
    missing = {*TABLES} - own_schema.checked_tables(connection, TABLES, schema, to_look=to_look)
    if missing.issuperset({*TABLES} - {LOCKS}):
        return False
    found = None
    if "onefold_version" not in missing:
        ((found,),) = connection.execute(f"SELECT max(version) FROM {identifier(schema)}.onefold_version".encode())
    if found not in (None, VERSION):
        raise ConfigError(
            "ledger-too-new",
            f"the onefold tables in schema {schema!r} have layout {found}, and this onefold knows {VERSION}: "
            "use the newer onefold, or another schema as ledger",
        )
    if missing or found is None:
        raise ConfigError(
            "ledger-incomplete",
            f"schema {schema!r} has some of onefold's tables, but not {', '.join(sorted(missing)) or 'their version'}:"
            " they were dropped, or a part of a backup was restored, and without them nobody can tell what is"
            " committed. Nothing was written. Restore all tables of that schema from one backup; or begin anew: drop"
            " the schema, empty its pipelines' tables, and give them new checkpoints",
        )
    return True


def check(connection: Connection, schema: str) -> bool:
    """`is_there`, of tables that are there or can be made. Changes nothing. Raises ConfigError, also for a missing
    right."""
    found = is_there(connection, schema)
    if not found:
        own_schema.check_place(connection, schema)
    return found


def create(connection: Connection, schema: str) -> None:
    """Make the tables where they are not there. Raises ConfigError for another layout, or a missing right."""
    if not check(connection, schema):
        with connection.transaction(LOCK_TIMEOUT_S):
            lock(connection, schema)
            if not is_there(connection, schema):  # by now another driver may have made them, even a newer one
                for statement in _creating(schema):
                    connection.execute(statement.encode())


def _creating(schema: str) -> list[str]:
    """In one line each."""
    return [" ".join(statement.split()).format(s=identifier(schema)) for statement in _STATEMENTS]


def making(connection: Connection, schema: str) -> list[str]:
    """The statements by which `create` makes the tables; none where they are there."""
    if check(connection, schema):
        return []
    return [*own_schema.making_place(connection, schema), *_creating(schema)]


def lock(connection: Connection, schema: str) -> None:
    """Until the end of the transaction, nobody else makes the tables or registers a sink in this schema."""
    own_schema.lock(connection, schema, "layout")
