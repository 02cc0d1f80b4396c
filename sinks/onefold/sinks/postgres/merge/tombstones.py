"""Deletions, remembered: one table for each target that rows are deleted from, whichever pipelines do it.

A late record that is not newer than its key's deletion stays out. A deletion is forgotten when it has expired.
"""

from __future__ import annotations

import hashlib
import logging

from onefold.clients.postgres import own_schema, trust
from onefold.clients.postgres.quoting import identifier, literal
from onefold.clients.postgres.sessions import Connection, create_beside_others
from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema.target import TargetTable, declared
from onefold.sinks.staged.upsert import Changes

EXPIRES = "onefold_expires_ms"

log = logging.getLogger("onefold")


def create(connection: Connection, schema: str, target: TargetTable, changes: Changes) -> str:
    """The target's table of deletions, made if it is missing; returns its name in SQL. Raises ConfigError."""
    name = name_of(schema, target.table)
    with connection.transaction():
        if not check(connection, schema, target, changes):
            create_beside_others(connection, "; ".join(_creating(schema, target, changes)))
            check(connection, schema, target, changes)  # somebody else's may be there a moment before
        follow(connection, schema, target)  # whoever altered the target by hand may not know of this table
    return name


def making(connection: Connection, schema: str, target: TargetTable, changes: Changes) -> list[str]:
    """The statements by which `create` makes the table, or gives it the target's types. Raises ConfigError."""
    if not check(connection, schema, target, changes):
        return _creating(schema, target, changes)
    statement = _following(connection, schema, target)
    return [] if statement is None else [statement]


def _creating(schema: str, target: TargetTable, changes: Changes) -> list[str]:
    name = name_of(schema, target.table)
    columns = ", ".join(f"{identifier(column)} {kind} NOT NULL" for column, kind in _wanted(target, changes))
    return [
        f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(map(identifier, changes.key))}))",
        f"CREATE INDEX ON {name} ({EXPIRES})",
        f"COMMENT ON TABLE {name} IS {literal(f'deletions from {target.table.sql}')}",
    ]


def check(connection: Connection, schema: str, target: TargetTable, changes: Changes) -> bool:
    """Whether the table is there. Raises ConfigError for one that cannot be used, also in another schema."""
    _refuse_elsewhere(connection, schema, target)
    name, wanted = name_of(schema, target.table), _wanted(target, changes)
    there = declared(connection, name)
    if not there:
        return False
    trust.check_ours(connection, [_bare(target.table)], schema)
    if [column for column, _ in there] != [column for column, _ in wanted]:
        raise ConfigError(
            "tombstones-of-another-key",
            f"deletions from {target.table} are remembered in {name} by {_listed(there)}, and this sink goes by"
            f" {_listed(wanted)}: the pipelines that delete from one table must agree on key and order. If no other"
            f" pipeline does, and no older record can come any more: DROP TABLE {name}",
        )
    _refuse_without_rights(connection, name)
    return True


def _wanted(target: TargetTable, changes: Changes) -> list[tuple[str, str]]:
    """The table's columns and their types in SQL."""
    types = {column.name: column.sql for column in target.columns}
    return [*((name, types[name]) for name in changes.required), (EXPIRES, "bigint")]


def follow(connection: Connection, schema: str, target: TargetTable) -> tuple[str, str] | None:
    """Give the deletions' key and order the types that the target has now, inside the caller's transaction.

    Returns the table and the statement, both in SQL; None if there was nothing to do.
    """
    statement = _following(connection, schema, target)
    if statement is None:
        return None
    connection.execute(statement.encode())
    return name_of(schema, target.table), statement


def _following(connection: Connection, schema: str, target: TargetTable) -> str | None:
    name = name_of(schema, target.table)
    types = {column.name: column.sql for column in target.columns}
    clauses = [
        f"ALTER COLUMN {identifier(column)} TYPE {types[column]}"
        for column, kind in declared(connection, name)
        if column in types and types[column] != kind
    ]
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else None


def take_turns(connection: Connection, tombstones: str) -> None:
    """To the transaction's end no other merges in turn: neither would see the other's deletion or older version.

    Pipelines that share what is remembered would else bring a deleted row back. Not by a lock on the table: the mode
    that excludes itself and no reader or writer is also VACUUM's, which may take longer than anybody's patience.
    """
    schema = present(TargetName.parse(tombstones).schema, f"{tombstones} has no schema")
    own_schema.take_turn(connection, schema, f"merges by {tombstones}")


def prune(connection: Connection, tombstones: str, timestamp_ms: int) -> None:
    """Forget what had expired when the epoch of that T was opened, but for what somebody else is at: a later epoch
    does that. An epoch that is decided must not wait for another pipeline's prepared rows.

    T never goes back after a driver's clock has jumped ahead, and would forget everything: so the server's clock must
    say so, too.
    """
    by_both = f"least({timestamp_ms}, extract(epoch FROM clock_timestamp()) * 1000)"
    expired = f"SELECT ctid FROM {tombstones} WHERE {EXPIRES} < {by_both} FOR UPDATE SKIP LOCKED"
    connection.execute(f"DELETE FROM {tombstones} WHERE ctid = ANY(ARRAY({expired}))".encode())


def _refuse_elsewhere(connection: Connection, schema: str, target: TargetTable) -> None:
    others = connection.execute(
        """SELECT nspname, has_table_privilege(relowner, to_regclass(%s), 'DELETE'), pg_get_userbyid(relowner)
           FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
           WHERE relname = %s AND relkind = 'r' AND nspname <> %s""",
        (target.table.sql, _bare(target.table), schema),
    ).fetchall()
    for other, may_delete, owner in others:
        if not may_delete:
            log.warning(
                "table %s.%s of role %s is no pipeline's that deletes from %s, which that role may not: it is"
                " left alone",
                other,
                _bare(target.table),
                owner,
                target.table,
            )
            continue
        raise ConfigError(
            "tombstones-elsewhere",
            f"deletions from {target.table} are remembered in schema {other!r} already, and not in {schema!r}:"
            " pipelines that don't share them bring each other's deleted rows back. Set"
            f" ledger={other!r}. If no pipeline uses that one any more, and no older record can come: DROP"
            f" TABLE {identifier(other)}.{identifier(_bare(target.table))}",
        )


def _refuse_without_rights(connection: Connection, name: str) -> None:
    """Another pipeline's role may have made the table."""
    ((user, missing),) = connection.execute(
        """SELECT current_user, array(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r
                                      WHERE NOT has_table_privilege(to_regclass(%s), r))""",
        (name,),
    )
    if missing:
        raise ConfigError(
            "tombstones-permission",
            f"the deletions that are remembered in {name} were another role's until now: GRANT {', '.join(missing)} ON"
            f" {name} TO {identifier(user)}, or give both pipelines the same role=...",
        )


def name_of(schema: str, table: TargetName) -> str:
    """The name in SQL of what remembers the deletions from a table, which is named with its schema."""
    return f"{identifier(schema)}.{identifier(_bare(table))}"


def _bare(table: TargetName) -> str:
    return f"onefold_deleted_{hashlib.sha256(table.sql.encode()).hexdigest()[:32]}"


def _listed(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns if name != EXPIRES)
