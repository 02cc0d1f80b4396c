"""What onefold keeps in the destination: the ledger, the committed parts beyond it, and the staged attempts.

All in one schema (`onefold_sinks`, unless named otherwise), shared by the pipelines of that database:

    onefold_ledger   one row for each pipeline and sink: the last epoch completed there, the source's positions, and the
                     store and generation that bound it; epoch 0 from when it was opened until it has completed one
    onefold_parts    one row for each prepared transaction, inside it: proof that it was committed
    onefold_staged   one row for each attempt whose rows are in a stage table; logged, while the stage is not
    onefold_staged_dead  the dead letters of staged attempts, which go where the attempts go
    onefold_evolutions  one row for each ALTER TABLE of a target that a sink has made
    onefold_locks    one row for each thing that drivers take turns at
    onefold_version  which layout these tables have (layout.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onefold.clients.postgres import trust
from onefold.clients.postgres.message import Statement
from onefold.clients.postgres.quoting import identifier, with_parameters
from onefold.clients.postgres.sessions import Connection
from onefold.core.contract import CommittedPart, LedgerEntry
from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.binding import UNBOUND
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.staged.ledger_committer import SinkBookkeeping


@dataclass(frozen=True, slots=True)
class Bookkeeping(SinkBookkeeping[Connection]):
    """In the schema `schema`."""

    schema: str = field(kw_only=True)

    def table(self, name: str) -> str:
        """A bookkeeping table's name in SQL that takes parameters."""
        return with_parameters(f"{identifier(self.schema)}.onefold_{name}")

    def create(self, connection: Connection) -> None:
        """Make the tables, and this sink's row in them, safely beside others that do. Raises ConfigError."""
        layout.create(connection, self.schema)
        self.register(connection)

    def register(self, connection: Connection) -> None:
        """Make this sink's row in the tables, where it is not there."""
        if not self._is_registered(connection):
            with connection.transaction(layout.LOCK_TIMEOUT_S):
                layout.lock(connection, self.schema)
                self._refuse_second(connection)
                connection.execute(
                    f"""INSERT INTO {self.table("ledger")}
                            (pipeline, sink, epoch, generation, timestamp_ms, positions, store_id)
                        VALUES (%s, %s, 0, 0, 0, '{{}}', '') ON CONFLICT DO NOTHING""",
                    (self.pipeline, self.sink),
                )

    def check(self, connection: Connection) -> bool:
        """Whether the tables are there. Raises what `create` refuses; changes nothing."""
        is_there = layout.check(connection, self.schema)
        if not (is_there and self._is_registered(connection)):
            self._refuse_second(connection)
        return is_there

    def _refuse_second(self, connection: Connection) -> None:
        """With another ledger, and the store that goes with it, the sink would begin anew beside its own rows."""
        found = trust.ledger_elsewhere(connection, self.schema, self.pipeline, self.sink)
        if found is not None:
            other, epoch = found
            raise ConfigError(
                "ledger-elsewhere",
                f"sink {self.sink!r} of pipeline {self.pipeline!r} has its ledger in schema {other!r}, at epoch"
                f" {epoch}, and has none in {self.schema!r}: it would begin anew, and write every row again. Set"
                f" ledger={other!r}; or, where this is another pipeline, give it another name",
            )

    def _is_registered(self, connection: Connection) -> bool:
        query = f"SELECT FROM {self.table('ledger')} WHERE pipeline = %s AND sink = %s"
        return connection.execute(query, (self.pipeline, self.sink)).fetchone() is not None

    def ledger(self, connection: Connection) -> LedgerEntry | None:
        """The row, with the committed parts beyond it; epoch 0 where it is only bound, or there are only parts, None
        without all three."""
        mine = "WHERE pipeline = %(p)s AND sink = %(s)s"
        query = (
            f"""SELECT epoch, generation, timestamp_ms, positions::text, store_id FROM {self.table("ledger")} {mine}
                UNION ALL SELECT DISTINCT epoch, generation, timestamp_ms, NULL, NULL FROM {self.table("parts")} {mine}
                    AND epoch > coalesce((SELECT epoch FROM {self.table("ledger")} {mine}), 0)
                ORDER BY 1, 2, 3""",
            {"p": self.pipeline, "s": self.sink},
        )
        ((found, _),) = connection.together(query)
        row = next((_entry(*each) for each in found if each[-1] is not None), UNBOUND)
        members = tuple(CommittedPart(*each[:3]) for each in found if each[-1] is None)
        return replace(row, members=members) if row.epoch or row.store_id or members else None

    def others(self, connection: Connection) -> dict[str, tuple[Positions]]:
        found = connection.execute(
            f"SELECT pipeline, positions::text FROM {self.table('ledger')} WHERE sink = %s AND pipeline <> %s",
            (self.sink, self.pipeline),
        ).fetchall()
        return {pipeline: (Positions.from_json(positions),) for pipeline, positions in found}

    def _row(self, connection: Connection, *, is_locked: bool = False) -> LedgerEntry | None:
        row = connection.execute(
            f"""SELECT epoch, generation, timestamp_ms, positions::text, store_id FROM {self.table("ledger")}
                WHERE pipeline = %s AND sink = %s {"FOR UPDATE" if is_locked else ""}""",
            (self.pipeline, self.sink),
        ).fetchone()
        return None if row is None else _entry(*row)

    def _put(self, connection: Connection, there: LedgerEntry | None, row: LedgerEntry) -> None:
        """Parts of earlier epochs go: that a transaction of theirs was committed follows from the row itself."""
        del there
        mine = (self.pipeline, self.sink)
        moving = (
            f"""UPDATE {self.table("ledger")} SET epoch = %s, generation = %s, timestamp_ms = %s, positions = %s::jsonb,
                    store_id = %s, updated_at = now()
                WHERE pipeline = %s AND sink = %s""",
            (row.epoch, row.generation, row.timestamp_ms, row.positions.to_json(), row.store_id, *mine),
        )
        passing = (
            f"DELETE FROM {self.table('parts')} WHERE pipeline = %s AND sink = %s AND epoch < %s",
            (*mine, row.epoch),
        )
        written, _ = connection.together(moving, passing)
        if written.rowcount != 1:
            raise ConfigError(
                "ledger-row-lost",
                f"sink {self.sink!r} of pipeline {self.pipeline!r} has lost its row in {self.schema}.onefold_ledger"
                " since it was opened: somebody pruned it, or made the schema anew. Start the pipeline again",
            )

    def moving_on(self, entry: LedgerEntry, since: int, *, must: bool = False) -> Statement:
        """Does what `write_over` does, and answers with one row, where nothing is in the way: the row is this store's,
        of no newer generation, and stands at `since` or later, before the entry. Else it does nothing; or fails, and
        its transaction with it, where it `must`."""
        return (
            f"""WITH moved AS (
                    UPDATE {self.table("ledger")} SET epoch = %(e)s, generation = %(g)s, timestamp_ms = %(t)s,
                        positions = %(r)s::jsonb, updated_at = now()
                    WHERE pipeline = %(p)s AND sink = %(s)s AND store_id = %(i)s AND generation <= %(g)s
                        AND epoch >= %(since)s AND epoch < %(e)s RETURNING 1),
                passed AS (
                    DELETE FROM {self.table("parts")} WHERE pipeline = %(p)s AND sink = %(s)s AND epoch < %(e)s
                        AND EXISTS (SELECT FROM moved))
                SELECT {"1 / count(*)" if must else ""} FROM moved""",
            {
                "e": entry.epoch,
                "g": entry.generation,
                "t": entry.timestamp_ms,
                "r": entry.positions.to_json(),
                "i": entry.store_id,
                "since": since,
                "p": self.pipeline,
                "s": self.sink,
            },
        )

    def committed(self, connection: Connection, gids: Sequence[str], epoch: int) -> set[str]:
        """Which of an epoch's prepared transactions were committed: their parts, or a ledger beyond them, say so."""
        query = (
            f"""SELECT g FROM unnest(%(g)s::text[]) g
                WHERE EXISTS (SELECT FROM {self.table("parts")}
                              WHERE pipeline = %(p)s AND sink = %(s)s AND epoch = %(e)s AND gid = g)
                   OR EXISTS (SELECT FROM {self.table("ledger")}
                              WHERE pipeline = %(p)s AND sink = %(s)s AND epoch > %(e)s)""",
            {"p": self.pipeline, "s": self.sink, "e": epoch, "g": list(gids)},
        )
        ((rows, _),) = connection.together(query)
        return {gid for (gid,) in rows}


def _entry(epoch: int, generation: int, timestamp_ms: int, positions: str, store_id: str) -> LedgerEntry:
    return LedgerEntry(epoch, generation, timestamp_ms, Positions.from_json(positions), store_id)
