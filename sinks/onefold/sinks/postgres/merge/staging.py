"""The stage: one UNLOGGED table for each pipeline and sink, where attempts' rows wait to be merged.

Its name ends with a digest of its columns: a zombie that opens the sink for other rows makes a stage of its own, and
the live driver's stays. What was outgrown goes with a decided epoch's rows.

Crash recovery of the server empties it, while the logged `onefold_staged` may keep its rows: so every merge counts.
What fills or clears a stage waits for no disk: a crash that undoes it also empties the stage, and a decision on the
rows flushes the log that they are listed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import psycopg

from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres import trust
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import identifier, with_parameters
from onefold.clients.postgres.sessions import create_beside_others
from onefold.clients.sql.database_backend import Answer
from onefold.core.checks import present, require
from onefold.core.contract import Committable
from onefold.core.errors import BadRecord
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.dead_letters import LetterOrigin, TooManyRefused
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.merge.merge import appending_attempts, check_types, merge_attempts
from onefold.sinks.postgres.naming import stage_name
from onefold.sinks.postgres.schema.target import asking_declared, asking_types, declared
from onefold.sinks.postgres.sink_plan import PostgresPlan, stage_sql
from onefold.sinks.staged.attempts import by_stage, check_listed, check_moved, digest

_DELETED_BYTES_MAX = 1 << 20  # each look at the stage passes them


def create(connection: pool.Connection, books: Bookkeeping, plan: PostgresPlan) -> PostgresPlan:
    """Make sure that there is a stage with the plan's columns; returns the plan with its name."""
    wanted = plan.stage_columns
    stage, made = _creating(books, plan)
    name = stage_sql(books.schema, stage)
    if _is_held(connection, books.schema, stage, wanted):
        return replace(plan, stage=stage, stage_table=name)
    with connection.transaction():
        while not _held(connection, books.schema, stage, made):
            pass  # an older driver dropped it meanwhile, and has no reason to make it again
        if declared(connection, name) != wanted:  # somebody's DROP TYPE ... CASCADE took a column
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"DELETE FROM {books.table('staged')} WHERE stage = %s", (stage,))
            connection.execute(made)
    return replace(plan, stage=stage, stage_table=name)


def _is_held(connection: pool.Connection, schema: str, stage: str, wanted: list[tuple[str, str]]) -> bool:
    """Whether the stage is there as it is to be, and kept from `drop_outgrown` to the transaction's end."""
    name = stage_sql(schema, stage)
    locking = f"LOCK TABLE {name} IN ACCESS SHARE MODE", None
    try:
        with connection.transaction():
            _, foreign, columns = connection.ask(locking, trust.asking_foreign([stage], schema), asking_declared(name))
    except psycopg.ProgrammingError:  # it is missing, or none that this role may lock
        return False
    trust.refuse_foreign(connection, foreign)
    return columns == wanted


def making(connection: pool.Connection, books: Bookkeeping, plan: PostgresPlan) -> list[str]:
    """The statements by which `create` makes the stage, or makes it anew; none where it is there."""
    stage, made = _creating(books, plan)
    name = stage_sql(books.schema, stage)
    there = declared(connection, name)
    if there == plan.stage_columns:
        return []
    return [f"DROP TABLE {name}", made] if there else [made]


def _creating(books: Bookkeeping, plan: PostgresPlan) -> tuple[str, str]:
    """The stage's name, and the statement that makes it."""
    stage = f"{stage_name(books.pipeline, books.sink)}_{digest(plan.stage_columns)}"
    columns = ", ".join(f"{identifier(column)} {kind}" for column, kind in plan.stage_columns)
    return stage, f"CREATE UNLOGGED TABLE IF NOT EXISTS {stage_sql(books.schema, stage)} ({columns})"


def _held(connection: pool.Connection, schema: str, stage: str, made: str) -> bool:
    """Make the stage if it is missing, and keep `drop_outgrown` from it to the transaction's end. False if that came
    first."""
    create_beside_others(connection, made)
    trust.check_ours(connection, [stage], schema)
    try:
        with connection.transaction():
            connection.execute(f"LOCK TABLE {stage_sql(schema, stage)} IN ACCESS SHARE MODE")
    except psycopg.errors.UndefinedTable:
        return False
    return True


def verify(connection: pool.Connection, books: Bookkeeping, committables: Sequence[Committable]) -> None:
    """Every attempt is listed with its count, and the stage wasn't emptied. The merge counts the rows themselves."""
    for stage, attempts in by_stage(committables).items():
        query = (
            f"""SELECT attempt, rows, rows > (SELECT count(*) FROM {books.table("staged_dead")} d
                                              WHERE d.stage = s.stage AND d.attempt = s.attempt)
                    AND NOT EXISTS (SELECT FROM {with_parameters(stage_sql(books.schema, stage))})
                FROM {books.table("staged")} s WHERE stage = %s AND attempt = ANY(%s)""",
            (stage, list(attempts)),
        )
        ((found, _),) = connection.together(query)
        listed = {attempt: rows for attempt, rows, _ in found}
        is_emptied = any(is_missed for _, _, is_missed in found)
        check_listed(books.where(committables[0].epoch), stage, attempts, listed, is_emptied)


def merge(
    connection: pool.Connection,
    books: Bookkeeping,
    plan: PostgresPlan,
    committables: Sequence[Committable],
    origin: LetterOrigin,
    refused_max: int,
    lock_timeout_s: float,
) -> None:
    """Move exactly the rows of the manifest, inside the store's transaction, whose settings are a sink's but for the
    lock timeout. Raises WorkLost if any is missing."""
    attempts = _attempts(plan, committables)
    if not attempts:
        return
    where = books.where(origin.epoch)
    if plan.rejects is None and plan.changes is None:
        answers = connection.together(*joined(plan, committables, lock_timeout_s))
        check_joined(connection, plan, committables, answers, where)
        return
    connection.execute(f"SET LOCAL lock_timeout = {int(lock_timeout_s * 1000)}".encode())
    try:
        dead = 0
        if plan.rejects is not None:
            dead = dead_letters.adopt_staged(
                connection, books, plan.rejects, origin, plan.stage, list(attempts), refused_max
            )
        moved, letters = merge_attempts(connection, plan, list(attempts), origin.timestamp_ms, refused_max - dead)
    except TooManyRefused as error:
        raise BadRecord("too-many-rejects", f"{where}: {dead_letters.too_many(refused_max, error)}") from None
    check_moved(where, moved + dead + len(letters), sum(attempts.values()))
    if letters:
        rejects = present(plan.rejects, "rows were refused where none may be")
        dead_letters.insert(connection, rejects, origin, letters)


def joined(plan: PostgresPlan, committables: Sequence[Committable], lock_timeout_s: float) -> list[Statement]:
    """Moves the rows of a plan without keys and dead letters, and then asks for the target's types."""
    limit = f"SET LOCAL lock_timeout = {int(lock_timeout_s * 1000)}", None
    return [
        limit,
        appending_attempts(plan, list(_attempts(plan, committables))),
        asking_types(plan.target, list(plan.types)),
    ]


def check_joined(
    connection: pool.Connection,
    plan: PostgresPlan,
    committables: Sequence[Committable],
    answers: Sequence[Answer],
    where: str,
) -> None:
    """What `joined` was answered. Raises WorkLost, SchemaMismatch."""
    _, moved, types = answers
    check_types(connection, plan, dict(types.rows))
    check_moved(where, moved.rowcount, sum(committable.rows for committable in committables))


def _attempts(plan: PostgresPlan, committables: Sequence[Committable]) -> dict[int, int]:
    """Attempt -> rows, in the plan's stage."""
    parts = by_stage(committables)
    require(set(parts) <= {plan.stage}, f"the stage is {plan.stage}, and the parts are of {sorted(parts)}")
    return parts.get(plan.stage, {})


def clear(
    connection: pool.Connection,
    books: Bookkeeping,
    committables: Sequence[Committable],
    deleted_bytes: int,
    lock_timeout_s: float,
) -> int:
    """Throw a decided epoch's stage rows away, where the stage has `deleted_bytes` of deleted rows; returns how many it
    has now.

    Few rows are deleted by name: TRUNCATE makes files, which takes as long as all else of a small epoch. Many are
    truncated, if nobody newer stages there.
    """
    deleted_bytes += sum(committable.bytes for committable in committables)
    newest = max((c.generation, c.epoch) for c in committables)
    if deleted_bytes > _DELETED_BYTES_MAX and all(
        _truncate(connection, books, stage, newest, lock_timeout_s) for stage in by_stage(committables)
    ):
        return 0
    discard(connection, books, committables, lock_timeout_s)
    return deleted_bytes


def drop_outgrown(connection: pool.Connection, books: Bookkeeping, stage: str, generation: int) -> bool:
    """Drop this sink's stages for other columns than `stage` has, unless an attempt is listed there or a newer
    generation has bound the ledger.

    Called while an epoch of `generation` is committed. Returns whether all of them are gone.
    """
    prefix = stage_name(books.pipeline, books.sink)
    others = connection.execute(
        """SELECT relname FROM pg_class WHERE relname >= %(p)s AND relname < %(p)s || '~' AND relname <> %(s)s
               AND relkind = 'r' AND relnamespace = %(n)s::regnamespace AND pg_has_role(relowner, 'USAGE')""",
        {"p": prefix, "s": stage, "n": identifier(books.schema)},
    ).fetchall()
    kept = 0
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
                else:
                    kept += 1
        except psycopg.errors.LockNotAvailable:
            kept += 1
        except psycopg.errors.UndefinedTable:
            continue
    return kept == 0


def _truncate(
    connection: pool.Connection, books: Bookkeeping, stage: str, newest: tuple[int, int], lock_timeout_s: float
) -> bool:
    name = stage_sql(books.schema, stage)
    try:
        with connection.transaction(lock_timeout_s, is_durable=False):
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


def empty(connection: pool.Connection, stage_table: str, lock_timeout_s: float) -> None:
    """Give the room back that two-phase upserts took: each deletes its own rows, so none is visible here.

    A transaction that still works in the stage holds a lock on it; then the next epoch does this.
    """
    with suppress(psycopg.errors.LockNotAvailable), connection.transaction(lock_timeout_s):
        connection.execute(f"LOCK TABLE {stage_table} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
        connection.execute(f"TRUNCATE {stage_table}".encode())


def discard(
    connection: pool.Connection, books: Bookkeeping, committables: Sequence[Committable], lock_timeout_s: float
) -> None:
    """Delete the named attempts' rows, and no others."""
    for stage, attempts in by_stage(committables).items():
        name = with_parameters(stage_sql(books.schema, stage))
        rows = f"DELETE FROM {name} WHERE onefold_attempt = ANY(%s)", (list(attempts),)
        listed = f"DELETE FROM {books.table('staged')} WHERE stage = %s AND attempt = ANY(%s)", (stage, list(attempts))
        try:
            connection.begin(lock_timeout_s, is_durable=False, first=[rows, listed], then="COMMIT")
        except psycopg.errors.UndefinedTable:  # a stage that is gone has no rows
            connection.begin(lock_timeout_s, is_durable=False, first=[listed], then="COMMIT")


def asking_leftovers(books: Bookkeeping, up_to_generation: int) -> Statement:
    """Answers with what `leftover` takes, beside the sink."""
    return (
        f"""SELECT stage, attempt, generation, epoch FROM {books.table("staged")}
            WHERE pipeline = %s AND sink = %s AND generation <= %s ORDER BY generation, epoch, attempt""",
        (books.pipeline, books.sink, up_to_generation),
    )
