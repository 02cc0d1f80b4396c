"""An operator's view of one database: what is prepared in it, whose it is, and a hand to finish it with.

Looking makes nothing. Prepared transactions are the whole server's: those of other databases show,
and can only be finished from a connection to theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime

import psycopg.conninfo

from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.quoting import identifier
from onefold.clients.postgres.store import store_url
from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import ConfigError, Retriable
from onefold.sinks.postgres import prepared
from onefold.sinks.postgres.committer import PostgresCommitter
from onefold.sinks.postgres.ledger import layout, pruning
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.ledger.pruning import KeptOfSink
from onefold.sinks.postgres.naming import BOOKKEEPING, Gid, TargetName, gid_prefix, names_in
from onefold.sinks.postgres.sink_options import PostgresSinkConfig


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction as the server lists it. `gid` is None for other people's; names are None where cut.

    A name says nothing of whose it is: `is_ours` is whether this session may end it."""

    name: str
    owner: str
    database: str
    is_here: bool
    is_ours: bool
    prepared_at: datetime
    age_s: float
    gid: Gid | None
    pipeline: str | None
    sink: str | None


@dataclass(frozen=True, slots=True)
class Operations:
    """`url` is what libpq takes; `schema` is the sinks' `ledger`."""

    url: str = field(repr=False)  # it may hold a password
    schema: str = BOOKKEEPING

    def server(self) -> str:
        """Host, port and database, as this session reaches them."""
        with self.connected("asking for the server's address") as connection:
            return f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"

    def store_url(self) -> str:
        return store_url(self.url, schema=self.schema)

    def prepared(self) -> list[PreparedTransaction]:
        """All of them, the oldest first."""
        known = {gid_prefix(*pair, self.schema): pair for pair in self.sinks()}
        with self.connected("listing prepared transactions") as connection:
            rows = connection.execute(
                """SELECT gid, coalesce(owner, 'a dropped role'), database, database = current_database(),
                          coalesce(pg_has_role(session_user, owner, 'MEMBER'), rolsuper), prepared,
                          extract(epoch FROM now() - prepared)::float8
                   FROM pg_prepared_xacts, pg_roles WHERE rolname = current_user ORDER BY prepared, gid"""
            ).fetchall()
        found = []
        for name, owner, database, is_here, is_ours, prepared_at, age_s in rows:
            gid = Gid.parse_any(name)
            names = (known.get(gid.prefix) or names_in(gid.prefix)) if gid else None
            found.append(
                PreparedTransaction(
                    name, owner, database, is_here, is_ours, prepared_at, age_s, gid, *(names or (None, None))
                )
            )
        return found

    def has_tables(self) -> bool:
        """Whether the bookkeeping is there. Raises ConfigError for a layout that is too new."""
        with self.connected("looking for the bookkeeping") as connection:
            return layout.is_there(connection, self.schema, to_look=True)

    def sinks(self) -> list[tuple[str, str]]:
        """Every (pipeline, sink) that was ever opened here."""
        if not self.has_tables():
            return []
        with self.connected("reading the ledger") as connection:
            table = f"{identifier(self.schema)}.onefold_ledger"
            rows = connection.execute(f"SELECT pipeline, sink FROM {table} ORDER BY 1, 2".encode()).fetchall()
        return [(pipeline, sink) for pipeline, sink in rows]

    def kept(self) -> tuple[list[KeptOfSink], list[str]]:
        """What is kept for every sink, and stage tables that belong to none."""
        if not self.has_tables():
            return [], []
        with self.connected("reading the bookkeeping") as connection:
            return pruning.kept(connection, self.schema), pruning.unowned_stages(connection, self.schema)

    def remove(self, found: KeptOfSink | str) -> None:
        """A sink's bookkeeping, or a stage table alone."""
        with self.connected("pruning the bookkeeping") as connection:
            pruning.remove(connection, self.schema, found)

    def roll_back(self, transactions: Iterable[PreparedTransaction]) -> None:
        """End them, whatever a manifest says of them. Raises ConfigError for another role's."""
        with self.connected("rolling back prepared transactions") as connection:
            for transaction in transactions:
                epoch = transaction.gid.epoch if transaction.gid is not None else 0
                work = Committable(transaction.sink or "", SinkKind.TWO_PHASE, transaction.name, 0, epoch, 0)
                prepared.end(connection, "ROLLBACK", work, f"pipeline {transaction.pipeline!r}", Retriable)

    def sessions(self, pipeline: str) -> int:
        """How many sessions are connected here under the name that drivers and tasks of this pipeline use."""
        name = psycopg.conninfo.conninfo_to_dict(pool.conninfo(self.url, pipeline, 10))["application_name"]
        with self.connected("looking for sessions") as connection:
            ((count,),) = connection.execute(
                """SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()""",
                (name,),
            )
        return int(count)

    def committer(self, pipeline: str, sink: str, owners: Iterable[str] = ()) -> PostgresCommitter:
        """A sink's committer, as the role that prepared what it has to finish. Raises ConfigError if this can't be."""
        role = self._role_for(sorted(set(owners)))
        table = str(TargetName(None, sink))  # a committer that was not opened touches none
        settings = PostgresSinkConfig(self.url, table, name=sink, lock_timeout_s=10, ledger=self.schema, role=role)
        return PostgresCommitter(settings, pipeline, None)

    def register(self, pipeline: str, sink: str) -> None:
        """Puts the sink's row into the ledger, as a driver does before it recovers."""
        with self.connected("registering a sink") as connection:
            Bookkeeping(pipeline, sink, schema=self.schema).create(connection)

    def close(self) -> None:
        """Let go of connections; the object can be used again."""
        pool.close_idle(self._conninfo())

    def _role_for(self, owners: list[str]) -> str | None:
        """COMMIT PREPARED is for the owner and for superusers. None: whoever this session is, may."""
        with self.connected("looking at roles") as connection:
            ((user, is_super, others, closed),) = connection.execute(
                """SELECT current_user, rolsuper, array(SELECT r FROM unnest(%s::text[]) r WHERE r <> current_user),
                          array(SELECT r FROM unnest(%s::text[]) r WHERE NOT EXISTS (
                              SELECT FROM pg_roles WHERE rolname = r AND pg_has_role(oid, 'MEMBER')))
                   FROM pg_roles WHERE rolname = current_user""",
                (owners, owners),
            )
        if is_super or not others:
            return None
        if closed or len(owners) > 1:
            raise ConfigError(
                "transaction-of-another-role",
                f"prepared by role {', '.join(map(repr, owners))}, and this session is {user!r}: connect as that role"
                f" or as a superuser, or GRANT {identifier(others[0])} TO {identifier(user)}; where several prepared,"
                " finish theirs one by one with --gid",
            )
        return str(others[0])

    def connected(self, doing: str) -> AbstractContextManager[pool.Connection]:
        return pool.borrow(self._conninfo(), doing)

    def _conninfo(self) -> str:
        return pool.conninfo(self.url, "operator", 10)
