"""What `open` checks and makes ready, in the driver, before any writer runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.clients.postgres import own_schema, sqlstates
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection, create_beside_others
from onefold.clients.postgres.store import store_url
from onefold.clients.sql.url import shown
from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.core.findings import Checks, Finding, Level, tried
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.merge import staging, tombstones
from onefold.sinks.postgres.schema import evolution, target
from onefold.sinks.postgres.schema.column_comparison import check_may_insert, columns_of
from onefold.sinks.postgres.schema.target import TargetTable
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import (
    PostgresPlan,
    check_direct,
    check_stage,
    choose,
    is_staged,
    planned,
    position_of,
    slots,
    written_of,
)
from onefold.sinks.staged.upsert import Changes


@dataclass(frozen=True, slots=True)
class TableChecks:
    """What the checks found out. `target` is None where a start makes the table, `has_ledger` False where it makes the
    ledger."""

    target: TargetTable | None
    delivery: Delivery
    reason: str
    slots_free: int
    has_ledger: bool


def checks(
    connection: Connection, settings: PostgresSinkConfig, pipeline: str, schema: pa.Schema | None
) -> Checks[TableChecks]:
    """What `resolve` rests on, for a transaction that only reads. Raises ConfigError, SchemaMismatch."""
    ledger, changes = settings.ledger, settings.changes
    has_ledger = settings.bookkeeping(pipeline).check(connection)
    slots_max, slots_used = slots(connection)
    found = target.find(connection, settings.target)
    delivery, reason = choose(settings.wanted, slots_max, found, changes)
    if delivery is Delivery.DIRECT:
        check_direct(connection, found, changes)
    yield Finding(Level.FINE, f"delivery is {delivery.value}: {reason}")
    yield _slots(slots_max, slots_used, delivery)
    if is_staged(delivery, changes):
        yield from tried(lambda: own_schema.check_place(connection, ledger))
    written = None
    if schema is None:
        says = f"the rows are not known here: whether they fit into table {settings.target} is checked at the start"
        yield Finding(Level.UNCHECKED, says)
    else:
        written = written_of(schema, settings, found)
        yield from tried(lambda: _check_rows(schema, written, settings, delivery))
    if found is None:
        target.place(connection, settings.target)
    else:
        yield from _fits(connection, settings, found, written, delivery)
    if settings.on_error == "dead_letter":
        yield from tried(lambda: _check_letters(connection, settings))
    where = shown(store_url(settings.url, settings.role, ledger))
    if not has_ledger and (made := layout.making(connection, ledger)):
        yield Finding.making(f"the ledger in schema {ledger} is made by the first start", where, made)
    for says, statements in _makes(connection, settings, pipeline, schema, found, (delivery, reason)):
        if statements:
            yield Finding.making(says, where, statements)
    return TableChecks(found, delivery, reason, slots_max - slots_used, has_ledger)


def _fits(
    connection: Connection,
    settings: PostgresSinkConfig,
    found: TargetTable,
    written: pa.Schema | None,
    delivery: Delivery,
) -> Iterator[Finding]:
    yield from tried(lambda: _check_columns(settings, found, written))
    changes = settings.changes
    if changes is None:
        return
    yield from tried(lambda: _check_key(connection, found, changes, delivery))
    if changes.deletes and {column.name for column in found.columns}.issuperset(changes.required):
        yield from tried(lambda: tombstones.check(connection, settings.ledger, found, changes))


def _check_rows(schema: pa.Schema, written: pa.Schema, settings: PostgresSinkConfig, delivery: Delivery) -> None:
    changes = settings.changes
    if changes is not None:
        changes.check(written.names, schema)
    position = position_of(schema, settings.source_position)
    if is_staged(delivery, changes):
        check_stage(written.names, position, changes)


def _check_columns(settings: PostgresSinkConfig, found: TargetTable, written: pa.Schema | None) -> None:
    if written is None:
        check_may_insert(found, None)
    elif not (settings.evolve and evolution.check(found, written)):
        columns_of(found, written)


def _check_letters(connection: Connection, settings: PostgresSinkConfig) -> None:
    """In the ledger's schema, `layout.check` knows whether the table can be made."""
    if not dead_letters.check(connection, settings.rejects) and settings.rejects.schema != settings.ledger:
        target.place(connection, settings.rejects)


def _slots(slots_max: int, used: int, delivery: Delivery) -> Finding:
    slots = f"max_prepared_transactions is {slots_max}, of which {slots_max - used} are free"
    if delivery is not Delivery.TWO_PHASE:
        return Finding(Level.FINE, f"{slots}; this delivery needs none")
    if used >= slots_max:
        return Finding(
            Level.CAUTION,
            f"{slots}: tasks wait until somebody ends a prepared transaction (`onefold txn list` shows whose they are)",
        )
    return Finding(Level.FINE, f"{slots}: as many tasks prepare at once, less one for others where there are many")


def _makes(
    connection: Connection,
    settings: PostgresSinkConfig,
    pipeline: str,
    schema: pa.Schema | None,
    found: TargetTable | None,
    delivery: tuple[Delivery, str],
) -> Iterator[tuple[str, list[str]]]:
    """What the first start makes, or alters, and by which statements; none for what is there as the rows need it.
    `found` is the target, None where a start makes it. Without a schema nothing that depends on the rows is known."""
    books, changes = settings.bookkeeping(pipeline), settings.changes
    there = found
    if schema is not None:
        there, says, statements = _table(connection, settings, schema, found)
        yield says, statements
    elif found is None:
        yield f"table {settings.target} is made by the first start", [f"CREATE TABLE {settings.target.sql} (...)"]
    has_key = there is not None and {c.name for c in there.columns}.issuperset(changes.required if changes else ())
    if there is not None and schema is not None and changes is not None and changes.deletes and has_key:
        says = f"the table that remembers deletions from {there.table} is made or altered by the first start"
        yield says, tombstones.making(connection, books.schema, there, changes)
    if settings.on_error == "dead_letter" and not dead_letters.check(connection, settings.rejects):
        says = f"table {settings.rejects}, for rows that Postgres refuses, is made by the first start"
        yield says, dead_letters.creating(settings.rejects)
    if there is not None and schema is not None:
        plan = planned(settings, pipeline, schema, there, delivery, 1)
        if plan.stage_table is not None:
            yield "the stage is made by the first start", staging.making(connection, books, plan)


def _table(
    connection: Connection, settings: PostgresSinkConfig, schema: pa.Schema, found: TargetTable | None
) -> tuple[TargetTable, str, list[str]]:
    """The target as the first start leaves it, what becomes of it, and by which statements."""
    written = written_of(schema, settings, found)
    if found is None:
        key = settings.changes.key if settings.changes is not None else ()
        made = target.creating(connection, settings.target, written, key)
        there = target.created(connection, settings.target, written)
        return there, f"table {settings.target} is made by the first start", [made]
    wanted = evolution.check(found, written) if settings.evolve else ()
    there = target.with_types(connection, found, {one.name: one.sql for one in wanted})
    statements = [evolution.altering(found, wanted)] if wanted else []
    return there, f"table {settings.target} is altered by the first start", statements


def resolve(
    connection: Connection, settings: PostgresSinkConfig, pipeline: str, schema: pa.Schema, found: TableChecks
) -> PostgresPlan:
    """Make what is missing, after the checks. Raises ConfigError, SchemaMismatch."""
    books, changes, delivery = settings.bookkeeping(pipeline), settings.changes, found.delivery
    written = written_of(schema, settings, found.target)
    there = found.target
    if there is None:
        made = target.creating(connection, settings.target, written, changes.key if changes is not None else ())
        with connection.transaction():
            create_beside_others(connection, made)
        there = present(target.find(connection, settings.target), f"no table {settings.target} after it was made")
    if settings.evolve:
        there = evolution.evolve(connection, books, there, written, settings.lock_timeout_s)
    tombs = letters = None
    if changes is not None:
        if there is not found.target:
            _check_key(connection, there, changes, delivery)
        if changes.deletes:
            tombs = tombstones.create(connection, books.schema, there, changes)
    if settings.on_error == "dead_letter":
        letters = dead_letters.create(connection, settings.rejects)
    plan = planned(settings, pipeline, schema, there, (delivery, found.reason), found.slots_free)
    plan = replace(plan, tombstones=tombs, rejects=letters)
    return plan if plan.stage_table is None else staging.create(connection, books, plan)


_TELLABLE = ("bool", "int2", "int4", "int8", "numeric", "text", "varchar", "bytea", "date", "timestamp", "timestamptz")


def _check_key(connection: Connection, found: TargetTable, changes: Changes, delivery: Delivery) -> None:
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
    if published := target.unidentified(connection, found.table):
        raise ConfigError(
            "replica-identity-missing",
            f"mode='upsert' updates rows of table {published}, which has no replica identity."
            f" {sqlstates.REPLICA_IDENTITY}",
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
