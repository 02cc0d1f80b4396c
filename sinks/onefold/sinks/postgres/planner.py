"""What `open` finds out and makes ready, in the driver, before any writer runs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.clients.postgres.connection import Connection
from onefold.clients.postgres.quoting import identifier
from onefold.core.checks import present
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.config import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.merge import staging, tombstones
from onefold.sinks.postgres.naming import stage_name
from onefold.sinks.postgres.plan import Plan, choose, slots, stage_sql
from onefold.sinks.postgres.rejects import dead_letters
from onefold.sinks.postgres.schema import evolution, target
from onefold.sinks.postgres.schema.comparison import columns_of
from onefold.sinks.postgres.schema.target import Target
from onefold.sinks.postgres.schema.types import Column, own
from onefold.sinks.staged.upsert import Changes

__all__ = ["resolve"]


def resolve(connection: Connection, settings: PostgresSinkConfig, pipeline: str, schema: pa.Schema) -> Plan:
    """Probe server and target, make what is missing. Raises ConfigError, SchemaMismatch."""
    books, changes = settings.bookkeeping(pipeline), settings.changes
    slots_max, slots_used = slots(connection)
    found = target.find(connection, settings.target)
    delivery, reason = choose(settings.wanted, slots_max, found, changes)
    written = _written(schema, settings, found)
    if changes is not None:
        changes.check(written.names, schema)
    if found is None:
        target.create(connection, settings.target, written, changes.key if changes is not None else ())
        found = present(target.find(connection, settings.target), f"no table {settings.target} after it was made")
    if settings.evolve:
        found = evolution.evolve(connection, books, found, written, settings.lock_timeout_s)
    columns = columns_of(found, written)
    tombs = letters = None
    if changes is not None:
        _check_key(connection, found, changes, delivery)
        if changes.deletes:
            tombs = tombstones.create(connection, books.schema, found, changes)
    if settings.on_error == "dead_letter":
        letters = dead_letters.create(connection, settings.rejects)
    stage = stage_name(pipeline, settings.name)
    is_staged = delivery is Delivery.STAGED or changes is not None
    plan = Plan(
        pipeline=pipeline,
        delivery=delivery,
        reason=reason,
        target=found.table.sql,
        columns=columns,
        types={c.name: c.own_type for c in found.columns if c.name in written.names},
        stage=stage,
        stage_table=stage_sql(books.schema, stage) if is_staged else None,
        writers_max=_writers_max(slots_max - slots_used) if delivery is Delivery.TWO_PHASE else None,
        names=tuple(schema.names),
        changes=changes,
        tombstones=tombs,
        rejects=letters,
        position=_position(schema, settings.source_position),
    )
    return staging.create(connection, books, plan) if is_staged else plan


def _writers_max(free: int) -> int:
    return max(1, free - 1 if free > 4 else free)  # one is left for somebody else's


def _written(schema: pa.Schema, settings: PostgresSinkConfig, found: Target | None) -> pa.Schema:
    """The columns that go into the table: not the mark of deletions, nor a position that the table has no place for."""
    theirs = {column.name for column in found.columns} if found is not None else set()
    left_out = {name for name in settings.source_position if name not in theirs}
    if settings.changes is not None:
        left_out.difference_update(settings.changes.required)
        if settings.changes.delete_when_true is not None:
            left_out.add(settings.changes.delete_when_true)
    return pa.schema([field for field in schema if field.name not in left_out])


def _position(schema: pa.Schema, names: Sequence[str]) -> tuple[Column, ...]:
    columns = []
    for name in names:
        column = own(name, schema.field(name).type) if name in schema.names else None
        if column is None:
            has = ", ".join(schema.names)
            raise SchemaMismatch(
                "column-type", f"source_position={name!r} must be a column of the rows that is no list or struct: {has}"
            )
        columns.append(column)
    return tuple(columns)


_TELLABLE = ("bool", "int2", "int4", "int8", "numeric", "text", "varchar", "bytea", "date", "timestamp", "timestamptz")


def _check_key(connection: Connection, found: Target, changes: Changes, delivery: Delivery) -> None:
    key = ", ".join(map(identifier, changes.key))
    if not found.takes_copy:
        raise ConfigError(
            "target-is-view", f"{found.table} is a view, and rows cannot be merged into it: name the table behind it"
        )
    if not found.has_key(changes.key):
        raise ConfigError(
            "unique-index-missing",
            f"mode='upsert' finds rows by {key}, and table {found.table} has no unique index on exactly these columns:"
            f" CREATE UNIQUE INDEX ON {found.table.sql} ({key})",
        )
    if missing := [r for r in found.denied if r != "DELETE" or changes.deletes]:
        raise ConfigError(
            "table-permission",
            f"mode='upsert' needs {', '.join(missing)} on table {found.table}: GRANT {', '.join(missing)} ON"
            f" {found.table.sql} to the role of the sink's URL",
        )
    compared = [column for column in found.columns if column.name in (*changes.key, *changes.order)]
    if unseen := target.unseen(connection, compared):
        kind, schema = unseen
        raise ConfigError(
            "schema-not-trusted",
            f"mode='upsert' compares values of type {kind}, whose comparisons are in schema {schema!r}, where names are"
            f" not looked up. REVOKE CREATE ON SCHEMA {identifier(schema)} FROM PUBLIC and whom it doesn't trust,"
            " and name it in the role's search_path; or ALTER EXTENSION ... SET SCHEMA to one that is so",
        )
    if delivery is Delivery.TWO_PHASE:
        keys = [column for column in found.columns if column.name in changes.key]
        odd = [f"{column.name} {column.sql}" for column in keys if column.type.name not in _TELLABLE or column.is_loose]
        if odd:
            raise ConfigError(
                "two-phase-unsuitable",
                f"delivery='two_phase' sends each key to one task, and whether two values of {', '.join(odd)} are one"
                " key, only Postgres can tell: use delivery='staged'",
            )
