"""What Postgres answers a reader, as onefold's errors: the one place here that knows SQLSTATEs (manual, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import adbc_driver_manager
import psycopg

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, OutOfResources, Retriable, Terminal
from onefold.core.sql import libpq
from onefold.core.values.plain import SAID_MAX, plain

__all__ = ["not_held", "of_connecting", "of_importing", "translate"]


def said(error: Exception) -> str:
    """What the server said, on one line and without ADBC's additions."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary is not None:
        parts = [error.diag.message_primary, error.diag.message_detail, error.diag.message_hint]
        return plain("; ".join(" ".join(part.split()) for part in parts if part), SAID_MAX)
    text = str(error).split("\n\nQuery was:")[0]
    text = text.split("ERROR:", 1)[-1].split(". SQLSTATE:")[0]
    return plain(" ".join(text.split()), SAID_MAX)


def of_connecting(error: Exception, parameters: Mapping[str, Any]) -> OnefoldError:
    """libpq reports a refused connection as text only, without a SQLSTATE."""
    where = f"{parameters.get('host', 'local socket')}:{parameters.get('port', 5432)}"
    text = said(error)
    if password := parameters.get("password"):
        text = text.replace(str(password), "***")
    who = f"database {parameters.get('dbname')!r} as {parameters.get('user')!r} at {where}"
    if libpq.is_refusal(text):
        return ConfigError(f"Postgres refuses {who}: {text}. Mend the source's URL or the server's settings")
    if libpq.is_exhaustion(text):
        return OutOfResources(
            f"no connection to Postgres, {who}: {text}. Fewer parts at once (splits), or a higher max_connections"
            " (needs a restart); pg_stat_activity shows who holds them"
        )
    return Retriable(f"no connection to Postgres, {who}: {text}. Is the server up and within reach?")


def of_importing(error: Exception, snapshot: str, doing: str) -> OnefoldError:
    """The part's transaction could not take over the snapshot that all parts share."""
    if getattr(error, "sqlstate", None) not in ("42704", "22023"):
        return translate(error, doing)
    return not_held(snapshot, said(error), doing)


def not_held(snapshot: str, because: str, doing: str) -> Terminal:
    return Terminal(
        f"{doing}: the snapshot {snapshot} is not held any more, or not by this server ({because}). It ends with "
        "the connection that holds it: when `with source.frozen()` is left, hold_s have passed, the driver or Postgres "
        "was restarted; and several servers behind one address do not share it. Nothing was read: start the read again"
    )


def translate(error: Exception, doing: str) -> OnefoldError:
    """`doing` says what was tried, for people."""
    state = getattr(error, "sqlstate", None) or ""
    text = said(error)
    if not state and "ReadRecord failed" in text:
        return BadRecord(
            f"{doing}: a value cannot be read: {text}. Read that column as a string, or leave such rows out with where"
        )
    if not state and not isinstance(error, (psycopg.OperationalError, adbc_driver_manager.OperationalError)):
        return Terminal(f"{doing}: {type(error).__name__}: {text}")
    if not state or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P04"):
        return Retriable(
            f"{doing}: the connection to Postgres broke: {text}. Of this part nothing counts: it must be read again"
        )
    message = f"{doing}: {text} (SQLSTATE {state})"
    match state:
        case "57014":
            return Retriable(
                f"{message}. Somebody cancelled it, or it took longer than statement_timeout_s: raise that, or read in "
                "more and smaller parts (splits)"
            )
        case "55P03":
            return Retriable(
                f"{message}. Another session holds a lock on the table for longer than lock_timeout_s (ALTER TABLE, "
                "TRUNCATE, VACUUM FULL): pg_locks shows which; wait, or end it"
            )
        case "40001":
            return Retriable(
                f"{message}. On a standby, replaying the primary's changes ended this read: raise "
                "max_standby_streaming_delay, set hot_standby_feedback=on, or read from the primary"
            )
        case "42501":
            return ConfigError(
                f"{message}. The role of the source's URL needs USAGE on the schema, SELECT on the columns"
            )
        case "53400":
            return ConfigError(f"{message}. Raise that limit for this role, or lift it")
    if state[:2] == "53":
        return OutOfResources(message)
    if state[:2] == "22":
        return BadRecord(f"{message}. Mend that value, the query or where; or leave such rows or that column out")
    if state[:2] in ("40", "55", "57", "58"):
        return Retriable(message)
    if state[:2] in ("0A", "25", "28", "2B", "3D", "3F", "42"):
        return ConfigError(message)
    return Terminal(message)
