"""Schema evolution: the table is given what the rows have more of, by the driver, before any writer runs.

New nullable columns and wider types, nothing else. One transaction alters the table and writes the statement into
`onefold_evolutions`, so that after a crash there are both or neither.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg
import pyarrow as pa

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection
from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.core.failpoints import failpoint
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.merge import tombstones
from onefold.sinks.postgres.schema.column_comparison import compare, mismatch
from onefold.sinks.postgres.schema.target import TargetTable, find
from onefold.sinks.postgres.schema.widening import Alteration

log = logging.getLogger("onefold")


def alterations(target: TargetTable, schema: pa.Schema) -> tuple[Alteration, ...]:
    """What would make the rows fit. Raises SchemaMismatch, with both schemas, where that is not enough."""
    lines = compare(target, schema)
    if not schema.names or any(line.problem and line.alteration is None for line in lines):
        raise mismatch(target, lines)
    return tuple(line.alteration for line in lines if line.alteration is not None)


def check(target: TargetTable, schema: pa.Schema) -> tuple[Alteration, ...]:
    """`alterations`, which this session may make. Raises SchemaMismatch, ConfigError."""
    wanted = alterations(target, schema)
    if wanted and not target.is_mine:
        raise ConfigError(
            "table-not-owned",
            f"table {target.table} must be altered for these rows, and only its owner may. GRANT "
            f"{identifier(target.owner)} to the role of the sink's URL, or run this yourself: "
            f"{altering(target, wanted)}",
        )
    return wanted


def evolve(
    connection: Connection, books: Bookkeeping, target: TargetTable, schema: pa.Schema, lock_timeout_s: float
) -> TargetTable:
    """The table after what `alterations` asks for, which may be nothing. Raises SchemaMismatch, ConfigError, Retriable.

    Safe beside others who do the same: the comparison that counts is made once nobody else can alter the table.
    """
    if not check(target, schema):
        return target
    with connection.transaction(lock_timeout_s):
        connection.execute(f"LOCK TABLE {target.table.sql} IN ACCESS EXCLUSIVE MODE")
        now = present(find(connection, target.table), f"no table {target.table}, which is locked")
        wanted = alterations(now, schema)
        if wanted:
            _alter(connection, books, now, schema, wanted)
    if wanted:
        log.info("sink %r has evolved its table: %s", books.sink, altering(now, wanted))
    evolved = find(connection, target.table)
    if evolved is None:
        raise ConfigError(
            "table-dropped-while-opened", f"table {target.table} was dropped while it was opened: start again"
        )
    return evolved


def altering(target: TargetTable, wanted: Sequence[Alteration]) -> str:
    """The ALTER TABLE that makes these alterations."""
    # One statement, so that a table that has to be written anew is written anew once.
    return f"ALTER TABLE {target.table.sql} {', '.join(alteration.clause for alteration in wanted)}"


def _alter(
    connection: Connection, books: Bookkeeping, target: TargetTable, schema: pa.Schema, wanted: Sequence[Alteration]
) -> None:
    statement = altering(target, wanted)
    if any(alteration.rewrites for alteration in wanted):
        log.warning("sink %r: Postgres writes all of table %s anew, and locks it meanwhile", books.sink, target.table)
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        if not driver_errors.refuses_ddl(error):
            raise
        because = (
            f"Postgres refuses to evolve it ({statement}): {driver_errors.said(error)}. Nothing was changed; make way"
            " for it, or alter the table by hand"
        )
        raise mismatch(target, compare(target, schema), because) from error
    altered = present(find(connection, target.table), f"no table {target.table} after it was altered")
    deletions = tombstones.follow(connection, books.schema, altered)
    failpoint("evolve:altered")
    ledger = books.ledger(connection)
    for table, done in filter(None, [(target.table.sql, statement), deletions]):
        connection.execute(
            f"""INSERT INTO {books.table("evolutions")}
                    (pipeline, sink, target, statement, after_epoch, after_generation)
                VALUES (%s, %s, %s, %s, %s, %s)""",
            (
                books.pipeline,
                books.sink,
                table,
                done,
                ledger.epoch if ledger and ledger.epoch else None,
                ledger.generation if ledger and ledger.epoch else None,
            ),
        )
    failpoint("evolve:recorded")
