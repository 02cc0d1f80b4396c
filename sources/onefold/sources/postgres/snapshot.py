"""A snapshot that a connection of this process holds, for the parts to read it from other processes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psycopg

from onefold.sources.postgres import reader_errors
from onefold.sources.postgres.planning_connection import STARTED, Connection, begin, take
from onefold.sources.postgres.relation import find
from onefold.sources.postgres.source_options import PostgresSourceConfig

__all__ = ["HeldSnapshot", "hold"]


@dataclass(frozen=True)
class HeldSnapshot:
    id: str  # what pg_export_snapshot() says, and which server said it: "00000005-00000002-1@1763714000123456"
    connection: Connection

    def release(self) -> None:
        with contextlib.suppress(psycopg.Error):  # whatever is wrong with it, it holds nothing any more
            self.connection.close()


def hold(source: PostgresSourceConfig) -> HeldSnapshot:
    """Lock what the source names, then export a snapshot. Raises `ConfigError`, `Retriable`."""
    connection = take(source)
    try:
        begin(source, connection, idle_in_transaction_session_timeout=str(round(source.hold_s * 1000)))
        # The snapshot is this last statement's, so it is younger than the locks. A repeatable read's would be the
        # first statement's, and would see a table that is truncated before it is locked as empty.
        find(connection, source)
        (row,) = connection.execute(f"SELECT pg_export_snapshot(), ({STARTED})")
        return HeldSnapshot("@".join(row), connection)
    except psycopg.Error as error:
        translated = reader_errors.translate(error, f"taking a snapshot for {source.name}", connection)
        connection.close()
        raise translated from error
    except BaseException:
        connection.close()
        raise
