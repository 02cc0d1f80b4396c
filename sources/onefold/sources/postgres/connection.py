"""The driver's connections, for planning and for holding a snapshot. Data does not pass through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg.conninfo

from onefold.core.errors import ConfigError
from onefold.sources.postgres import errors

if TYPE_CHECKING:
    from onefold.sources.postgres.source import PostgresSource

__all__ = ["STARTED", "Connection", "begin", "connect", "conninfo", "session", "settings"]

Connection = psycopg.Connection[tuple[Any, ...]]

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


def conninfo(url: str) -> str:
    """`url` for libpq, with what a reader needs where `url` itself does not say otherwise."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # libpq's message would quote the text, password included.
        raise ConfigError(
            "the Postgres URL cannot be read: write postgresql://user:password@host:port/database, "
            "with odd characters percent-encoded"
        ) from None
    defaults: dict[str, Any] = {
        "connect_timeout": 10,
        "application_name": "onefold read",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    # Arrow's texts are UTF-8, whatever the database's encoding is.
    return psycopg.conninfo.make_conninfo(**{**defaults, **given, "client_encoding": "UTF8"})


def settings(source: PostgresSource, connection: Connection) -> dict[str, str | None]:
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


def begin(source: PostgresSource, connection: Connection, **more: str) -> None:
    """Start a transaction with our settings. READ COMMITTED: a later statement sees what an earlier one waited for."""
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
    connection.execute("SET LOCAL search_path = pg_catalog")  # behind a pooler others may have left theirs
    ours = settings(source, connection) | more
    names, values = list(ours), list(ours.values())
    set_all = "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS ours (name, value)"
    connection.execute(set_all, (names, values))


def connect(source: PostgresSource) -> Connection:
    """A connection outside any transaction, in autocommit. Raises Retriable or ConfigError."""
    info = conninfo(source.url)
    try:
        # Named statements would outlive their transaction, and meet another server process behind PgBouncer.
        return psycopg.connect(info, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise errors.of_connecting(error, psycopg.conninfo.conninfo_to_dict(info)) from None


@contextmanager
def session(source: PostgresSource, doing: str) -> Iterator[Connection]:
    """A connection in a read-only transaction for a block; Postgres's errors leave it as onefold's."""
    connection = connect(source)
    try:
        begin(source, connection)
        yield connection
    except psycopg.Error as error:
        raise errors.translate(error, doing) from error
    finally:
        connection.close()
