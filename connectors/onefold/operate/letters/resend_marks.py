"""Which dead letters were sent again: a table beside the ledger of the sink that has them.

A mark is there before the record is sent. SENDING means that whether it was is not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from onefold.clients.postgres import trust
from onefold.clients.postgres.sessions import Connection, create_beside_others
from onefold.operate.letters.letter import Mark, MarkState
from onefold.sinks.postgres.naming import SENT_AGAIN, TargetName
from onefold.sinks.postgres.sink_options import PostgresSinkConfig

_COLUMNS = """pipeline text, topic text, "partition" int, "offset" bigint, state text NOT NULL, at timestamptz NOT NULL,
 from_offset bigint NOT NULL, sent_offset bigint, PRIMARY KEY (pipeline, topic, "partition", "offset")"""


def marks_of(
    connection: Connection, settings: PostgresSinkConfig, pipeline: str
) -> Mapping[tuple[str, int, int], Mark]:
    """All marks of a pipeline, by topic, partition and offset. Makes nothing."""
    table = TargetName(settings.ledger, SENT_AGAIN).sql
    ((name,),) = connection.execute("SELECT to_regclass(%s)::text", (table,))
    if name is None:
        return {}
    _check(connection, settings)
    rows = connection.execute(
        f'SELECT topic, "partition", "offset", {_MARK} FROM {table} WHERE pipeline = %s'.encode(), (pipeline,)
    ).fetchall()
    return {(topic, partition, offset): _mark(*row) for topic, partition, offset, *row in rows}


def begin(
    connection: Connection, settings: PostgresSinkConfig, pipeline: str, place: tuple[str, int, int], end: int
) -> tuple[Mark, bool]:
    """The letter's mark, and whether it is a new one. `end` is where the partition ends now."""
    table = TargetName(settings.ledger, SENT_AGAIN).sql
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = on")  # a mark that is lost would have it sent twice
        create_beside_others(connection, f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})")
        _check(connection, settings)
        added = connection.execute(
            f"INSERT INTO {table} VALUES (%s, %s, %s, %s, 'sending', now(), %s, NULL) ON CONFLICT DO NOTHING".encode(),
            (pipeline, *place, end),
        ).rowcount
        ((*row,),) = connection.execute(
            f"SELECT {_MARK} FROM {table} WHERE {_ONE}".encode(), (pipeline, *place)
        ).fetchall()
    return _mark(*row), bool(added)


def finish(
    connection: Connection, settings: PostgresSinkConfig, pipeline: str, place: tuple[str, int, int], offset: int
) -> Mark:
    """It was sent, and is at this offset."""
    table = TargetName(settings.ledger, SENT_AGAIN).sql
    ((*row,),) = connection.execute(
        f"UPDATE {table} SET state = 'sent', at = now(), sent_offset = %s WHERE {_ONE} RETURNING {_MARK}".encode(),
        (offset, pipeline, *place),
    ).fetchall()
    return _mark(*row)


_MARK = "state, at, from_offset, sent_offset"
_ONE = 'pipeline = %s AND topic = %s AND "partition" = %s AND "offset" = %s'


def _mark(state: str, at: datetime, from_offset: int, sent_offset: int | None) -> Mark:
    return Mark(MarkState(state), at, from_offset, sent_offset)


def _check(connection: Connection, settings: PostgresSinkConfig) -> None:
    """Refuse a table of that name that somebody else made."""
    with connection.transaction():
        trust.check_ours(connection, [SENT_AGAIN], settings.ledger)
