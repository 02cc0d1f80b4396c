"""What onefold keeps in the destination: the ledger, the committed parts beyond it, and the staged attempts.

All in one schema (`onefold_sinks`, unless named otherwise), shared by the pipelines of that database:

    onefold_ledger   one row for each pipeline and sink: the last epoch completed there, the source's positions, and the
                     store and generation that bound it; epoch 0 from when it was opened until it has completed one
    onefold_parts    one row for each prepared transaction, inside it: proof that it was committed
    onefold_staged   one row for each attempt whose rows are in a stage table; logged, while the stage is not
    onefold_staged_dead  the dead letters of staged attempts, which go where the attempts go
    onefold_evolutions  one row for each ALTER TABLE of a target that a sink has made
    onefold_locks    one row for each thing that drivers take turns at
    onefold_version  which layout these tables have (migrations.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.clients.postgres.connection import Connection
from onefold.clients.postgres.quoting import identifier
from onefold.core.contract import Binding, CommittedPart, LedgerEntry
from onefold.core.errors import ConfigError, Retriable
from onefold.core.positions import Positions
from onefold.core.protocol.binding import bound, check_forward
from onefold.sinks.postgres.ledger import migrations

__all__ = ["Bookkeeping"]


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
        migrations.migrate(connection, self.schema)
        if not self._is_registered(connection):
            with connection.transaction():
                migrations.lock(connection, self.schema)
                connection.execute(
                    f"""INSERT INTO {self.table("ledger")}
                            (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                        VALUES (%s, %s, 0, 0, 0, '{{}}', '') ON CONFLICT DO NOTHING""",
                    (self.pipeline, self.sink),
                )

    def _is_registered(self, connection: Connection) -> bool:
        query = f"SELECT FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s"
        return connection.execute(query, (self.pipeline, self.sink)).fetchone() is not None

    def ledger(self, connection: Connection) -> LedgerEntry | None:
        """The row, with the committed parts beyond it; epoch 0 where it is only bound, or there are only parts, None
        without all three."""
        row = self._row(connection)
        parts = connection.execute(
            f"""SELECT DISTINCT epoch, generation, timestamp_ms FROM {self.table("parts")}
                WHERE pipeline = %s AND sink = %s AND epoch > %s ORDER BY 1, 2, 3""",
            (self.pipeline, self.sink, row[0]),
        ).fetchall()
        members = tuple(CommittedPart(*part) for part in parts)
        if row[0] == 0 and not row[4] and not members:
            return None
        return LedgerEntry(row[0], row[1], row[2], Positions.from_json(row[3]), row[4], members)

    def others(self, connection: Connection) -> dict[str, tuple[Positions]]:
        """Up to where other pipelines wrote through sinks of this name."""
        found = connection.execute(
            f"SELECT pipeline, positions::text FROM {self.table('ledger')} WHERE sink = %s AND pipeline <> %s",
            (self.sink, self.pipeline),
        ).fetchall()
        return {pipeline: (Positions.from_json(positions),) for pipeline, positions in found}

    def _row(self, connection: Connection, lock: str = "") -> tuple[int, int, int, str, str]:
        query = f"""SELECT epoch, generation, timestamp_ms, positions::text, store_id FROM {self.table("ledger")}
                    WHERE pipeline = %s AND sink = %s {lock}"""
        row: tuple[int, int, int, str, str] | None = connection.execute(query, (self.pipeline, self.sink)).fetchone()
        return row or (0, 0, 0, "{}", "")

    def bind(self, connection: Connection, binding: Binding) -> None:
        """Make the row that generation's, inside the caller's transaction. Raises Fenced, CheckpointMismatch."""
        epoch, generation, timestamp_ms, positions, store_id = self._row(connection, "FOR UPDATE")
        there = LedgerEntry(epoch, generation, timestamp_ms, Positions.from_json(positions), store_id)
        row = bound(there, binding, self.sink)
        bound_now = connection.execute(
            f"""UPDATE {self.table("ledger")} SET generation = %s, store_id = %s, updated_at = now()
                WHERE pipeline = %s AND sink = %s""",
            (row.generation, row.store_id, self.pipeline, self.sink),
        ).rowcount
        if bound_now != 1:
            raise ConfigError(
                "ledger-row-lost",
                f"sink {self.sink!r} of pipeline {self.pipeline!r} has lost its row in {self.schema}.onefold_ledger"
                " since it was opened: somebody pruned it, or made the schema anew. Start the pipeline again",
            )

    def epoch(self, connection: Connection) -> int:
        """The last epoch that the ledger has as complete; 0 for none."""
        row = connection.execute(
            f"SELECT epoch FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s", (self.pipeline, self.sink)
        ).fetchone()
        return int(row[0]) if row is not None else 0

    def write_ledger(self, connection: Connection, entry: LedgerEntry) -> None:
        """Move the ledger's row forward, inside the caller's transaction. Raises Fenced where a newer generation or
        another store has it, or it stands beyond.

        Parts of earlier epochs go: that a transaction of theirs was committed follows from the row itself.
        """
        ledger = self.table("ledger")
        moved = connection.execute(
            f"""INSERT INTO {ledger} AS l (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                VALUES (%s, %s, %s, %s, %s, %s::jsonb, %s)
                ON CONFLICT (pipeline, sink) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
                    timestamp_ms = excluded.timestamp_ms, positions = excluded.positions,
                    store_id = excluded.store_id, updated_at = now()
                WHERE l.epoch <= excluded.epoch AND l.generation <= excluded.generation
                  AND l.store_id IN ('', excluded.store_id)""",
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
            check_forward(self.ledger(connection), entry, self.sink)
            raise Retriable(
                "ledger-contended", f"sink {self.sink!r}: another driver moved its ledger row at this moment"
            )
        connection.execute(
            f"DELETE FROM {self.table('parts')} WHERE pipeline = %s AND sink = %s AND epoch < %s",
            (self.pipeline, self.sink, entry.epoch),
        )

    def committed(self, connection: Connection, gids: Sequence[str], epoch: int) -> set[str]:
        """Which of an epoch's prepared transactions were committed: their parts, or a ledger beyond them, say so."""
        rows = connection.execute(
            f"""SELECT g FROM unnest(%(g)s::text[]) g
                WHERE EXISTS (SELECT FROM {self.table("parts")}
                              WHERE pipeline = %(p)s AND sink = %(s)s AND epoch = %(e)s AND gid = g)
                   OR EXISTS (SELECT FROM {self.table("ledger")}
                              WHERE pipeline = %(p)s AND sink = %(s)s AND epoch > %(e)s)""",
            {"p": self.pipeline, "s": self.sink, "e": epoch, "g": list(gids)},
        ).fetchall()
        return {gid for (gid,) in rows}
