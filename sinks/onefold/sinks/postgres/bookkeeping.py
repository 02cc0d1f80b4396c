"""What onefold keeps in the destination: the ledger, the committed parts beyond it, and the staged attempts.

All in one schema (`onefold_sinks`, unless named otherwise), shared by the pipelines of that database:

    onefold_ledger   one row for each pipeline and sink: the last epoch completed there, and the source's positions;
                     epoch 0 from when it was opened until it has completed one
    onefold_parts    one row for each prepared transaction, inside it: proof that it was committed
    onefold_staged   one row for each attempt whose rows are in a stage table; logged, while the stage is not
    onefold_staged_dead  the dead letters of staged attempts, which go where the attempts go
    onefold_evolutions  one row for each ALTER TABLE of a target that a sink has made
    onefold_version  which layout these tables have (layout.py)

The names of prepared transactions count in the whole database: a pipeline's sink has its row in one schema only.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core.contract import LedgerEntry, Member
from onefold.core.errors import ConfigError, Fenced
from onefold.core.positions import Positions
from onefold.sinks.postgres import layout
from onefold.sinks.postgres.connection import Connection
from onefold.sinks.postgres.naming import identifier

__all__ = ["Bookkeeping"]

_ELSEWHERE = """
SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relname = 'onefold_ledger' AND relkind = 'r' AND nspname <> %s
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
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
        """Make or migrate the tables, and this sink's row in them, safely beside others that do. Raises ConfigError."""
        layout.migrate(connection, self.schema)
        if not self._is_registered(connection):
            with connection.transaction():
                layout.lock(connection)
                self._refuse_elsewhere(connection)
                connection.execute(
                    f"""INSERT INTO {self.table("ledger")}
                            (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                        VALUES (%s, %s, 0, 0, 0, '{{}}', '') ON CONFLICT DO NOTHING""",
                    (self.pipeline, self.sink),
                )

    def _is_registered(self, connection: Connection) -> bool:
        query = f"SELECT FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s"
        return connection.execute(query, (self.pipeline, self.sink)).fetchone() is not None

    def _refuse_elsewhere(self, connection: Connection) -> None:
        for (schema,) in connection.execute(_ELSEWHERE, (self.schema,)).fetchall():
            if Bookkeeping(schema, self.pipeline, self.sink)._is_registered(connection):
                raise ConfigError(
                    f"sink {self.sink!r} of pipeline {self.pipeline!r} has its ledger in schema {schema!r} of this "
                    f"database already, and not in {self.schema!r}: the prepared transactions of both would have the "
                    f"same names, and each would remove the other's. Set bookkeeping_schema={schema!r}, or give one of "
                    "the pipelines a name of its own"
                )

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

    def others(self, connection: Connection) -> dict[str, tuple[Positions]]:
        """Up to where other pipelines wrote through sinks of this name."""
        found = connection.execute(
            f"SELECT pipeline, positions::text FROM {self.table('ledger')} WHERE sink = %s AND pipeline <> %s",
            (self.sink, self.pipeline),
        ).fetchall()
        return {pipeline: (Positions.from_json(positions),) for pipeline, positions in found}

    def epoch(self, connection: Connection) -> int:
        """The last epoch that the ledger has as complete; 0 for none."""
        row = connection.execute(
            f"SELECT epoch FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s", (self.pipeline, self.sink)
        ).fetchone()
        return int(row[0]) if row is not None else 0

    def record(self, connection: Connection, entry: LedgerEntry) -> None:
        """Move the ledger's row forward, inside the caller's transaction. Raises Fenced where a newer one is there.

        Another store than before must come with a newer generation, as an adoption does: else two pipelines of one name
        are at work, each with a store of its own.
        Parts of earlier epochs go: that a transaction of theirs was committed follows from the row itself.
        """
        ledger = self.table("ledger")
        moved = connection.execute(
            f"""INSERT INTO {ledger} AS l (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                VALUES (%s, %s, %s, %s, %s, %s::jsonb, %s)
                ON CONFLICT (pipeline, sink) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
                    timestamp_ms = excluded.timestamp_ms, positions = excluded.positions,
                    store_id = excluded.store_id, updated_at = now()
                WHERE (l.epoch, l.generation) <= (excluded.epoch, excluded.generation)
                  AND (l.store_id IN ('', excluded.store_id) OR l.generation < excluded.generation)""",
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
            if there.store_id != entry.store_id:
                raise Fenced(
                    f"pipeline {self.pipeline!r}, sink {self.sink!r}: the ledger is kept under checkpoint store "
                    f"{there.store_id}, and this driver's is {entry.store_id}: another pipeline of the same name is at "
                    "work here. Stop this one, and give one of them a name of its own, or both the same store"
                )
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
