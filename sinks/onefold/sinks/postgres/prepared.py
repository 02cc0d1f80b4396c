"""The end of a prepared transaction, whoever prepared it. It fails in its own ways (twophase.c, LockGXact).

Any role can prepare a transaction under a name that looks like ours, also under one that ours had until it was
committed. So that a name is there says nothing of whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from onefold.clients.postgres import driver_errors
from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import identifier, literal
from onefold.core.contract import Committable
from onefold.core.errors import ConfigError, InDoubt, OnefoldError, Retriable
from onefold.core.failpoints import failpoint

_A_SESSION, _SESSIONS_MAX = 4, 4  # transactions that are worth one more session to commit them, and how many are had


class NotOurs(ConfigError):
    """A prepared transaction that this session may not end: a role prepared it, or a database, that is not its own."""


@dataclass(frozen=True, slots=True)
class Other:
    """Prepared by a role that this session is no member of. `owner` is None for one that was dropped."""

    gid: str
    owner: str | None


def named(connection: pool.Connection, prefix: str) -> tuple[set[str], list[Other]]:
    """The prepared transactions of this database with that prefix: those that this session may end, and the others.

    It may set its role to whatever the login is a member of, also where it works as another role."""
    (found,) = connection.together(asking_named(prefix))
    return told_apart(found.rows)


def asking_named(prefix: str) -> Statement:
    """Answers with what `told_apart` tells apart, and `named` returns."""
    return (
        """SELECT gid, owner,
                  coalesce(pg_has_role(session_user, owner, 'MEMBER'), current_setting('is_superuser')::boolean)
           FROM pg_prepared_xacts WHERE starts_with(gid, %s) AND database = current_database() ORDER BY gid""",
        (prefix,),
    )


def told_apart(rows: Sequence[Any]) -> tuple[set[str], list[Other]]:
    return {gid for gid, _, is_ours in rows if is_ours}, [
        Other(gid, owner) for gid, owner, is_ours in rows if not is_ours
    ]


def sessions_for(transactions: int) -> int:
    """How many sessions to commit that many prepared transactions in. Each waits for the disk, and those of several
    sessions that wait at once share one write."""
    return min(-(-transactions // _A_SESSION), _SESSIONS_MAX)


def commit_all(
    sessions: Sequence[pool.Connection], committables: Sequence[Committable], where: str
) -> dict[str, NotOurs]:
    """COMMIT PREPARED of each, in whatever order the sessions come to it: what one fails at, the others go on without.
    Returns those that are not ours to commit, by their names."""
    left, refused, failures = iter(committables), dict[str, NotOurs](), list[BaseException]()

    def commit(connection: pool.Connection) -> None:
        try:
            while (committable := next(left, None)) is not None:
                try:
                    end(connection, "COMMIT", committable, where, InDoubt)
                except NotOurs as error:
                    refused[committable.handle] = error
                failpoint("postgres.commit_prepared")
        except BaseException as error:  # of this thread, too: first the others are at their ends
            failures.append(error)

    with ThreadPoolExecutor(len(sessions), "onefold-commit") as others:
        with suppress(RuntimeError):  # no thread can be started: then with those that there are
            for each in sessions[1:]:
                others.submit(commit, each)
        commit(sessions[0])
    if failures:
        raise failures[0]
    return refused


def end(
    connection: pool.Connection,
    verb: Literal["COMMIT", "ROLLBACK"],
    committable: Committable,
    where: str,
    lost: type[Retriable | InDoubt],
) -> bool:
    """COMMIT or ROLLBACK PREPARED, as the owner if need be. False if there is no such transaction."""
    statement = f"{verb} PREPARED {literal(committable.handle)}".encode()
    try:
        try:
            connection.outside(statement)
        except psycopg.errors.InsufficientPrivilege:
            owner = _other_owner(connection, committable)
            if owner is None or connection.is_pooled:
                raise
            _as_owner(connection, owner, statement)
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.Error as error:
        doing = f"{where}, {verb} PREPARED {committable.handle!r} of epoch {committable.epoch}"
        raise _translated(error, doing, connection, committable, lost) from error
    return True


def _other_owner(connection: pool.Connection, committable: Committable) -> str | None:
    """Only a superuser and the role that prepared a transaction may end it."""
    row = connection.execute(
        "SELECT owner FROM pg_prepared_xacts WHERE gid = %s AND owner <> current_user", (committable.handle,)
    ).fetchone()
    return row[0] if row is not None else None


def _as_owner(connection: pool.Connection, owner: str, statement: bytes) -> None:
    connection.outside(f"SET ROLE {identifier(owner)}".encode())
    try:
        connection.outside(statement)
    finally:
        if not connection.closed:
            connection.outside(b"RESET ROLE")


def _translated(
    error: psycopg.Error,
    doing: str,
    connection: pool.Connection,
    committable: Committable,
    lost: type[Retriable | InDoubt],
) -> OnefoldError:
    match error:
        case psycopg.errors.InsufficientPrivilege():
            row = connection.execute(
                "SELECT owner, session_user, pg_has_role(owner, 'MEMBER') FROM pg_prepared_xacts WHERE gid = %s",
                (committable.handle,),
            ).fetchone()
            owner, user, is_member = row or ("another role", "this role", False)
            belongs = f"{doing}: it belongs to role {owner!r}, and this session is {user!r}'s"
            if is_member and connection.is_pooled:
                return ConfigError(
                    "pooler-set-role",
                    f"{belongs}, through a pooler, where SET ROLE could reach somebody else's session. Start once with "
                    f"the server's own address, or make it the login's default: ALTER ROLE {user} SET role = '{owner}'",
                )
            return NotOurs(
                "transaction-of-another-role",
                f"{belongs}, who is no member of it: GRANT {identifier(owner)} TO {identifier(user)}, so that it can "
                f"SET ROLE, or connect as {owner!r}. PostgresSink(..., role={owner!r}) then keeps all work in one hand",
            )
        case psycopg.errors.ObjectNotInPrerequisiteState():
            return Retriable(
                "transaction-busy", f"{doing}: another committer is busy with it just now: {driver_errors.said(error)}"
            )
        case psycopg.errors.FeatureNotSupported() if "during recovery" not in driver_errors.said(error):
            return NotOurs(
                "transaction-of-another-database",
                f"{doing}: it was prepared in another database: {driver_errors.said(error)}. "
                "Set the sink's URL back to that database, and start again",
            )
        case _:
            return driver_errors.translate(error, doing, connection, lost=lost)
