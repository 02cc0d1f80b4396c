"""Which server this is: a replica that was promoted, or a restored backup, has the same address and another history.

A server's timeline number grows with each promotion and each restore to a point in time; the system identifier is made
with the cluster and copied to its replicas (Postgres manual, 25.3.6 and 9.28).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import psycopg

from onefold.clients.postgres.sessions import Connection

__all__ = ["ServerIdentity"]

# Of the WAL that is written now: pg_control_checkpoint() has the old timeline until the first checkpoint after it.
_TIMELINE = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Both are open to every role in Postgres itself; a managed server that hides them leaves None."""

    system: str | None
    timeline: int | None

    @classmethod
    def of(cls, connection: Connection) -> ServerIdentity:
        both = _asked(connection, f"SELECT ({_SYSTEM}), ({_TIMELINE})")
        system, timeline = both or (
            (_asked(connection, _SYSTEM) or [None])[0],
            (_asked(connection, _TIMELINE) or [None])[0],
        )
        return cls(system, int(timeline, 16) if timeline is not None else None)

    def became(self, now: ServerIdentity) -> str | None:
        """What happened between two looks, as a sentence's end; None if it is the same server as far as one can see."""
        if None not in (self.system, now.system) and self.system != now.system:
            return f"this is another server than before (system identifier {now.system}, it was {self.system})"
        if None not in (self.timeline, now.timeline) and self.timeline != now.timeline:
            return (
                f"this server is on timeline {now.timeline}, and was on {self.timeline}: a replica was promoted, or a "
                "backup restored"
            )
        return None


def _asked(connection: Connection, query: str) -> Sequence[str | None] | None:
    """The row; None where the server hides part of it."""
    is_idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    try:
        with nullcontext() if is_idle else connection.transaction():
            return connection.execute(query.encode()).fetchone()
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.FeatureNotSupported,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ):
        return None
