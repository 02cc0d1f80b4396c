"""What is left in the bookkeeping of sinks that are no more: finding it, and removing it.

A running pipeline tidies up after itself: parts when the ledger passes them, staged rows when their epoch is committed
or swept. What nobody comes back for stays: the ledger row, the last epoch's parts and the stage table of a sink that
was removed, renamed or retired, and stage tables that no ledger row belongs to. Targets are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.clients.postgres.sessions import Connection
from onefold.core.contract import LedgerEntry
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.naming import stage_name
from onefold.sinks.postgres.sink_plan import stage_sql

LOCK_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class KeptOfSink:
    """All that is kept for one sink of one pipeline. `stages` are the names of its stage tables."""

    pipeline: str
    sink: str
    ledger: LedgerEntry | None
    parts: int
    staged: int
    stages: tuple[str, ...]


def kept(connection: Connection, schema: str) -> list[KeptOfSink]:
    """For every sink that was ever opened here, by pipeline and name."""
    stages = _stages(connection, schema)
    books = Bookkeeping("", "", schema=schema)
    rows = connection.execute(
        f"""SELECT pipeline, sink,
                   (SELECT count(*) FROM {books.table("parts")} p WHERE (p.pipeline, p.sink) = (l.pipeline, l.sink)),
                   (SELECT count(*) FROM {books.table("staged")} s WHERE (s.pipeline, s.sink) = (l.pipeline, l.sink))
            FROM {books.table("ledger")} l ORDER BY 1, 2""",
        (),
    ).fetchall()
    return [
        KeptOfSink(
            pipeline,
            sink,
            Bookkeeping(pipeline, sink, schema=schema).ledger(connection),
            parts,
            staged,
            tuple(stage for stage in stages if _owner(stage) == stage_name(pipeline, sink)),
        )
        for pipeline, sink, parts, staged in rows
    ]


def unowned_stages(connection: Connection, schema: str) -> list[str]:
    """Stage tables that belong to no ledger row, and in which no attempt is listed."""
    books = Bookkeeping("", "", schema=schema)
    owned = {
        stage_name(pipeline, sink)
        for pipeline, sink in connection.execute(f"SELECT pipeline, sink FROM {books.table('ledger')}", ()).fetchall()
    }
    used = {stage for (stage,) in connection.execute(f"SELECT DISTINCT stage FROM {books.table('staged')}", ())}
    return [stage for stage in _stages(connection, schema) if _owner(stage) not in owned and stage not in used]


def remove(connection: Connection, schema: str, found: KeptOfSink | str) -> None:
    """All of it, in one transaction; a string names a stage alone. Raises Retriable where somebody works with it."""
    with connection.transaction(LOCK_TIMEOUT_S):
        layout.lock(connection, schema)
        if isinstance(found, KeptOfSink):
            books = Bookkeeping(found.pipeline, found.sink, schema=schema)
            for table in ("parts", "staged", "ledger"):
                connection.execute(
                    f"DELETE FROM {books.table(table)} WHERE pipeline = %s AND sink = %s", (found.pipeline, found.sink)
                )
            stages = list(found.stages)
        else:  # unless a sink has been opened since that stages there
            stages = [stage for stage in unowned_stages(connection, schema) if stage == found]
        for stage in stages:
            connection.execute(f"DROP TABLE IF EXISTS {stage_sql(schema, stage)}".encode())


def _stages(connection: Connection, schema: str) -> list[str]:
    rows = connection.execute(
        """SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
           WHERE nspname = %s AND relkind = 'r' AND relname ~ '^onefold_stage_[0-9a-f]{32}(_[0-9a-f]{12})?$'
           ORDER BY 1""",
        (schema,),
    ).fetchall()
    return [name for (name,) in rows]


def _owner(stage: str) -> str:
    """The part of a stage's name that identifies its sink; the digest of its columns follows it."""
    return stage[: len(stage_name("", ""))]
