"""The driver's connections, for planning and holding a snapshot; and Postgres' answers as onefold's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import adbc_driver_manager
import psycopg
import psycopg.conninfo

from onefold.clients.postgres import sessions as clients
from onefold.clients.postgres import sqlstates
from onefold.clients.postgres.driver_errors import of_connecting, said, sqlstate
from onefold.clients.postgres.driver_errors import translate as of_server
from onefold.clients.postgres.sessions import Connection
from onefold.clients.sql.database_backend import Meaning
from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable, Terminal
from onefold.sources.postgres.source_options import PostgresSourceConfig

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
        raise translate(error, doing, connection) from error
    finally:
        connection.close()


_HINTS = {
    "57014": "Somebody cancelled it, or it took longer than statement_timeout_s: raise that, or read in more and"
    " smaller parts (splits)",
    "40001": "On a standby, replaying the primary's changes ended this read: raise max_standby_streaming_delay, set"
    " hot_standby_feedback=on, or read from the primary",
    "42501": "The role of the source's URL needs USAGE on the schema, SELECT on the columns",
}


def of_importing(error: Exception, snapshot: str, doing: str) -> OnefoldError:
    """The part's transaction could not take over the snapshot that all parts share."""
    if sqlstate(error) not in ("42704", "22023"):
        return translate(error, doing)
    return not_held(snapshot, said(error), doing)


def not_held(snapshot: str, because: str, doing: str) -> Retriable:
    return Retriable(
        "snapshot-not-held",
        f"{doing}: the snapshot {snapshot} is not held any more, or not by this server ({because}). It ends with "
        "the connection that holds it: when `with source.frozen()` is left, hold_s have passed, the driver or Postgres "
        "was restarted; and several servers behind one address do not share it. Nothing was read: start the read again,"
        " or raise hold_s where it takes longer",
    )


def translate(error: Exception, doing: str, connection: Connection | None = None) -> OnefoldError:
    """`doing` says what was tried, for people."""
    state, text = sqlstate(error), said(error)
    if not state and "ReadRecord failed" in text:
        return BadRecord(
            "value-not-readable",
            f"{doing}: a value cannot be read: {text}. Read that column as a string, or leave such rows out with where",
        )
    if not state and not isinstance(error, (psycopg.OperationalError, adbc_driver_manager.OperationalError)):
        return Terminal("postgres-client-error", f"{doing}: {type(error).__name__}: {text}")
    if state == "25006":  # the query writes, in a transaction that only reads
        return ConfigError("query-writes", f"{doing}: {text} (SQLSTATE {state})")
    if sqlstates.meaning(state, text) is Meaning.BAD_ROW:
        return BadRecord(
            "query-value-error",
            f"{doing}: {text} (SQLSTATE {state}). Mend that value, the query or where; or leave such rows or that"
            " column out",
        )
    return of_server(error, doing, connection, hints=_HINTS)
