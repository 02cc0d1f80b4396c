"""The stage: one UNLOGGED table for each pipeline and sink, where attempts' rows wait to be merged.

Its name ends with a digest of its columns: a zombie that opens the sink for other rows makes a stage of its own, and
the live driver's stays. What was outgrown goes with a decided epoch's rows.

Crash recovery of the server empties it, while the logged `onefold_staged` keeps its rows: so every merge counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import psycopg

from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import ConfigError, WorkLost
from onefold.sinks.postgres import connection as pool
from onefold.sinks.postgres.bookkeeping import Bookkeeping
from onefold.sinks.postgres.naming import identifier, stage_name
from onefold.sinks.postgres.plan import Plan, stage_sql
from onefold.sinks.postgres.types import Column

__all__ = ["clear", "create", "discard", "leftovers", "merge", "verify"]

AnyConnection = psycopg.Connection[Any]


def _parts(committables: Sequence[Committable]) -> dict[str, dict[int, int]]:
    """Stage -> attempt -> rows, from the handles `stage/attempt`."""
    found: dict[str, dict[int, int]] = {}
    for committable in committables:
        stage, _, attempt = committable.handle.rpartition("/")
        found.setdefault(stage, {})[int(attempt)] = committable.rows
    return found


def _sql(books: Bookkeeping, stage: str) -> str:
    return stage_sql(books.schema, stage).replace("%", "%%")


def create(connection: pool.Connection, books: Bookkeeping, stage: str, columns: Sequence[Column]) -> str:
    """Make sure that there is a stage with the rows' columns; returns its name, which starts with `stage`."""
    wanted = [(column.name, column.sql) for column in columns] + [("onefold_attempt", "bigint")]
    if any(column.name == "onefold_attempt" for column in columns):
        raise ConfigError("'onefold_attempt' is a column of the stage: rename it in the rows, or use 'two_phase'")
    stage = f"{stage}_{hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]}"
    name = stage_sql(books.schema, stage)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        declared = ", ".join(f"{identifier(column)} {kind}" for column, kind in wanted)
        connection.execute(f"CREATE UNLOGGED TABLE IF NOT EXISTS {name} ({declared})")
    return stage


def verify(connection: pool.Connection, books: Bookkeeping, committables: Sequence[Committable]) -> None:
    """Every attempt is listed with its count, and the stage wasn't emptied. The merge counts the rows themselves."""
    for stage, attempts in _parts(committables).items():
        listed: dict[int, int] = dict(
            connection.execute(
                f"SELECT attempt, rows FROM {books.table('staged')} WHERE stage = %s AND attempt = ANY(%s)",
                (stage, list(attempts)),
            ).fetchall()
        )
        probe = connection.execute(f"SELECT EXISTS (SELECT FROM {_sql(books, stage)})", ()).fetchone()
        if listed != attempts or probe is None or not probe[0]:
            raise WorkLost(
                f"pipeline {books.pipeline!r}, sink {books.sink!r}, epoch {committables[0].epoch}: stage {stage} holds "
                f"{'other rows' if probe and probe[0] else 'no rows'}, with {len(listed)} of {len(attempts)} attempts "
                "listed: a crash of the server empties it. The epoch's writers must run again"
            )


def merge(connection: AnyConnection, books: Bookkeeping, plan: Plan, committables: Sequence[Committable]) -> None:
    """Move exactly the rows of the manifest, inside the caller's transaction. Raises WorkLost if any is missing."""
    parts = _parts(committables)
    assert set(parts) <= {plan.stage}, (sorted(parts), plan.stage)
    attempts = parts.get(plan.stage, {})
    if not attempts:
        return
    stage, columns = _sql(books, plan.stage), plan.column_list.replace("%", "%%")
    there = connection.execute("SELECT to_regclass(%s)", (stage_sql(books.schema, plan.stage),)).fetchone()
    if there is None or there[0] is None:
        raise ConfigError(
            f"pipeline {books.pipeline!r}, sink {books.sink!r}: the checkpoint store's database has no stage "
            f"{plan.stage}: staged delivery decides inside the sink's own database; use the sink's store_url()"
        )
    moved = connection.execute(
        f"INSERT INTO {plan.target.replace('%', '%%')} ({columns}) "
        f"SELECT {columns} FROM {stage} WHERE onefold_attempt = ANY(%s)",
        (list(attempts),),
    ).rowcount
    expected = sum(attempts.values())
    if moved != expected:
        raise WorkLost(
            f"pipeline {books.pipeline!r}, sink {books.sink!r}, epoch {committables[0].epoch}: the merge moved {moved} "
            f"rows, and the manifest says {expected}. Nothing was decided; the epoch's writers must run again. "
            "(A crash of the server empties the stage; a BEFORE trigger that drops rows shows as the same)"
        )


def clear(
    connection: pool.Connection, books: Bookkeeping, committables: Sequence[Committable], lock_timeout_s: float
) -> None:
    """Throw a decided epoch's stage rows away: all at once if nobody newer stages there, else only the named."""
    newest = max((c.generation, c.epoch) for c in committables)
    for stage in _parts(committables):
        if not _truncate(connection, books, stage, newest, lock_timeout_s):
            discard(connection, books, committables, lock_timeout_s)
        _drop_outgrown(connection, books, stage, newest[0])


def _drop_outgrown(connection: pool.Connection, books: Bookkeeping, stage: str, generation: int) -> None:
    """Drop this sink's stages for other columns than `stage` has: unless somebody uses them, or may be about to."""
    prefix = stage_name(books.pipeline, books.sink)
    others = connection.execute(
        """SELECT relname FROM pg_class WHERE relname >= %(p)s AND relname < %(p)s || '~' AND relname <> %(s)s
               AND relkind = 'r' AND relnamespace = %(n)s::regnamespace AND pg_has_role(relowner, 'USAGE')""",
        {"p": prefix, "s": stage, "n": identifier(books.schema)},
    ).fetchall()
    for (other,) in others:
        name = stage_sql(books.schema, other)
        try:
            with connection.transaction():
                connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE NOWAIT")
                # In this order: whoever opened that stage while this commit is under way has finished this epoch
                # first, and written the ledger's row as a newer generation.
                ledger = books.ledger(connection)
                used = connection.execute(
                    f"SELECT FROM {books.table('staged')} WHERE stage = %s LIMIT 1", (other,)
                ).fetchone()
                if used is None and (ledger is None or ledger.generation <= generation):
                    connection.execute(f"DROP TABLE {name}")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            continue


def _truncate(
    connection: pool.Connection, books: Bookkeeping, stage: str, newest: tuple[int, int], lock_timeout_s: float
) -> bool:
    name = stage_sql(books.schema, stage)
    try:
        with connection.transaction():
            connection.execute(pool.transaction_settings(lock_timeout_s))
            # With this lock held no attempt is in flight, so every attempt that has rows here is listed and visible.
            connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE NOWAIT")
            newer = connection.execute(
                f"SELECT FROM {books.table('staged')} WHERE stage = %s AND (generation, epoch) > (%s, %s) LIMIT 1",
                (stage, *newest),
            ).fetchone()
            if newer is not None:
                return False
            connection.execute(f"TRUNCATE {name}")
            connection.execute(f"DELETE FROM {books.table('staged')} WHERE stage = %s", (stage,))
    except psycopg.errors.LockNotAvailable:
        return False
    except psycopg.errors.UndefinedTable:
        return False
    return True


def discard(
    connection: pool.Connection, books: Bookkeeping, committables: Sequence[Committable], lock_timeout_s: float
) -> None:
    """Delete the named attempts' rows, and no others."""
    for stage, attempts in _parts(committables).items():
        with connection.transaction():
            connection.execute(pool.transaction_settings(lock_timeout_s))
            row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (stage_sql(books.schema, stage),)).fetchone()
            if row is not None and row[0]:
                connection.execute(
                    f"DELETE FROM {_sql(books, stage)} WHERE onefold_attempt = ANY(%s)", (list(attempts),)
                )
            connection.execute(
                f"DELETE FROM {books.table('staged')} WHERE stage = %s AND attempt = ANY(%s)", (stage, list(attempts))
            )


def leftovers(connection: pool.Connection, books: Bookkeeping, up_to_generation: int) -> list[Committable]:
    rows = connection.execute(
        f"""SELECT stage, attempt, generation, epoch FROM {books.table("staged")}
            WHERE pipeline = %s AND sink = %s AND generation <= %s ORDER BY generation, epoch, attempt""",
        (books.pipeline, books.sink, up_to_generation),
    ).fetchall()
    return [
        Committable(books.sink, SinkKind.LAST_RESOURCE, f"{stage}/{attempt}", generation, epoch, 0)
        for stage, attempt, generation, epoch in rows
    ]
