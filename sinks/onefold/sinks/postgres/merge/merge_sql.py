"""Staged rows into the target: appended, or merged by key, so that the newest version of every row is what stays.

Versions are only ever compared by their order columns, and deletions are remembered as versions too. So it makes no
difference in which order, or in how many parts, a set of rows is applied.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection
from onefold.core.checks import require
from onefold.sinks.postgres.sink_plan import DELETED, PostgresPlan
from onefold.sinks.staged.upsert import Changes

__all__ = ["appending", "apply", "sort_in_memory"]

_SORT_MEMORY = "128MB"
_NEVER_MS = 2**63 - 1


def sort_in_memory(connection: Connection) -> None:
    """For the caller's transaction: room to sort an epoch's rows by key."""
    connection.execute(
        "SELECT set_config('work_mem', %s, true) WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes(%s)",
        (_SORT_MEMORY, _SORT_MEMORY),
    )


def apply(connection: Connection, plan: PostgresPlan, where: str, timestamp_ms: int) -> int:
    """Apply the rows of the stage that `where` picks, inside the caller's transaction; returns how many they are.

    `where` is SQL without parameters over the stage, which is called `s` there. `timestamp_ms` is the epoch's T.
    """
    require(plan.stage_table is not None, "a merge without its stage table")
    if plan.changes is None:
        return connection.execute(f"{appending(plan)} WHERE {where}".encode()).rowcount
    ((count,),) = connection.execute(f"SELECT count(*) FROM {plan.stage_table} s WHERE {where}".encode())
    if count:
        if plan.changes.deletes:
            _delete(connection, plan, plan.changes, where, timestamp_ms)
            where = f"NOT s.{DELETED} AND {where}"
        _upsert(connection, plan, plan.changes, where)
    return int(count)


def appending(plan: PostgresPlan) -> str:
    """The statement that appends the stage's rows, all of them as it stands."""
    columns = plan.column_list
    return f"INSERT INTO {plan.target} ({columns}) SELECT {columns} FROM {plan.stage_table} s"


def _delete(connection: Connection, plan: PostgresPlan, changes: Changes, where: str, timestamp_ms: int) -> None:
    """Note each key's newest deletion, and delete what is not newer than it.

    A key is remembered for as long as any deletion of it asks for: another pipeline may keep its own for longer.
    """
    require(plan.tombstones is not None, "deletions without their table of tombstones")
    newest = _newest(plan, changes, (*changes.key, *changes.order), f"s.{DELETED} AND {where}")
    keys, orders = _list("", changes.key), _list("", changes.order)
    is_newer = f"{_row('d', changes.order)} < {_row('excluded', changes.order)}"
    newer = ", ".join(f"CASE WHEN {is_newer} THEN excluded.{c} ELSE d.{c} END" for c in map(identifier, changes.order))
    expires_ms = int(min(timestamp_ms + changes.deletes_kept_s * 1000, _NEVER_MS))
    connection.execute(
        f"""INSERT INTO {plan.tombstones} AS d ({keys}, {orders}, onefold_expires_ms)
            SELECT {keys}, {orders}, {expires_ms} FROM ({newest}) n
            ON CONFLICT ({keys}) DO UPDATE SET ({orders}, onefold_expires_ms)
                = ROW ({newer}, greatest(d.onefold_expires_ms, excluded.onefold_expires_ms))
            WHERE {is_newer} OR d.onefold_expires_ms < excluded.onefold_expires_ms""".encode()
    )
    connection.execute(
        f"""DELETE FROM {plan.target} t USING ({newest}) n
            WHERE {_same("t", "n", changes.key)} AND {_is_older("t", "<=", "n", changes.order)}""".encode()
    )


def _upsert(connection: Connection, plan: PostgresPlan, changes: Changes, where: str) -> None:
    names = [column.name for column in plan.columns]
    source = _newest(plan, changes, names, where)
    if changes.deletes:
        source = f"""SELECT * FROM ({source}) n WHERE NOT EXISTS (SELECT FROM {plan.tombstones} d
            WHERE {_same("d", "n", changes.key)} AND {_row("d", changes.order)} >= {_row("n", changes.order)})"""
    columns = plan.column_list
    values = [name for name in names if name not in changes.key]
    try:
        # MERGE writes new rows at half the cost of INSERT ... ON CONFLICT, which writes each one twice to be safe ...
        with connection.transaction():
            connection.execute(
                f"""MERGE INTO {plan.target} t USING ({source}) n ON {_same("t", "n", changes.key)}
                    WHEN MATCHED AND {_is_older("t", "<", "n", changes.order)}
                        THEN UPDATE SET {_set(values, "n")}
                    WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({_list("n.", names)})""".encode()
            )
    except psycopg.errors.UniqueViolation:
        # ... from what others write meanwhile under the same keys. Of another unique index this fails as well.
        connection.execute(
            f"""INSERT INTO {plan.target} AS t ({columns}) {source}
                ON CONFLICT ({_list("", changes.key)}) DO UPDATE SET {_set(values, "excluded")}
                WHERE {_is_older("t", "<", "excluded", changes.order)}""".encode()
        )


def _newest(plan: PostgresPlan, changes: Changes, names: Sequence[str], where: str) -> str:
    """One row for each key, sorted by key, so that neighbours in an index are written one after another."""
    order = ", ".join(f"s.{identifier(name)} DESC" for name in changes.order)
    keys = _list("s.", changes.key)
    return (
        f"SELECT DISTINCT ON ({keys}) {_list('s.', names)} FROM {plan.stage_table} s"
        f" WHERE {where} ORDER BY {keys}, {order}"
    )


def _is_older(mine: str, operator: str, other: str, order: Sequence[str]) -> str:
    """A row that was there before, with no order, is older than any."""
    return f"(({_row(mine, order)} {operator} {_row(other, order)}) IS NOT FALSE)"


def _same(mine: str, other: str, key: Sequence[str]) -> str:
    return " AND ".join(f"{mine}.{identifier(name)} = {other}.{identifier(name)}" for name in key)


def _row(of: str, names: Sequence[str]) -> str:
    return f"({_list(f'{of}.', names)})"


def _list(prefix: str, names: Sequence[str]) -> str:
    return ", ".join(f"{prefix}{identifier(name)}" for name in names)


def _set(names: Sequence[str], of: str) -> str:
    return ", ".join(f"{identifier(name)} = {of}.{identifier(name)}" for name in names)
