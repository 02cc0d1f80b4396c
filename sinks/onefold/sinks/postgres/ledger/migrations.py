"""The layout of the bookkeeping tables, as numbered steps: a database is brought from whichever it has to today's.

Steps run in one transaction, under a lock that is a row of a table of ours, which nobody takes who may not write here:
drivers that start at once wait for each other. A layout that is newer than this onefold is refused. What a step may do
follows from who is there meanwhile:

- An older onefold that runs on beside it must not notice: it refuses only its own next start. So a step adds tables,
  indexes, and columns that may be left out of an INSERT; it takes nothing away and renames nothing.
- A prepared transaction keeps its lock on `onefold_parts` until recovery ends it, and recovery comes after these
  steps: one that alters that table, or adds an index to it, would wait for ever. New facts about parts go into a table
  of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from onefold.clients.postgres.connection import Connection, ask, create_beside_others, transaction_settings
from onefold.clients.postgres.quoting import identifier
from onefold.core.errors import ConfigError
from onefold.core.sql import postgres_schema, postgres_trust

__all__ = [
    "check",
    "check_may_create",
    "check_ours",
    "is_there",
    "lock",
    "making",
    "migrate",
    "tables",
    "take_turn",
    "version",
]

_LOCK_TIMEOUT_S = 30

# Step N makes layout N of layout N - 1; `{s}` is the schema. One that was released never changes: add yours at the end.
STEPS = (
    """
CREATE TABLE {s}.onefold_version (version integer NOT NULL);
CREATE TABLE {s}.onefold_ledger (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, positions jsonb NOT NULL, store_id text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink)) WITH (fillfactor = 50);
CREATE TABLE {s}.onefold_parts (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, gid text NOT NULL, rows bigint NOT NULL, PRIMARY KEY (pipeline, sink, epoch, gid));
CREATE TABLE {s}.onefold_staged (
    stage text NOT NULL, attempt bigint NOT NULL, pipeline text NOT NULL, sink text NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (stage, attempt));
""",
    """
CREATE TABLE {s}.onefold_staged_dead (
    stage text NOT NULL, attempt bigint NOT NULL, reason text NOT NULL, sqlstate text, position jsonb,
    "row" jsonb NOT NULL, FOREIGN KEY (stage, attempt) REFERENCES {s}.onefold_staged ON DELETE CASCADE);
CREATE INDEX onefold_staged_dead_by_attempt ON {s}.onefold_staged_dead (stage, attempt);
""",
    """
CREATE TABLE {s}.onefold_evolutions (
    evolution bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, pipeline text NOT NULL, sink text NOT NULL,
    target text NOT NULL, statement text NOT NULL, after_epoch bigint, after_generation bigint,
    role text NOT NULL DEFAULT current_user, evolved_at timestamptz NOT NULL DEFAULT now());
""",
    "CREATE TABLE IF NOT EXISTS {s}.onefold_locks (name text PRIMARY KEY);",
    # Without a key, rows of a table in a publication (FOR ALL TABLES) cannot be deleted.
    """
ALTER TABLE {s}.onefold_version REPLICA IDENTITY FULL;
ALTER TABLE {s}.onefold_staged_dead REPLICA IDENTITY FULL;
""",
)


def tables(layout: int | None = None) -> list[str]:
    """The names of those that a layout has, or today's."""
    return re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?\{s\}\.(\w+)", "".join(STEPS[:layout]))


def version(connection: Connection, schema: str, *, to_look: bool = False) -> int:
    """Which layout the tables in `schema` have; 0 where there are none. Raises ConfigError for another role's, for such
    that this role may not use, and where some are missing."""
    names = tables()
    check_ours(connection, schema, names)
    postgres_schema.check_rights(ask(connection), names, schema, to_look=to_look)
    missing = _missing(connection, schema, names)
    if missing.issuperset(set(names) - {"onefold_locks"}):  # which is made first, for drivers to take turns
        return 0
    found = 0
    if "onefold_version" not in missing:
        ((found,),) = connection.execute(f"SELECT max(version) FROM {identifier(schema)}.onefold_version".encode())
    missing = _missing(connection, schema, tables(found or None))
    if missing or not found:
        raise ConfigError(
            "ledger-incomplete",
            f"schema {schema!r} has some of onefold's tables, but not {', '.join(sorted(missing)) or 'their version'}:"
            " they were dropped, or a part of a backup was restored, and without them nobody can tell what is"
            " committed. Nothing was written. Restore all tables of that schema from one backup; or begin anew: drop"
            " the schema, empty its pipelines' tables, and give them new checkpoints",
        )
    return int(found)


def _missing(connection: Connection, schema: str, names: Sequence[str]) -> set[str]:
    """Not by to_regclass: a session that just waited for the lock may still remember that there was no such schema."""
    rows = connection.execute(
        """SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
           WHERE relname = ANY(%s) AND nspname = %s""",
        ([*names], schema),
    ).fetchall()
    return set(names).difference(name for (name,) in rows)


def check(connection: Connection, schema: str) -> int:
    """`version`, of tables that are today's or can be made so. Changes nothing.

    Raises ConfigError for a newer layout, or a missing right.
    """
    found = version(connection, schema)
    _refuse_newer(found, schema)
    if found < len(STEPS):
        check_may_create(connection, schema)
    return found


def migrate(connection: Connection, schema: str) -> None:
    """Bring the tables to today's layout, or make them. Raises ConfigError for a newer layout, or a missing right."""
    found, newest = check(connection, schema), len(STEPS)
    if found < newest:
        with connection.transaction():
            lock(connection, schema)
            found = version(connection, schema)  # by now another driver may have done it, even a newer one
            if found < newest:
                _climb(connection, schema, found)
            _refuse_newer(found, schema)


def is_there(connection: Connection, schema: str) -> bool:
    """Whether the tables are there, in today's layout or an older one. Raises ConfigError for a newer layout."""
    found = version(connection, schema, to_look=True)
    _refuse_newer(found, schema)
    return found > 0


def _refuse_newer(found: int, schema: str) -> None:
    if found > len(STEPS):
        raise ConfigError(
            "ledger-too-new",
            f"the onefold tables in schema {schema!r} have layout {found}, and this onefold knows {len(STEPS)}: "
            "use the newer onefold, or another schema as ledger",
        )


def _climb(connection: Connection, schema: str, found: int) -> None:
    for statement in _climbing(schema, found):
        connection.execute(statement.encode())


def _climbing(schema: str, found: int) -> list[str]:
    """From layout `found` to today's, in one line each."""
    steps = [" ".join(step.split()).format(s=identifier(schema)) for step in ";".join(STEPS[found:]).split(";")]
    table = f"{identifier(schema)}.onefold_version"
    renewed = [f"DELETE FROM {table}", f"INSERT INTO {table} VALUES ({len(STEPS)})"]
    return [*filter(None, steps), *renewed]


def making(connection: Connection, schema: str) -> list[str]:
    """The statements by which `migrate` makes the tables, or migrates them; none where they are today's."""
    found = check(connection, schema)
    if found == len(STEPS):
        return []
    return list(dict.fromkeys([*postgres_schema.making_place(ask(connection), schema), *_climbing(schema, found)]))


def check_ours(connection: Connection, schema: str, names: Sequence[str]) -> None:
    """Refuse tables, and a schema, that others could change. Missing ones are fine. Raises ConfigError."""
    with connection.transaction():
        postgres_trust.check_ours(ask(connection), names, schema)


def lock(connection: Connection, schema: str) -> None:
    """Until the end of the transaction, nobody else changes the layout or registers a sink in this schema."""
    connection.execute(transaction_settings(_LOCK_TIMEOUT_S))
    made = postgres_schema.making_place(ask(connection), schema)
    for statement in made:
        create_beside_others(connection, statement)
    if made:
        check_ours(connection, schema, ["onefold_locks"])
    take_turn(connection, schema, "layout")


def take_turn(connection: Connection, schema: str, name: str) -> None:
    """To the transaction's end nobody else has the lock of that name."""
    postgres_trust.take_turn(ask(connection), f"{identifier(schema)}.onefold_locks", name)


def check_may_create(connection: Connection, schema: str) -> bool:
    """Whether the schema is there. Raises ConfigError where this role may make neither it nor tables in it."""
    return postgres_schema.check_place(ask(connection), schema)
