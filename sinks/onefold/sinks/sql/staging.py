"""The stage: one table for each pipeline and sink, where attempts' rows wait to be merged; and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from onefold.core.contract import Committable, EpochRecord, SinkKind
from onefold.core.errors import ConfigError, WorkLost
from onefold.core.sql.postgres_trust import check_tables
from onefold.sinks.sql.adapters.adapter import Adapter, SqlType
from onefold.sinks.sql.bookkeeping import Bookkeeping, staged, stages
from onefold.sinks.sql.naming import ATTEMPT, ROW, TIMESTAMP, exactly
from onefold.sinks.sql.plan import Plan, Upsert
from onefold.sinks.sql.upsert import upsert

__all__ = ["create", "discard", "leftovers", "merge", "move", "verify"]


def create(
    connection: sa.Connection,
    adapter: Adapter,
    plan: Plan,
    rule: Upsert | None,
    types: Mapping[str, SqlType],
    kept_types: Mapping[str, SqlType],
) -> None:
    """The sink's own tables, inside `Database.creating`. A stage with other columns is replaced, with what is left in
    it; remembered deletes of another key or order are, too. `types` are those of the stage's columns, `kept_types` as
    which a delete's are remembered."""
    own = [
        sa.Column(name, sa.BigInteger, primary_key=adapter.stage_has_key, autoincrement=False)
        for name in (ATTEMPT, ROW)
    ]
    columns = [sa.Column(exactly(column.name), types[column.name]) for column in plan.columns]
    _replace(connection, sa.Table(plan.stage, sa.MetaData(), *columns, *own, **adapter.stage_options))
    if rule is not None and plan.deleted is not None:
        # Durable, unlike the stage.
        options = {name: value for name, value in adapter.stage_options.items() if name != "prefixes"}
        keys = [sa.Column(exactly(name), kept_types[name], primary_key=True, autoincrement=False) for name in rule.key]
        others = [sa.Column(exactly(name), kept_types[name], nullable=False) for name in rule.order]
        timestamp = sa.Column(TIMESTAMP, sa.BigInteger, nullable=False)
        by_time = sa.Index(f"{plan.deleted}_time", TIMESTAMP)  # what is old enough to be forgotten is found quickly
        _replace(connection, sa.Table(plan.deleted, sa.MetaData(), *keys, *others, timestamp, by_time, **options))


def _replace(connection: sa.Connection, table: sa.Table) -> None:
    layout = str(CreateTable(table).compile(dialect=connection.dialect))
    check_tables(connection, [table.name])
    known = connection.scalar(sa.select(stages.c.layout).where(stages.c.name == table.name))
    if known == layout and sa.inspect(connection).has_table(table.name):
        return
    # In this order, since MariaDB commits in front of every CREATE and DROP: a layout is noted when its table is there.
    connection.execute(stages.delete().where(stages.c.name == table.name))
    connection.execute(staged.delete().where(staged.c.stage == table.name))
    table.drop(connection, checkfirst=True)
    table.create(connection)
    connection.execute(stages.insert().values(name=table.name, layout=layout))


def _parts(committables: Sequence[Committable]) -> dict[str, dict[int, int]]:
    """Stage -> attempt -> rows, from the handles `stage/attempt`."""
    found: dict[str, dict[int, int]] = {}
    for committable in committables:
        stage, _, attempt = committable.handle.rpartition("/")
        found.setdefault(stage, {})[int(attempt)] = committable.rows
    return found


def verify(connection: sa.Connection, books: Bookkeeping, committables: Sequence[Committable]) -> None:
    """Every attempt is listed with its count, and the stage wasn't emptied. The merge counts the rows themselves."""
    for stage, attempts in _parts(committables).items():
        query = sa.select(staged.c.attempt, staged.c.rows).where(_named(stage, attempts))
        listed = {row.attempt: row.rows for row in connection.execute(query)}
        some = sa.select(sa.literal(1)).select_from(sa.table(stage)).limit(1)
        is_there = listed == attempts and connection.execute(some).first() is not None
        if not is_there:
            raise WorkLost(
                f"pipeline {books.pipeline!r}, sink {books.sink!r}, epoch {committables[0].epoch}: stage {stage} has "
                f"{len(listed)} of {len(attempts)} attempts listed, or was emptied by a crash of the server. The "
                "epoch's writers must run again"
            )


def merge(
    connection: sa.Connection,
    adapter: Adapter,
    books: Bookkeeping,
    plan: Plan,
    rule: Upsert | None,
    record: EpochRecord,
    committables: Sequence[Committable],
) -> None:
    """Move exactly the rows of the manifest, inside the caller's transaction. Raises WorkLost if any is missing."""
    parts = _parts(committables)
    if not parts:
        return
    if set(parts) != {plan.stage}:
        raise ConfigError(
            f"pipeline {books.pipeline!r}, sink {books.sink!r}: epoch {record.epoch} was staged in "
            f"{', '.join(sorted(parts))}, and this sink's stage is {plan.stage}: open the sink as the writers did"
        )
    attempts = parts[plan.stage]
    there = move(connection, adapter, plan, rule, list(attempts), record.timestamp_ms)
    expected = sum(attempts.values())
    if there != expected:
        raise WorkLost(
            f"pipeline {books.pipeline!r}, sink {books.sink!r}, epoch {record.epoch}: the merge found {there} rows, "
            f"and the manifest says {expected}. Nothing was decided; the epoch's writers must run again. (A crash of "
            "the server may empty the stage; a trigger that drops rows shows as the same)"
        )


def move(
    connection: sa.Connection,
    adapter: Adapter,
    plan: Plan,
    rule: Upsert | None,
    attempts: Sequence[int],
    timestamp_ms: int,
) -> int:
    """Bring the attempts' rows into the target; how many rows there were."""
    stage, target = plan.stage_table(), plan.target_table(rule)
    of_these = stage.c[ATTEMPT].in_(attempts)
    if rule is not None:
        found = connection.scalar(sa.select(sa.func.count()).select_from(stage).where(of_these))
        upsert(connection, adapter, plan, rule, attempts, timestamp_ms)
        return int(found or 0)
    names = [column.name for column in plan.columns]
    rows = sa.select(*(stage.c[name] for name in names)).where(of_these)
    moving = sa.insert(target).from_select(names, rows).execution_options(preserve_rowcount=True)
    return connection.execute(moving).rowcount


def discard(connection: sa.Connection, committables: Sequence[Committable]) -> None:
    """Delete the named attempts' rows, and no others."""
    for stage, attempts in _parts(committables).items():
        if sa.inspect(connection).has_table(stage):
            rows = sa.table(stage, sa.column(ATTEMPT))
            connection.execute(sa.delete(rows).where(rows.c[ATTEMPT].in_(list(attempts))))
        connection.execute(staged.delete().where(_named(stage, attempts)))


def leftovers(connection: sa.Connection, books: Bookkeeping, up_to_generation: int) -> list[Committable]:
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
        Committable(books.sink, SinkKind.LAST_RESOURCE, f"{row.stage}/{row.attempt}", row.generation, row.epoch, 0)
        for row in connection.execute(query)
    ]


def _named(stage: str, attempts: Mapping[int, int]) -> sa.ColumnElement[bool]:
    return sa.and_(staged.c.stage == stage, staged.c.attempt.in_(list(attempts)))
