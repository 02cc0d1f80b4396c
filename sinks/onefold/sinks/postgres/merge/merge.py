"""An epoch's staged rows into the target: appended, or merged by key, so that the newest version of every row is what
stays; all at once, or with those left out that Postgres refuses.

Versions are only ever compared by their order columns, and deletions are remembered as versions too. So it makes no
difference in which order, or in how many parts, a set of rows is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import identifier, literal, with_parameters
from onefold.clients.postgres.sessions import Connection
from onefold.core.checks import require
from onefold.core.errors import SchemaMismatch
from onefold.sinks.postgres.dead_letters import DeadLetter, PartRefused, isolate
from onefold.sinks.postgres.merge import tombstones
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema import target
from onefold.sinks.postgres.schema.column_comparison import columns_of
from onefold.sinks.postgres.sink_options import Delivery
from onefold.sinks.postgres.sink_plan import ATTEMPT, DELETED, PostgresPlan
from onefold.sinks.staged.upsert import Changes

# For the transaction at hand: room to sort an epoch's rows by key.
SORT_MEMORY = """
SELECT set_config('work_mem', '128MB', true) WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('128MB')
"""
_NEVER_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows of the stage by their place there."""

    ctids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ctids)

    def slice(self, offset: int, length: int) -> _Places:
        return _Places(self.ctids[offset : offset + length])

    @property
    def where(self) -> str:
        return "s.ctid = ANY(ARRAY[{}]::tid[])".format(",".join(f"'{ctid}'" for ctid in self.ctids))


def merge_attempts(
    connection: Connection, plan: PostgresPlan, attempts: Sequence[int] | None, timestamp_ms: int, refused_max: int
) -> tuple[int, list[DeadLetter]]:
    """Apply the rows of these attempts, inside the caller's transaction; returns how many, and the refused ones. With
    None, all rows of a stage that is the transaction's own.

    `timestamp_ms` is the epoch's T. Rows are refused one by one only where the plan has dead letters. Raises
    TooManyRefused beyond `refused_max`; SchemaMismatch where the target was altered meanwhile, and would cast values to
    others.
    """
    applied = _apply(connection, plan, attempts, timestamp_ms, refused_max)
    check_types(connection, plan, target.types(connection, plan.target, list(plan.types)))  # now the target is locked
    return applied


def appending_attempts(plan: PostgresPlan, attempts: Sequence[int]) -> Statement:
    """Does the same of a plan without keys and dead letters, but for the types, which `check_types` has to look at."""
    return with_parameters(appending(plan)) + f" WHERE s.{ATTEMPT} = ANY(%s)", (list(attempts),)


def check_types(connection: Connection, plan: PostgresPlan, types: Mapping[str, str]) -> None:
    """Raise SchemaMismatch where the target, whose columns are of these types by now, would cast values to others.

    Types that became wider since the sink was opened take the staged values as they are; others round in silence.
    """
    if types == plan.types:
        return
    now = target.find(connection, TargetName.parse(plan.target))
    if now is None:
        raise SchemaMismatch(
            "table-dropped", f"table {plan.target} was dropped while rows were merged into it: start again"
        )
    columns_of(now, pa.schema([(column.name, column.source) for column in plan.columns]))


def _apply(
    connection: Connection, plan: PostgresPlan, attempts: Sequence[int] | None, timestamp_ms: int, refused_max: int
) -> tuple[int, list[DeadLetter]]:
    where = "true"
    if attempts is not None:
        where = f"s.{ATTEMPT} = ANY('{{{','.join(map(str, attempts))}}}'::bigint[])"
    if plan.changes is not None:
        connection.execute(SORT_MEMORY.encode())
    if plan.tombstones is not None and plan.delivery is not Delivery.TWO_PHASE:
        tombstones.take_turns(connection, plan.tombstones)
    if plan.rejects is None:
        return _apply_some(connection, plan, where, timestamp_ms), []
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a row that is refused at COMMIT could not be left out

    def attempt(where: str) -> int | PartRefused:
        try:
            with connection.transaction():
                return _apply_some(connection, plan, where, timestamp_ms)
        except psycopg.Error as error:
            if not driver_errors.is_refusal(error):
                raise
            return PartRefused(driver_errors.said(error), error.sqlstate)

    whole = attempt(where)
    if isinstance(whole, int):
        return whole, []
    places = _places(connection, plan, where)
    taken, refused = isolate(
        places,
        lambda part: why if isinstance(why := attempt(part.where), PartRefused) else None,
        refused_max,
        lambda parts: _Places(tuple(ctid for part in parts for ctid in part.ctids)),
    )
    return taken, [_letter(connection, plan, place, why) for place, why in refused]


def _places(connection: Connection, plan: PostgresPlan, where: str) -> _Places:
    rows = connection.execute(f"SELECT s.ctid::text FROM {plan.stage_table} s WHERE {where} ORDER BY s.ctid".encode())
    return _Places(tuple(ctid for (ctid,) in rows))


def _letter(connection: Connection, plan: PostgresPlan, place: _Places, why: PartRefused) -> DeadLetter:
    pairs = ", ".join(
        f"{literal(column.name)}, s.{identifier(name)}"
        for column, name in zip(plan.position, plan.position_names, strict=True)
    )
    position = f"json_build_object({pairs})::text" if pairs else "NULL::text"
    columns = plan.column_list
    if plan.changes is not None and plan.changes.delete_when_true is not None:
        columns += f", s.{DELETED} AS {identifier(plan.changes.delete_when_true)}"
    ((at, row),) = connection.execute(
        f"""SELECT {position}, (SELECT row_to_json(r.*)::text FROM (SELECT {columns}) r)
            FROM {plan.stage_table} s WHERE {place.where}""".encode()
    )
    return DeadLetter(why.reason, why.sqlstate, at, row)


def _apply_some(connection: Connection, plan: PostgresPlan, where: str, timestamp_ms: int) -> int:
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
    try:
        # MERGE writes new rows at half the cost of INSERT ... ON CONFLICT, which writes each one twice to be safe ...
        with connection.transaction():
            connection.execute(upserting(plan, changes, where).encode())
    except psycopg.errors.UniqueViolation:
        # ... from what others write meanwhile under the same keys. Of another unique index this fails as well.
        names, source = _sorted_source(plan, changes, where)
        connection.execute(
            f"""INSERT INTO {plan.target} AS t ({plan.column_list}) {source}
                ON CONFLICT ({_list("", changes.key)}) DO UPDATE SET {_set(_values(names, changes), "excluded")}
                WHERE {_is_older("t", "<", "excluded", changes.order)}""".encode()
        )


def upserting(plan: PostgresPlan, changes: Changes, where: str = "true") -> str:
    """The statement that merges the rows of the stage that `where` picks; deletions are not among them."""
    names, source = _sorted_source(plan, changes, where)
    return f"""MERGE INTO {plan.target} t USING ({source}) n ON {_same("t", "n", changes.key)}
        WHEN MATCHED AND {_is_older("t", "<", "n", changes.order)} THEN UPDATE SET {_set(_values(names, changes), "n")}
        WHEN NOT MATCHED THEN INSERT ({plan.column_list}) VALUES ({_list("n.", names)})"""


def _sorted_source(plan: PostgresPlan, changes: Changes, where: str) -> tuple[list[str], str]:
    """The columns, and the query for the newest row of each key that no deletion keeps out."""
    names = [column.name for column in plan.columns]
    source = _newest(plan, changes, names, where)
    if changes.deletes:
        source = f"""SELECT * FROM ({source}) n WHERE NOT EXISTS (SELECT FROM {plan.tombstones} d
            WHERE {_same("d", "n", changes.key)} AND {_row("d", changes.order)} >= {_row("n", changes.order)})"""
    return names, source


def _values(names: Sequence[str], changes: Changes) -> list[str]:
    return [name for name in names if name not in changes.key]


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
