"""Deletions, remembered: one table for each target that rows are deleted from, whichever pipelines do it.

A late record that is not newer than its key's deletion stays out. A deletion is forgotten when it has expired.
"""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg

from onefold.core.errors import ConfigError
from onefold.sinks.postgres.changes import Changes
from onefold.sinks.postgres.connection import Connection
from onefold.sinks.postgres.naming import identifier
from onefold.sinks.postgres.target import Target, declared

__all__ = ["create", "follow", "prune", "take_turns"]

EXPIRES = "onefold_expires_ms"


def create(connection: Connection, schema: str, target: Target, changes: Changes) -> str:
    """The target's table of deletions, made if it is missing; returns its name in SQL. Raises ConfigError."""
    name = _name(schema, target)
    types = {column.name: column.sql for column in target.columns}
    wanted = [(column, types[column]) for column in (*changes.key, *changes.order)] + [(EXPIRES, "bigint")]
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        there = declared(connection, name)
        if there and there != wanted:
            raise ConfigError(
                f"deletions from {target.table} are remembered in {name} by {_listed(there)}, and this sink goes by"
                f" {_listed(wanted)}: the pipelines that delete from one table must agree on key and order. If no other"
                f" pipeline does, and no older record can come any more: DROP TABLE {name}"
            )
        if not there:
            columns = ", ".join(f"{identifier(column)} {kind} NOT NULL" for column, kind in wanted)
            key = ", ".join(map(identifier, changes.key))
            connection.execute(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))")
            connection.execute(f"CREATE INDEX ON {name} ({EXPIRES})")
            connection.execute(f"COMMENT ON TABLE {name} IS {_literal(f'deletions from {target.table.sql}')}")
    return name


def follow(connection: Connection, schema: str, target: Target) -> tuple[str, str] | None:
    """Give the deletions' key and order the types that the target has now, inside the caller's transaction.

    Returns the table and the statement, both in SQL; None if there was nothing to do.
    """
    name = _name(schema, target)
    types = {column.name: column.sql for column in target.columns}
    clauses = [
        f"ALTER COLUMN {identifier(column)} TYPE {types[column]}"
        for column, kind in declared(connection, name)
        if column in types and types[column] != kind
    ]
    if not clauses:
        return None
    statement = f"ALTER TABLE {name} {', '.join(clauses)}"
    connection.execute(statement.encode())
    return name, statement


def take_turns(connection: psycopg.Connection[Any], tombstones: str) -> None:
    """To the transaction's end no other merges in turn: neither would see the other's deletion or older version.

    Pipelines that share what is remembered would else bring a deleted row back. The mode is one that excludes itself,
    and no reader or writer.
    """
    connection.execute(f"LOCK TABLE {tombstones} IN SHARE UPDATE EXCLUSIVE MODE".encode())


def prune(connection: Connection, tombstones: str, timestamp_ms: int) -> None:
    """Forget what had expired when the epoch of that T was opened, but for what somebody else is at: a later epoch
    does that. An epoch that is decided must not wait for another pipeline's prepared rows.
    """
    expired = f"SELECT ctid FROM {tombstones} WHERE {EXPIRES} < {timestamp_ms} FOR UPDATE SKIP LOCKED"
    connection.execute(f"DELETE FROM {tombstones} WHERE ctid = ANY(ARRAY({expired}))".encode())


def _name(schema: str, target: Target) -> str:
    digest = hashlib.sha256(target.table.sql.encode()).hexdigest()[:32]
    return f"{identifier(schema)}.{identifier(f'onefold_deleted_{digest}')}"


def _listed(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns if name != EXPIRES)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
