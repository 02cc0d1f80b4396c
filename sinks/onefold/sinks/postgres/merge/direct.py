"""Rows that come to the driver with their attempts, as COPY takes them: into the target within the decision's first
message; or, where Postgres refused that, by a table of the session's own, from where they go on as a stage's rows do.

Nothing of them is anywhere before the decision, so that nothing is left of an attempt which is not decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from onefold.clients.postgres.message import CopyData, Statement
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.sessions import Connection
from onefold.clients.sql.database_backend import Answer
from onefold.core.checks import require
from onefold.core.contract import Committable
from onefold.core.errors import Retriable, WorkLost
from onefold.sinks.postgres.copy.encoding import Encoding
from onefold.sinks.postgres.merge.merge import SORT_MEMORY, appending, merge_attempts, upserting
from onefold.sinks.postgres.schema.target import asking_types
from onefold.sinks.postgres.sink_plan import PostgresPlan
from onefold.sinks.staged.attempts import check_moved

WITHOUT_STAGE = "direct"  # in a handle, in the place of a stage's name
# Of COPY's binary format (Postgres manual, COPY): the signature, no flags, no extension; and the end.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_HASTY = "SET LOCAL lock_timeout = 1000", None


def is_direct(committable: Committable) -> bool:
    return committable.handle.startswith(f"{WITHOUT_STAGE}/")


def encoded(plan: PostgresPlan, attempt: int, batches: Sequence[pa.RecordBatch]) -> bytes:
    """The rows without header and trailer, so that those of several attempts go into one COPY. Raises ValueError for
    values that Postgres cannot hold."""
    encoding = _encoding(plan, attempt)
    encoder = encoding.encoder()
    pieces = [encoder.write_header(), *(encoder.write_batch(encoding.wire(batch)) for batch in batches)]
    data = b"".join([*pieces, encoder.finish()])
    require(data.startswith(_HEADER) and data.endswith(_TRAILER), "COPY's binary format is not as it was")
    return data[len(_HEADER) : -len(_TRAILER)]


def verify(committables: Sequence[Committable], where: str) -> None:
    """Raise WorkLost for an attempt that came without its rows."""
    for committable in committables:
        if is_direct(committable) and not committable.payload:
            raise WorkLost(
                "rows-not-carried",
                f"{where}, epoch {committable.epoch}: {committable.rows} rows were to come with attempt"
                f" {committable.handle}, and did not. The epoch's writers must run again",
            )


def joined(plan: PostgresPlan, committables: Sequence[Committable]) -> list[Statement]:
    """Moves the rows of a plan without dead letters and deletions, and then asks for the target's types. It waits for
    others' locks for a moment only: `merge` has the time. Where rows have keys all have come before one is written: a
    driver that is frozen in COPY would keep its successor from the same keys."""
    asking = asking_types(plan.target, list(plan.types))
    if plan.changes is None and not plan.has_unique:
        return [_HASTY, _loading(plan, committables, plan.target), asking]
    by, _ = _through_temporary(plan)
    loaded = [_HASTY, *loading(plan, committables)]
    if plan.changes is None:
        return [*loaded, (appending(by), None), asking]
    return [*loaded, (SORT_MEMORY, None), (upserting(by, plan.changes), None), asking]


def check_joined(
    plan: PostgresPlan, committables: Sequence[Committable], answers: Sequence[Answer], where: str
) -> None:
    """What `joined` was answered. Raises WorkLost; Retriable where the target was altered since the sink was opened:
    COPY takes bytes for whatever type the column has."""
    copied, types = answers[-2 if plan.changes is None else 2], dict(answers[-1].rows)
    check_moved(where, copied.rowcount, sum(committable.rows for committable in committables))
    if types != plan.types:
        raise Retriable("table-altered", f"{where}: the table was altered since the sink was opened")


def loading(plan: PostgresPlan, committables: Sequence[Committable]) -> list[Statement]:
    """Sends the rows into the session's own table: before the pipeline is locked, since no time limit reaches a COPY
    whose client is frozen."""
    _, table = _through_temporary(plan)
    return [_making(plan), _loading(plan, committables, table)]


def merge(
    connection: Connection,
    plan: PostgresPlan,
    committables: Sequence[Committable],
    timestamp_ms: int,
    lock_timeout_s: float,
    where: str,
) -> None:
    """By the session's own table, inside the store's transaction, which has loaded it already or does so now. Raises
    WorkLost unless exactly these rows moved."""
    by, table = _through_temporary(plan)
    waiting = f"SET LOCAL lock_timeout = {int(lock_timeout_s * 1000)}", None
    *_, loaded = connection.together(waiting, _making(plan), (f"SELECT FROM {table} LIMIT 1", None))
    if not loaded.rows:
        connection.together(_loading(plan, committables, table))
    moved, _ = merge_attempts(connection, by, None, timestamp_ms, 0)
    check_moved(where, moved, sum(committable.rows for committable in committables))


def _loading(plan: PostgresPlan, committables: Sequence[Committable], table: str) -> Statement:
    payloads = [committable.payload for committable in committables]
    return _encoding(plan, 0).copying(table), CopyData((_HEADER, *payloads, _TRAILER))


def _encoding(plan: PostgresPlan, attempt: int) -> Encoding:
    """Appended rows are as the target has them, others as a stage has."""
    return Encoding(plan if plan.changes is not None else replace(plan, stage_table=None), attempt)


def _through_temporary(plan: PostgresPlan) -> tuple[PostgresPlan, str]:
    """The plan with the session's own table, which no other session can have made, as its stage."""
    table = f"pg_temp.{identifier(plan.stage)}"
    return replace(plan, stage_table=table), table


def _making(plan: PostgresPlan) -> Statement:
    """Makes the session's own table, unless this transaction has. It does not stay: nobody vacuums it but its session,
    so that one of a driver that lives for weeks would keep the whole database's oldest transaction number."""
    columns = ", ".join(f"{identifier(column)} {kind}" for column, kind in plan.stage_columns)
    return f"CREATE TEMP TABLE IF NOT EXISTS {identifier(plan.stage)} ({columns}) ON COMMIT DROP", None
