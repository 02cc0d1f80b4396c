"""Postgres's errors as onefold's: the one place that knows SQLSTATEs (Postgres manual, appendix A)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable, Terminal

__all__ = ["copied_row", "is_refusal", "of_connecting", "said", "translate"]

_CONFIG_HINTS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "authentication failed",
    "is not permitted to log in",
    "server does not support SSL",
)


def said(error: psycopg.Error) -> str:
    """What the server said: message, detail, hint and place, on one line."""
    diag = error.diag
    if diag.message_primary is None:
        return " ".join(str(error).split())
    parts = [diag.message_primary, diag.message_detail, diag.message_hint]
    if diag.context:
        parts.append(diag.context.splitlines()[-1])
    return "; ".join(" ".join(part.split()) for part in parts if part)


def is_refusal(error: psycopg.Error) -> bool:
    """Whether a row as such was refused: its values, a constraint, a trigger's RAISE, a view's CHECK OPTION."""
    state = error.sqlstate or ""
    return (state[:2] in ("22", "23") and state != "22P03") or state in ("P0001", "44000")


def copied_row(error: psycopg.Error) -> int | None:
    """Which row of a COPY it was, from 0, by the error's context: `COPY orders, line 3, column amount`."""
    found = re.match(r"COPY .*?, \w+ (\d+)", error.diag.context or "")
    return int(found[1]) - 1 if found else None


def of_connecting(error: psycopg.Error, parameters: Mapping[str, Any]) -> OnefoldError:
    """libpq reports a refused connection as text only, without a SQLSTATE."""
    where = f"{parameters.get('host', 'local socket')}:{parameters.get('port', 5432)}"
    text = " ".join(str(error).split())
    password = parameters.get("password")
    if password:
        text = text.replace(str(password), "***")
    who = f"database {parameters.get('dbname')!r} as {parameters.get('user')!r} at {where}"
    if any(hint in text for hint in _CONFIG_HINTS):
        return ConfigError(f"Postgres refuses {who}: {text}. Mend the sink's URL or the server's settings")
    return Retriable(f"no connection to Postgres, {who}: {text}. Is the server up and within reach?")


def translate(
    error: psycopg.Error,
    doing: str,
    connection: psycopg.Connection[tuple[Any, ...]] | None = None,
    *,
    lost: type[OnefoldError] = Retriable,
) -> OnefoldError:
    """`doing` says what was tried, for people; `lost` is what a connection that broke meanwhile means there."""
    state = error.sqlstate or ""
    text = said(error)
    broken = connection is not None and connection.closed
    if state == "22P03" or (state == "08P01" and "insufficient data" in text):  # values of another width
        return Retriable(f"{doing}: {text}. The table was altered since the sink was opened: start the pipeline again")
    if broken or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P04") or not state:
        if not broken and not state and not isinstance(error, psycopg.OperationalError):
            return Terminal(f"{doing}: {type(error).__name__}: {text}")
        return lost(f"{doing}: the connection to Postgres broke: {text}")
    message = f"{doing}: {text} (SQLSTATE {state})"
    if state == "55P03":
        return Retriable(f"{doing}: waited for a lock for longer than lock_timeout_s. {_holders(connection)}")
    if state == "55000" and "prepared transactions are disabled" in text:
        return ConfigError(f"{message}. Set max_prepared_transactions and restart the server, or delivery='staged'")
    if state == "53200" and "prepared transactions" in text:
        return Retriable(
            f"{message}. All of the server's slots are taken: fewer writers, a higher max_prepared_transactions "
            "(needs a restart), or delivery='staged'; pg_prepared_xacts shows who holds them"
        )
    if is_refusal(error):
        return BadRecord(
            f"{message}. Postgres refuses a row: mend or filter it before the sink, alter the table, or have such rows"
            " put aside with on_error='dead_letter'"
        )
    if state[:2] in ("40", "53", "55", "57", "58") or state == "25006":
        return Retriable(message)
    if state[:2] in ("0A", "28", "2B", "3D", "3F", "42"):
        return ConfigError(message)
    return Terminal(message)


_HOLDERS = """
SELECT l.relation::regclass::text, l.mode, l.pid, p.gid, a.application_name
FROM pg_locks l
LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
     AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_class c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid IS DISTINCT FROM pg_backend_pid() AND l.mode <> 'AccessShareLock' AND c.relkind IN ('r', 'p')
  AND c.relnamespace <> 'pg_catalog'::regnamespace
ORDER BY l.mode = 'AccessExclusiveLock' DESC, p.prepared, l.pid LIMIT 5
"""


def _holders(connection: psycopg.Connection[tuple[Any, ...]] | None) -> str:
    """Who holds locks here, on a best effort: the wait is over, so the server no longer says who blocked it."""
    if connection is None or connection.closed:
        return "pg_locks and pg_prepared_xacts show who holds it"
    try:
        if connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            connection.rollback()
        rows = connection.execute(_HOLDERS).fetchall()
    except psycopg.Error:
        rows = []
    if not rows:
        return "Nobody holds a lock on a table any more: try again"
    holders = [
        f"{relation} {mode} by "
        + (f"prepared transaction {gid!r}" if gid is not None else f"pid {pid} ({application or 'unnamed'})")
        for relation, mode, pid, gid, application in rows
    ]
    return (
        f"Held now: {'; '.join(holders)}. End a session with pg_terminate_backend(pid), an orphaned transaction with "
        "ROLLBACK PREPARED"
    )
