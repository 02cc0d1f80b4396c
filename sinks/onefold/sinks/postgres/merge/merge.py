"""An epoch's staged rows into the target, all at once, or with those left out that Postgres refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres.quoting import identifier, literal, with_parameters
from onefold.clients.postgres.sessions import Connection
from onefold.core.errors import SchemaMismatch
from onefold.sinks.postgres.dead_letters import DeadLetter, PartRefused, isolate
from onefold.sinks.postgres.merge import tombstones
from onefold.sinks.postgres.merge.merge_sql import appending, apply, sort_in_memory
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema import target
from onefold.sinks.postgres.schema.column_comparison import columns_of
from onefold.sinks.postgres.sink_options import Delivery
from onefold.sinks.postgres.sink_plan import ATTEMPT, DELETED, PostgresPlan

__all__ = ["append", "merge_attempts"]


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
    connection: Connection, plan: PostgresPlan, attempts: Sequence[int], timestamp_ms: int, refused_max: int
) -> tuple[int, list[DeadLetter]]:
    """Apply the rows of these attempts, inside the caller's transaction; returns how many, and the refused ones.

    `timestamp_ms` is the epoch's T. Rows are refused one by one only where the plan has dead letters. Raises
    TooManyRefused beyond `refused_max`; SchemaMismatch where the target was altered meanwhile, and would cast values to
    others.
    """
    applied = _apply(connection, plan, attempts, timestamp_ms, refused_max)
    _check_types(connection, plan, target.types(connection, plan.target, list(plan.types)))  # now the target is locked
    return applied


def append(connection: Connection, plan: PostgresPlan, attempts: Sequence[int], limit: str) -> int:
    """The same of a plan without keys and dead letters, in one message, after the statement `limit`."""
    insert = with_parameters(appending(plan)) + f" WHERE s.{ATTEMPT} = ANY(%s)"
    asking = target.asking_types(plan.target, list(plan.types))
    inserted, found = connection.together((insert, (list(attempts),)), asking, before=limit)
    _check_types(connection, plan, dict(found.rows))
    return inserted.rowcount


def _check_types(connection: Connection, plan: PostgresPlan, types: Mapping[str, str]) -> None:
    """Types that became wider since the sink was opened take the staged values as they are; others round in silence."""
    if types == plan.types:
        return
    now = target.find(connection, TargetName.parse(plan.target))
    if now is None:
        raise SchemaMismatch(
            "table-dropped", f"table {plan.target} was dropped while rows were merged into it: start again"
        )
    columns_of(now, pa.schema([(column.name, column.source) for column in plan.columns]))


def _apply(
    connection: Connection, plan: PostgresPlan, attempts: Sequence[int], timestamp_ms: int, refused_max: int
) -> tuple[int, list[DeadLetter]]:
    where = f"s.{ATTEMPT} = ANY('{{{','.join(map(str, attempts))}}}'::bigint[])"
    if plan.changes is not None:
        sort_in_memory(connection)
    if plan.tombstones is not None and plan.delivery is Delivery.STAGED:
        tombstones.take_turns(connection, plan.tombstones)
    if plan.rejects is None:
        return apply(connection, plan, where, timestamp_ms), []
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a row that is refused at COMMIT could not be left out

    def attempt(where: str) -> int | PartRefused:
        try:
            with connection.transaction():
                return apply(connection, plan, where, timestamp_ms)
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
