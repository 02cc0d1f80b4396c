"""Upserts as statements that every database has: the newest version of a key wins, within an epoch and across them.

An UPDATE of the rows that are there and an INSERT of those that are not, both from the newest staged version of each
key. (MariaDB's ON DUPLICATE KEY would take any unique index for the key.) A row that deletes wins among equals, takes
the row that is there if it is not newer, and is remembered, so that a late older record does not bring the row back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from onefold.sinks.sql.databases import adapter_of
from onefold.sinks.sql.naming import ATTEMPT, DELETED, RANK, TIMESTAMP
from onefold.sinks.sql.sink_plan import SqlPlan
from onefold.sinks.staged.upsert import Changes

_MS = 1000


def upsert(
    connection: sa.Connection,
    plan: SqlPlan,
    changes: Changes,
    attempts: Sequence[int],
    timestamp_ms: int,
) -> None:
    """Bring the staged attempts' rows into the target, inside the caller's transaction."""
    target, deleted = plan.target_table(), plan.deleted_table()
    newest = _newest(plan, changes, attempts)
    columns = list(target.columns.keys())
    if deleted is None:
        _put(connection, changes, target, columns, sa.select(newest).where(_is_newest(newest)).subquery("newest"))
        return
    marks = newest.c[DELETED].is_(sa.true())
    timestamp = sa.literal(timestamp_ms, sa.BigInteger).label(TIMESTAMP)
    deleting = sa.select(newest, timestamp).where(_is_newest(newest), marks).subquery("deleting")
    condition = sa.and_(_same_key(changes, target, deleting), sa.not_(_is_newer(changes, target, deleting)))
    connection.execute(adapter_of(connection.dialect).deleting(target, changes.key, deleting, condition))
    _put(connection, changes, deleted, list(deleted.columns.keys()), deleting)
    remembered = sa.exists().where(_same_key(changes, deleted, newest), sa.not_(_is_newer(changes, newest, deleted)))
    living = sa.select(newest).where(_is_newest(newest), sa.not_(marks), ~remembered)
    _put(connection, changes, target, columns, living.subquery("newest"))
    kept_since_ms = timestamp_ms - int(changes.deletes_kept_s * _MS)
    connection.execute(sa.delete(deleted).where(deleted.c[TIMESTAMP] < kept_since_ms))


def _newest(plan: SqlPlan, changes: Changes, attempts: Sequence[int]) -> sa.Subquery:
    """The staged rows, each with its rank among those of its key."""
    stage = plan.stage_table()
    columns: list[sa.ColumnElement[Any]] = [stage.c[column.name] for column in plan.columns]
    order: list[sa.ColumnElement[Any]] = [stage.c[name].desc() for name in changes.order]
    if changes.deletes:
        columns.append(stage.c[DELETED])
        order.append(sa.case((stage.c[DELETED].is_(sa.true()), 0), else_=1))
    rank = sa.func.row_number().over(partition_by=[stage.c[name] for name in changes.key], order_by=order)
    return sa.select(*columns, rank.label(RANK)).where(stage.c[ATTEMPT].in_(attempts)).subquery("ranked")


def _is_newest(ranked: sa.Subquery) -> sa.ColumnElement[bool]:
    return ranked.c[RANK] == 1


def _put(
    connection: sa.Connection, changes: Changes, table: sa.TableClause, columns: Sequence[str], source: sa.Subquery
) -> None:
    same = _same_key(changes, table, source)
    values = {table.c[name]: source.c[name] for name in columns if name not in changes.key}
    connection.execute(sa.update(table).values(values).where(same, _is_newer(changes, source, table)))
    absent = sa.select(*(source.c[name] for name in columns)).where(~sa.exists().where(same).correlate(source))
    connection.execute(sa.insert(table).from_select(list(columns), absent))


def _same_key(changes: Changes, one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(one.c[name] == other.c[name] for name in changes.key))


def _is_newer(changes: Changes, one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """By the first order column in which they differ. A null is older than everything: what is staged has none."""
    ways, equal_so_far = [], list[sa.ColumnElement[bool]]()
    for name in changes.order:
        mine, its = one.c[name], other.c[name]
        newer = sa.or_(sa.and_(its.is_(None), mine.is_not(None)), mine > its)
        ways.append(sa.and_(*equal_so_far, newer))
        equal_so_far.append(mine == its)
    # Comparing with a null gives null, which NOT would leave null.
    return sa.func.coalesce(sa.or_(*ways), sa.false())
