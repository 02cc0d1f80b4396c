"""What onefold keeps in the destination: the ledger, the committed parts beyond it, and the staged attempts.

All in one schema (`onefold_sinks`, unless named otherwise), shared by the pipelines of that database:

    onefold_ledger   one row for each pipeline and sink: the last epoch completed there, and the source's positions
    onefold_parts    one row for each prepared transaction, inside it: proof that it was committed
    onefold_staged   one row for each attempt whose rows are in a stage table; logged, while the stage is not
    onefold_staged_dead  the dead letters of staged attempts, which go where the attempts go
    onefold_version  which layout these tables have
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core.contract import LedgerEntry, Member
from onefold.core.errors import ConfigError, Fenced
from onefold.core.positions import Positions
from onefold.sinks.postgres.connection import Connection
from onefold.sinks.postgres.naming import identifier

__all__ = ["Bookkeeping"]

VERSION = 1
_NAMES = ("version", "ledger", "parts", "staged", "staged_dead")
_CREATE_LOCK = 0x6F6E65666F6C64  # "onefold"

_TABLES = """
CREATE TABLE IF NOT EXISTS {s}.onefold_version (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS {s}.onefold_ledger (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, positions jsonb NOT NULL, store_id text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink)) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {s}.onefold_parts (
    pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    timestamp_ms bigint NOT NULL, gid text NOT NULL, rows bigint NOT NULL, PRIMARY KEY (pipeline, sink, epoch, gid));
CREATE TABLE IF NOT EXISTS {s}.onefold_staged (
    stage text NOT NULL, attempt bigint NOT NULL, pipeline text NOT NULL, sink text NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (stage, attempt));
CREATE TABLE IF NOT EXISTS {s}.onefold_staged_dead (
    stage text NOT NULL, attempt bigint NOT NULL, reason text NOT NULL, sqlstate text, position jsonb,
    "row" jsonb NOT NULL,
    FOREIGN KEY (stage, attempt) REFERENCES {s}.onefold_staged ON DELETE CASCADE);
CREATE INDEX IF NOT EXISTS onefold_staged_dead_by_attempt ON {s}.onefold_staged_dead (stage, attempt);
INSERT INTO {s}.onefold_version SELECT {version} WHERE NOT EXISTS (SELECT FROM {s}.onefold_version);
"""


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """The bookkeeping of one sink of one pipeline, in the schema `schema`."""

    schema: str
    pipeline: str
    sink: str

    def table(self, name: str) -> str:
        """A bookkeeping table's name in SQL that takes parameters."""
        return f"{identifier(self.schema)}.onefold_{name}".replace("%", "%%")

    def create(self, connection: Connection) -> None:
        """Create what is missing, safely beside other drivers that do the same. Raises ConfigError."""
        if not self._exists(connection):
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
                self._create_missing(connection)
        row = connection.execute(f"SELECT max(version) FROM {self.table('version')}", ()).fetchone()
        assert row is not None
        if row[0] != VERSION:
            raise ConfigError(
                f"the onefold tables in schema {self.schema!r} have layout {row[0]}, and this onefold knows {VERSION}: "
                "use the newer onefold, or another bookkeeping_schema"
            )

    def _exists(self, connection: Connection) -> bool:
        names = [f"{identifier(self.schema)}.onefold_{name}" for name in _NAMES]
        row = connection.execute(
            "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name", (names,)
        ).fetchone()
        return row is not None and bool(row[0])

    def _create_missing(self, connection: Connection) -> None:
        row = connection.execute(
            """SELECT current_user, current_database(), n.oid IS NOT NULL,
                      coalesce(has_schema_privilege(n.oid, 'CREATE'),
                               has_database_privilege(current_database(), 'CREATE'))
               FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s""",
            (self.schema,),
        ).fetchone()
        assert row is not None
        user, database, exists, may_create = row
        if not may_create:
            on = f"SCHEMA {identifier(self.schema)}" if exists else f"DATABASE {identifier(database)}"
            raise ConfigError(
                f"role {user!r} may not create the onefold tables in schema {self.schema!r}: "
                f"GRANT CREATE ON {on} TO {identifier(user)}, or name a schema of its own as bookkeeping_schema"
            )
        if self.schema == user and not exists:
            # search_path starts with "$user": the new schema would come first in every later look-up of a bare name.
            raise ConfigError(
                f"bookkeeping_schema={self.schema!r} is also the role's name, so creating it would hide the tables in "
                "'public' from that role: name another schema"
            )
        if not exists:
            connection.execute(f"CREATE SCHEMA {identifier(self.schema)}")
        connection.execute(_TABLES.format(s=identifier(self.schema), version=VERSION))

    def ledger(self, connection: Connection) -> LedgerEntry | None:
        """The row, with the committed parts beyond it; epoch 0 where there are only parts, None without either."""
        row = connection.execute(
            f"""SELECT epoch, generation, timestamp_ms, positions::text, store_id FROM {self.table("ledger")}
                WHERE pipeline = %s AND sink = %s""",
            (self.pipeline, self.sink),
        ).fetchone()
        row = row or (0, 0, 0, "{}", "")
        parts = connection.execute(
            f"""SELECT DISTINCT epoch, generation, timestamp_ms FROM {self.table("parts")}
                WHERE pipeline = %s AND sink = %s AND epoch > %s ORDER BY 1, 2, 3""",
            (self.pipeline, self.sink, row[0]),
        ).fetchall()
        members = tuple(Member(*part) for part in parts)
        if row[0] == 0 and not members:
            return None
        return LedgerEntry(row[0], row[1], row[2], Positions.from_json(row[3]), row[4], members)

    def epoch(self, connection: Connection) -> int:
        """The last epoch that the ledger has as complete; 0 for none."""
        row = connection.execute(
            f"SELECT epoch FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s", (self.pipeline, self.sink)
        ).fetchone()
        return int(row[0]) if row is not None else 0

    def record(self, connection: Connection, entry: LedgerEntry) -> None:
        """Move the ledger's row forward, inside the caller's transaction. Raises Fenced where a newer one is there.

        Parts of earlier epochs go: that a transaction of theirs was committed follows from the row itself.
        """
        ledger = self.table("ledger")
        moved = connection.execute(
            f"""INSERT INTO {ledger} AS l (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                VALUES (%s, %s, %s, %s, %s, %s::jsonb, %s)
                ON CONFLICT (pipeline, sink) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
                    timestamp_ms = excluded.timestamp_ms, positions = excluded.positions,
                    store_id = excluded.store_id, updated_at = now()
                WHERE (l.epoch, l.generation) <= (excluded.epoch, excluded.generation)""",
            (
                self.pipeline,
                self.sink,
                entry.epoch,
                entry.generation,
                entry.timestamp_ms,
                entry.positions.to_json(),
                entry.store_id,
            ),
        ).rowcount
        if moved != 1:
            there = self.ledger(connection)
            assert there is not None
            raise Fenced(
                f"pipeline {self.pipeline!r}, sink {self.sink!r}: the ledger is at epoch {there.epoch} of generation "
                f"{there.generation}, beyond epoch {entry.epoch} of generation {entry.generation}: "
                "a newer driver of this pipeline exists, and this one must stop"
            )
        connection.execute(
            f"DELETE FROM {self.table('parts')} WHERE pipeline = %s AND sink = %s AND epoch < %s",
            (self.pipeline, self.sink, entry.epoch),
        )

    def is_committed(self, connection: Connection, gid: str, epoch: int) -> bool:
        """Whether a prepared transaction that is gone was committed: its part, or a ledger beyond it, says so."""
        row = connection.execute(
            f"""SELECT EXISTS (SELECT FROM {self.table("parts")}
                               WHERE pipeline = %(p)s AND sink = %(s)s AND epoch = %(e)s AND gid = %(g)s)
                    OR EXISTS (SELECT FROM {self.table("ledger")}
                               WHERE pipeline = %(p)s AND sink = %(s)s AND epoch > %(e)s)""",
            {"p": self.pipeline, "s": self.sink, "e": epoch, "g": gid},
        ).fetchone()
        return row is not None and bool(row[0])
