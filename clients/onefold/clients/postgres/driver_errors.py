"""Postgres's errors as onefold's, of psycopg and of ADBC, for source and sink. What a SQLSTATE means is core's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg

from onefold.clients.postgres import sqlstates
from onefold.clients.sql.database_backend import Meaning
from onefold.core.errors import BadRecord, ConfigError, InDoubt, OnefoldError, OutOfResources, Retriable, Terminal
from onefold.core.values.plain import SAID_MAX, plain

_LOCK_TIMEOUT = "55P03"
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


def sqlstate(error: Exception) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def said(error: Exception) -> str:
    """What the server said: message, detail, hint and place, on one line, without ADBC's additions."""
    if not isinstance(error, psycopg.Error):
        text = str(error).split("\n\nQuery was:")[0].split("ERROR:", 1)[-1].split(". SQLSTATE:")[0]
        return plain(" ".join(text.split()), SAID_MAX)
    diag = error.diag
    if diag.message_primary is None:
        return plain(" ".join(str(error).split()), SAID_MAX)
    parts = [diag.message_primary, diag.message_detail, diag.message_hint]
    if diag.context:
        parts.append(diag.context.splitlines()[-1])
    return plain("; ".join(" ".join(part.split()) for part in parts if part), SAID_MAX)


def is_refusal(error: psycopg.Error) -> bool:
    """Whether a row as such was refused: its values or size, a constraint, a trigger."""
    # 22P03: COPY's values are of another type than the column's.
    return sqlstates.refuses_row(sqlstate(error)) and sqlstate(error) != "22P03"


def refuses_ddl(error: psycopg.Error) -> bool:
    """Whether a statement that alters a table was refused as such: that says nothing of the server's health."""
    return sqlstates.meaning(sqlstate(error), said(error)) in (Meaning.BAD_ROW, Meaning.HOPELESS)


def copied_row(error: psycopg.Error) -> int | None:
    """Which row of a COPY it was, from 0, by the error's context: `COPY orders, line 3, column amount`."""
    found = re.match(r"COPY .*?, \w+ (\d+)", error.diag.context or "")
    return int(found[1]) - 1 if found else None


def of_connecting(error: Exception, parameters: Mapping[str, Any], whose: str, fewer: str) -> OnefoldError:
    """libpq reports a refused connection as text only, without a SQLSTATE. `whose` is source or sink, and `fewer` what
    needs fewer connections."""
    where = f"{parameters.get('host', 'local socket')}:{parameters.get('port', 5432)}"
    if "service" in parameters:
        where = f"what service {parameters['service']!r} says"
    text = " ".join(str(error).split()) if isinstance(error, psycopg.Error) else said(error)
    for secret in (os.environ.get("PGPASSWORD"), *(parameters.get(name) for name in _SECRETS)):
        if secret:
            text = text.replace(str(secret), "***")
    text = text.rstrip(".?")  # a sentence follows
    role = f" as {parameters['user']!r}" if "user" in parameters else ""
    who = f"database {parameters.get('dbname')!r}{role} at {where}"
    failed = f"no connection to Postgres, {who}: {text}"
    meaning = sqlstates.meaning("", text)
    if meaning is Meaning.HOPELESS:
        return ConfigError(
            "postgres-connection-refused", f"Postgres refuses {who}: {text}. {_remedy(text, parameters, whose)}"
        )
    if meaning is Meaning.EXHAUSTED:
        return OutOfResources(
            "postgres-connections-exhausted",
            f"{failed}. {fewer}, a higher max_connections (needs a restart), or a pooler; pg_stat_activity shows who"
            " holds them",
        )
    if meaning is Meaning.PASSING:
        return Retriable("postgres-read-only", f"{failed}. {sqlstates.READ_ONLY}")
    return Retriable("postgres-unreachable", f"{failed}. Is the server up and within reach?")


def _remedy(text: str, parameters: Mapping[str, Any], whose: str) -> str:
    if "password" in text:
        if parameters.get("password"):
            source = "It came with the URL: give the new one there, and start again"
        elif os.environ.get("PGPASSWORD"):
            source = "It came from PGPASSWORD: set that anew, in the driver and the executors, and start again"
        else:
            file = parameters.get("passfile") or os.environ.get("PGPASSFILE") or "~/.pgpass"
            source = (
                f"libpq looks for it in {file} on each connect, on every machine that runs tasks: a line "
                "host:port:database:user:password, in a file that only its owner may read (chmod 600)"
            )
        return f"{source}. Nothing is lost: what was decided is finished on the next start"
    if "unsupported startup parameter" in text:
        return (
            "PgBouncer takes no startup parameter `options`: leave options and role= out, and set them in the server "
            "(ALTER ROLE ... SET ...), or connect to the server directly"
        )
    if "SSL" in text or "certificate" in text or "private key" in text:
        return "Mend sslmode, sslrootcert, sslcert or sslkey in the URL, or the server's certificate"
    return f"Mend the {whose}'s URL or the server's settings"


def _is_of_another_width(state: str, text: str) -> bool:
    """COPY's values are of a type that the column no longer has."""
    return (
        state == "22P03"
        or (state == "08P01" and "insufficient data" in text)
        or (state == "42804" and "binary data has array element type" in text)
    )


_HINTS = {
    "53400": "Raise that limit for this role, or lift it",
    "53100": "The server's disk is full: nothing is lost, and it goes on once there is room",
}
_OF_A_SINK = {
    "57014": "Somebody cancelled it, or statement_timeout did, which counts here only where the URL's own options set"
    " it",
    "42501": "GRANT that to the role of the sink's URL, or name one that has it as role=...:"
    " docs/postgres-connections.md says what it needs",
}


def translate(
    error: Exception,
    doing: str,
    connection: psycopg.Connection[tuple[Any, ...]] | None = None,
    *,
    lost: type[Retriable | InDoubt] = Retriable,
    hints: Mapping[str, str] = _OF_A_SINK,
) -> OnefoldError:
    """An error of psycopg's or ADBC's. `doing` says what was tried, for people; `lost` is what a connection that broke
    meanwhile means there; `hints` what to do, by SQLSTATE."""
    state, text = sqlstate(error), said(error)
    meaning = sqlstates.meaning(state, text)
    is_broken = connection is not None and connection.closed
    if _is_of_another_width(state, text):
        return Retriable(
            "table-altered",
            f"{doing}: {text}. The table was altered since the sink was opened: start the pipeline again",
        )
    if (
        not is_broken
        and not state
        and isinstance(error, psycopg.Error)
        and not isinstance(error, psycopg.OperationalError)
    ):
        return Terminal("postgres-client-error", f"{doing}: {type(error).__name__}: {text}")
    if is_broken or meaning is Meaning.BROKEN or not state:
        if lost is InDoubt:
            return InDoubt("commit-unanswered", f"{doing}: the connection to Postgres broke: {text}")
        return Retriable("postgres-connection-lost", f"{doing}: the connection to Postgres broke: {text}")
    message = f"{doing}: {text} (SQLSTATE {state})"
    if state == _LOCK_TIMEOUT:
        return Retriable(
            "lock-timeout", f"{doing}: waited for a lock for longer than lock_timeout_s. {_holders(connection)}"
        )
    if state == "55000" and "prepared transactions are disabled" in text:
        return ConfigError(
            "prepared-transactions-disabled",
            f"{message}. Set max_prepared_transactions and restart the server, or delivery='staged'",
        )
    if sqlstates.lacks_identity(state, text):
        return ConfigError("replica-identity-missing", f"{message}. {sqlstates.REPLICA_IDENTITY}")
    if state == "53200" and "prepared transactions" in text:
        return OutOfResources(
            "prepared-transactions-exhausted",
            f"{message}. All of the server's slots are taken: {_slots(connection)}. Fewer writers, a higher "
            "max_prepared_transactions (needs a restart), or delivery='staged'",
        )
    if meaning is Meaning.BAD_ROW:
        upsert = ", take mode='upsert' for a key that is there already" if state == "23505" else ""
        return BadRecord(
            "row-refused",
            f"{message}. Postgres refuses a row: mend or filter it before the sink, alter the table{upsert}, or have"
            " such rows put aside with on_error='dead_letter'",
        )
    hint = sqlstates.READ_ONLY if sqlstates.is_read_only(text) else {**_HINTS, **hints}.get(state)
    return by_meaning(meaning, f"{message}. {hint}" if hint else message)


def by_meaning(meaning: Meaning, message: str) -> OnefoldError:
    """What an error with that meaning is, where no more is known."""
    match meaning:
        case Meaning.BAD_ROW:
            return BadRecord("row-refused", message)
        case Meaning.HOPELESS:
            return ConfigError("postgres-refuses", message)
        case Meaning.EXHAUSTED:
            return OutOfResources("postgres-resources-exhausted", message)
        case Meaning.PASSING | Meaning.BROKEN:
            return Retriable("postgres-unavailable", message)
        case Meaning.UNKNOWN:
            return Terminal("postgres-error", message)


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


_SLOTS = """
SELECT gid, owner, database, date_trunc('second', now() - prepared)::text, count(*) OVER ()
FROM pg_prepared_xacts ORDER BY prepared LIMIT 5
"""


def _slots(connection: psycopg.Connection[tuple[Any, ...]] | None) -> str:
    """Who holds the slots for prepared transactions, the oldest first, on a best effort."""
    rows: list[tuple[Any, ...]] = []
    if connection is not None and not connection.closed:
        with suppress(psycopg.Error):
            if connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
                connection.rollback()
            rows = connection.execute(_SLOTS).fetchall()
    if not rows:
        return "pg_prepared_xacts shows by whom"
    held = [f"{gid!r} of role {owner!r} in database {database!r} for {age}" for gid, owner, database, age, _ in rows]
    more = rows[0][4] - len(rows)
    return f"{'; '.join(held)}{f'; and {more} more' if more else ''}"
