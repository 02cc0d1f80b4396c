"""What Postgres answers a reader, as onefold's errors."""

from __future__ import annotations

import adbc_driver_manager
import psycopg

from onefold.clients.postgres import sqlstates
from onefold.clients.postgres.driver_errors import said, sqlstate
from onefold.clients.postgres.driver_errors import translate as of_server
from onefold.clients.postgres.sessions import Connection
from onefold.clients.sql.database_backend import Meaning
from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable, Terminal

__all__ = ["not_held", "of_importing", "translate"]

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
