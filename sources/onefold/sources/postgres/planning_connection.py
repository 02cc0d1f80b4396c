"""The driver's connections, for planning and for holding a snapshot. Data does not pass through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import psycopg.conninfo

from onefold.clients.postgres import sessions as clients
from onefold.clients.postgres.driver_errors import of_connecting
from onefold.clients.postgres.sessions import Connection
from onefold.core.errors import OnefoldError
from onefold.sources.postgres import reader_errors
from onefold.sources.postgres.source_options import PostgresSourceConfig

__all__ = ["STARTED", "Connection", "begin", "conninfo", "refused", "session", "settings", "take"]

# A server that was started again, or another behind the same address, gives out the same snapshot ids for others.
STARTED = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text AS started"

# How values look that travel as text: the same for every role, database and server.
_TEXTS = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}

_FEWER = "Fewer parts at once (splits)"


def conninfo(url: str) -> str:
    """`url` for libpq, with what a reader needs where `url` itself does not say otherwise. A standby will do."""
    return clients.conninfo(url, "read", 10, is_writer=False)


def refused(error: Exception, info: str) -> OnefoldError:
    """The error of connecting with `info`, psycopg's or ADBC's."""
    parameters = psycopg.conninfo.conninfo_to_dict(info)
    return of_connecting(error, parameters, "source", _FEWER)


def settings(source: PostgresSourceConfig, connection: Connection) -> dict[str, str | None]:
    """Settings of each transaction that plans or reads, None for the default. Not startup options: PgBouncer does not
    pass those on."""
    ours: dict[str, str | None] = {
        **_TEXTS,
        "statement_timeout": str(round(source.statement_timeout_s * 1000)),
        "lock_timeout": str(round(source.lock_timeout_s * 1000)),
    }
    if connection.info.server_version >= 170000:
        ours["transaction_timeout"] = "0"
    return ours


def begin(source: PostgresSourceConfig, connection: Connection, **more: str) -> None:
    """Start a transaction with our settings. READ COMMITTED: a later statement sees what an earlier one waited for."""
    # Behind a pooler others may have left their path.
    connection.outside(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL search_path = pg_catalog")
    ours = settings(source, connection) | more
    names, values = list(ours), list(ours.values())
    set_all = "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS ours (name, value)"
    connection.execute(set_all, (names, values))


def take(source: PostgresSourceConfig) -> Connection:
    """A connection outside any transaction. Raises Retriable or ConfigError."""
    return clients.take(conninfo(source.url), "source", _FEWER)


@contextmanager
def session(source: PostgresSourceConfig, doing: str) -> Iterator[Connection]:
    """A connection in a read-only transaction for a block; Postgres's errors leave it as onefold's. Others would not
    know what the role's settings have become since."""
    connection = take(source)
    try:
        begin(source, connection)
        yield connection
    except psycopg.Error as error:
        raise reader_errors.translate(error, doing, connection) from error
    finally:
        connection.close()
