"""The stage: one table for each pipeline and sink, where attempts' rows wait to be merged; and what becomes of them.

Its name ends with a digest of its columns: a zombie that opens the sink for other rows makes a stage of its own, and
the live driver's stays. What was outgrown goes with a decided epoch's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from onefold.core.contract import Committable
from onefold.core.errors import ConfigError
from onefold.sinks.sql.adapters.adapter import SqlType
from onefold.sinks.sql.adapters.sql_kinds import SqlKind
from onefold.sinks.sql.bookkeeping import SqlBookkeeping, staged, stages
from onefold.sinks.sql.databases import adapter_of, creating
from onefold.sinks.sql.naming import ATTEMPT, DELETED, ROW, TIMESTAMP, exactly, own_table
from onefold.sinks.sql.sink_plan import SqlColumn, SqlPlan
from onefold.sinks.sql.upsert import upsert
from onefold.sinks.staged.attempts import by_stage, check_listed, check_moved, digest, leftover


class OwnTables(NamedTuple):
    """What the sink keeps beside its target: the stage, with its whole name; and where deletions are remembered, None
    where rows are never deleted."""

    stage: sa.Table
    deleted: sa.Table | None


def own_tables(dialect: sa.Dialect, plan: SqlPlan, there: Mapping[str, Mapping[str, Any]]) -> OwnTables:
    """As they are to be for a plan; `there` are the target's columns, whose types count where values are compared."""
    adapter, changes = adapter_of(dialect), plan.changes
    key = changes.key if changes is not None else ()

    def typed(column: SqlColumn, kind: SqlKind) -> SqlType:
        return adapter.stage_type(kind, there[column.name]["type"], len(key) if column.name in key else 0)

    def stage(name: str) -> sa.Table:
        columns = [sa.Column(exactly(column.name), typed(column, column.kind)) for column in plan.columns]
        own = [sa.Column(each, sa.BigInteger, primary_key=True, autoincrement=False) for each in (ATTEMPT, ROW)]
        if plan.deleted is not None:
            own.append(sa.Column(DELETED, sa.Boolean, nullable=False))
        return sa.Table(name, sa.MetaData(), *columns, *own, **adapter.stage_options)

    whole = stage(f"{plan.stage}_{digest(_layout(dialect, stage(plan.stage)))}")
    if changes is None or plan.deleted is None:
        return OwnTables(whole, None)
    kept = {column.name: typed(column, column.kind.widest) for column in plan.columns}
    keys = [sa.Column(exactly(name), kept[name], primary_key=True, autoincrement=False) for name in changes.key]
    others = [sa.Column(exactly(name), kept[name], nullable=False) for name in changes.order]
    timestamp = sa.Column(TIMESTAMP, sa.BigInteger, nullable=False)
    by_time = sa.Index(f"{plan.deleted}_time", TIMESTAMP)  # what is old enough to be forgotten is found quickly
    options = adapter.stage_options
    return OwnTables(whole, sa.Table(plan.deleted, sa.MetaData(), *keys, *others, timestamp, by_time, **options))


def create(connection: sa.Connection, plan: SqlPlan, own: OwnTables) -> SqlPlan:
    """Make them, inside `SqlDatabase.making_tables`; returns the plan with the stage's name. Raises ConfigError where
    deletions are remembered by another key or order."""
    own.stage.create(connection, checkfirst=True)
    if own.deleted is not None:
        _remember(connection, own.deleted)
    return replace(plan, stage=own.stage.name)


def making(dialect: sa.Dialect, connection: sa.Connection | None, own: OwnTables) -> list[str]:
    """The statements by which `create` makes what is missing; without a connection, in a database that is not there."""
    stage, deleted = own
    made = [] if connection is not None and sa.inspect(connection).has_table(stage.name) else creating(dialect, [stage])
    if deleted is None:
        return made
    if connection is not None and sa.inspect(connection).has_table(stages.name) and _is_remembered(connection, deleted):
        return made
    is_old = connection is not None and sa.inspect(connection).has_table(deleted.name)
    gone = [f"DROP TABLE {deleted.name}"] if is_old else []
    return [*made, *gone, *creating(dialect, [deleted])]


def check(connection: sa.Connection, own: OwnTables) -> None:
    """Raise ConfigError where deletions are remembered by another key or order."""
    if own.deleted is not None and sa.inspect(connection).has_table(stages.name):
        _is_remembered(connection, own.deleted)


def _layout(dialect: sa.Dialect, table: sa.Table) -> str:
    return str(CreateTable(table).compile(dialect=dialect))


def _is_remembered(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the table is there as it should be. Raises ConfigError for one of another layout, unless it is empty."""
    known = connection.scalar(sa.select(stages.c.layout).where(stages.c.name == table.name))
    is_there = sa.inspect(connection).has_table(table.name)
    if known == _layout(connection.dialect, table) and is_there:
        return True
    if known is not None and is_there and connection.execute(sa.select(sa.literal(1)).select_from(table)).first():
        columns = ", ".join(column.name for column in table.columns if column.name != TIMESTAMP)
        raise ConfigError(
            "tombstones-of-another-key",
            f"deletions are remembered in {table.name} by other columns than {columns}, or as other types: drivers of"
            " this sink must agree on key and order. If no other driver runs, and no older record can come any more:"
            f" DROP TABLE {table.name}",
        )
    return False


def _remember(connection: sa.Connection, table: sa.Table) -> None:
    if _is_remembered(connection, table):
        return
    # In this order, since MariaDB commits in front of every CREATE and DROP: a layout is noted when its table is there.
    connection.execute(stages.delete().where(stages.c.name == table.name))
    table.drop(connection, checkfirst=True)
    table.create(connection)
    connection.execute(stages.insert().values(name=table.name, layout=_layout(connection.dialect, table)))


def drop_outgrown(connection: sa.Connection, books: SqlBookkeeping, stage: str, generation: int) -> bool:
    """Drop this sink's stages for other columns than `stage` has, unless somebody uses them or may be about to.

    In `SqlDatabase.making_tables`, for whoever commits an epoch of that generation, before it is complete: who opened
    another stage by then has written the ledger's row as a newer generation. Returns whether all of them are gone.
    """
    mine = own_table("stage", books.pipeline, books.sink)
    adapter = adapter_of(connection.dialect)
    others = [name for name in sa.inspect(connection).get_table_names() if name.startswith(mine) and name != stage]
    ledger = books.ledger(connection)
    if ledger is not None and ledger.generation > generation:
        return not others
    used = {*connection.scalars(sa.select(staged.c.stage).where(staged.c.stage.in_(others)))}
    gone = [name for name in others if name not in used and adapter.drop(connection, name)]
    return len(gone) == len(others)


def verify(connection: sa.Connection, books: SqlBookkeeping, committables: Sequence[Committable]) -> None:
    """Every attempt is listed with its count, and the stage wasn't emptied. The merge counts the rows themselves."""
    for stage, attempts in by_stage(committables).items():
        query = sa.select(staged.c.attempt, staged.c.rows).where(_named(stage, attempts))
        listed = {row.attempt: row.rows for row in connection.execute(query)}
        some = sa.select(sa.literal(1)).select_from(sa.table(stage)).limit(1)
        is_emptied = bool(listed) and connection.execute(some).first() is None
        check_listed(books.where(committables[0].epoch), stage, attempts, listed, is_emptied)


def merge(
    connection: sa.Connection,
    books: SqlBookkeeping,
    plan: SqlPlan,
    epoch: int,
    timestamp_ms: int,
    committables: Sequence[Committable],
) -> None:
    """Move exactly the rows of the manifest, inside the caller's transaction. Raises WorkLost if any is missing."""
    parts = by_stage(committables)
    if not parts:
        return
    if set(parts) != {plan.stage}:
        raise ConfigError(
            "staged-elsewhere",
            f"{books.where(epoch)}: its rows were staged in {', '.join(sorted(parts))}, and this sink's stage is"
            f" {plan.stage}: open the sink as the writers did",
        )
    attempts = parts[plan.stage]
    moved = move(connection, plan, list(attempts), timestamp_ms)
    check_moved(books.where(epoch), moved, sum(attempts.values()))


def move(connection: sa.Connection, plan: SqlPlan, attempts: Sequence[int], timestamp_ms: int) -> int:
    """Bring the attempts' rows into the target; how many rows there were."""
    stage, target = plan.stage_table(), plan.target_table()
    of_these = stage.c[ATTEMPT].in_(attempts)
    if plan.changes is not None:
        found = connection.scalar(sa.select(sa.func.count()).select_from(stage).where(of_these))
        upsert(connection, plan, plan.changes, attempts, timestamp_ms)
        return int(found or 0)
    names = [column.name for column in plan.columns]
    rows = sa.select(*(stage.c[name] for name in names)).where(of_these)
    moving = sa.insert(target).from_select(names, rows).execution_options(preserve_rowcount=True)
    return connection.execute(moving).rowcount


def discard(connection: sa.Connection, committables: Sequence[Committable]) -> None:
    """Delete the named attempts' rows, and no others."""
    for stage, attempts in by_stage(committables).items():
        if sa.inspect(connection).has_table(stage):
            rows = sa.table(stage, sa.column(ATTEMPT))
            connection.execute(sa.delete(rows).where(rows.c[ATTEMPT].in_(list(attempts))))
        connection.execute(staged.delete().where(_named(stage, attempts)))


def leftovers(connection: sa.Connection, books: SqlBookkeeping, up_to_generation: int) -> list[Committable]:
    query = (
        sa.select(staged)
        .where(
            staged.c.pipeline == books.pipeline,
            staged.c.sink == books.sink,
            staged.c.generation <= up_to_generation,
        )
        .order_by(staged.c.generation, staged.c.epoch, staged.c.attempt)
    )
    return [
        leftover(books.sink, row.stage, row.attempt, row.generation, row.epoch) for row in connection.execute(query)
    ]


def _named(stage: str, attempts: Mapping[int, int]) -> sa.ColumnElement[bool]:
    return sa.and_(staged.c.stage == stage, staged.c.attempt.in_(list(attempts)))
