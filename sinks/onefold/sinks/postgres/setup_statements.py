"""What the first start makes or alters for a sink, by the statements that do it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.clients.postgres.sessions import Connection
from onefold.clients.postgres.store import store_url
from onefold.clients.sql.url import shown
from onefold.core.findings import Finding
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.merge import staging, tombstones
from onefold.sinks.postgres.schema import evolution, target
from onefold.sinks.postgres.schema.target import TargetTable
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import planned, written_of

__all__ = ["makes"]


def makes(
    connection: Connection,
    settings: PostgresSinkConfig,
    pipeline: str,
    schema: pa.Schema | None,
    found: TargetTable | None,
    delivery: tuple[Delivery, str],
) -> Iterator[Finding]:
    """A finding for each thing that is not there yet, or not as the rows need it; nothing is made. `found` is the
    target, None where a start makes it. Without a schema nothing that depends on the rows is known.

    Raises ConfigError, SchemaMismatch.
    """
    where = shown(store_url(settings.url, settings.role, settings.ledger))
    for says, statements in _makes(connection, settings, pipeline, schema, found, delivery):
        if statements:
            yield Finding.making(says, where, statements)


def _makes(
    connection: Connection,
    settings: PostgresSinkConfig,
    pipeline: str,
    schema: pa.Schema | None,
    found: TargetTable | None,
    delivery: tuple[Delivery, str],
) -> Iterator[tuple[str, list[str]]]:
    books, changes = settings.bookkeeping(pipeline), settings.changes
    says = f"the ledger in schema {books.schema} is made by the first start"
    yield says, layout.making(connection, books.schema)
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
