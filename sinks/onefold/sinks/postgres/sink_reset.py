"""Removes what a database holds of one pipeline: its ledger, its stages, what it has prepared, and rows on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onefold.clients.postgres import trust
from onefold.clients.postgres.quoting import with_parameters
from onefold.clients.postgres.sessions import Connection
from onefold.sinks.postgres.admin import Operations, PreparedTransaction
from onefold.sinks.postgres.ledger import pruning
from onefold.sinks.postgres.ledger.pruning import KeptOfSink
from onefold.sinks.postgres.merge import tombstones
from onefold.sinks.postgres.naming import SENT_AGAIN, TargetName, gid_prefix

_LOCK_TIMEOUT_S = 10
_COUNTED_MAX = 100_000
_FIND = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class PostgresReset:
    """All sinks of the pipeline whose ledger is in one schema. `tables` and `rejects` lose their rows, too: of the
    second, those of the pipeline only."""

    operations: Operations
    pipeline: str
    tables: tuple[TargetName, ...]
    rejects: tuple[TargetName, ...]

    @property
    def server(self) -> str:
        return self.operations.server()

    def found(self) -> Iterator[str]:
        """What there is of it, each for a line of a plan. Changes nothing."""
        where = f"schema {self.operations.schema}"
        for kept in self._kept():
            epoch = kept.ledger.epoch if kept.ledger else 0
            stages = f", the stage {', '.join(kept.stages)}" if kept.stages else ""
            yield (
                f"{where}: the ledger of sink {kept.sink}, at epoch {epoch}; {kept.parts} parts, {kept.staged} staged"
                f" attempts{stages}"
            )
        if listed := self._prepared():
            yield f"prepared transactions, rolled back: {', '.join(each.name for each in listed)}"
        with self.operations.connected("looking for dead letters") as connection:
            for table in self.rejects:
                if letters := self._rows_of(connection, table):
                    yield f"table {table}: the pipeline's dead letters, {letters:,}"
            if marks := self._rows_of(connection, self._sent_again):
                yield f"table {self._sent_again}: which dead letters of the pipeline were sent again, {marks:,}"

    def targets(self) -> dict[str, str | None]:
        """Each table that is named with its line of a plan; None where there is no such table."""
        with self.operations.connected("counting the rows of the tables") as connection:
            return {str(table): _rows(connection, table) for table in self.tables}

    def generation(self) -> int | None:
        """The newest that the ledgers name; None where there is no ledger."""
        return max((kept.ledger.generation if kept.ledger else 0 for kept in self._kept()), default=None)

    def remove(self) -> None:
        """The rows and the ledger in one transaction: no start finds one without the other."""
        self.operations.roll_back(self._prepared())  # they hold locks on the tables
        kept = self._kept()
        doing = "removing what is kept of the pipeline"
        with self.operations.connected(doing) as connection, connection.transaction(_LOCK_TIMEOUT_S):
            for table in filter(None, (_find(connection, table) for table in self.tables)):
                connection.execute(f"TRUNCATE {table.sql}".encode())
                remembered = tombstones.name_of(self.operations.schema, table)
                if _is_there(connection, remembered):
                    connection.execute(f"TRUNCATE {remembered}".encode())
            for table in (*self.rejects, self._sent_again):
                if self._rows_of(connection, table):
                    connection.execute(
                        f"DELETE FROM {with_parameters(table.sql)} WHERE pipeline = %s", (self.pipeline,)
                    )
            for each in kept:
                pruning.remove(connection, self.operations.schema, each)

    def close(self) -> None:
        self.operations.close()

    def _kept(self) -> list[KeptOfSink]:
        kept, _ = self.operations.kept()
        return [each for each in kept if each.pipeline == self.pipeline]

    def _prepared(self) -> list[PreparedTransaction]:
        """Those of this pipeline with this ledger: another schema may have a pipeline of the same name."""
        return [
            each
            for each in self.operations.prepared()
            if each.is_here
            and each.is_ours
            and each.pipeline == self.pipeline
            and each.gid is not None
            and each.gid.prefix == gid_prefix(self.pipeline, each.sink or "", self.operations.schema)
        ]

    @property
    def _sent_again(self) -> TargetName:
        return TargetName(self.operations.schema, SENT_AGAIN)

    def _rows_of(self, connection: Connection, table: TargetName) -> int:
        """How many rows are the pipeline's, of a table that has those of others, too."""
        if not _is_there(connection, table.sql):
            return 0
        if table == self._sent_again:
            trust.check_ours(connection, [table.name], self.operations.schema)
        query = f"SELECT count(*) FROM {with_parameters(table.sql)} WHERE pipeline = %s"
        ((count,),) = connection.execute(query, (self.pipeline,))
        return int(count)


def _find(connection: Connection, table: TargetName) -> TargetName | None:
    """The table with its schema; None if there is no such table."""
    row = connection.execute(_FIND, (table.sql,)).fetchone()
    return None if row is None else TargetName(*row)


def _rows(connection: Connection, table: TargetName) -> str | None:
    if (found := _find(connection, table)) is None:
        return None
    ((rows,),) = connection.execute(
        f"SELECT count(*) FROM (SELECT FROM {found.sql} LIMIT {_COUNTED_MAX}) counted".encode()
    )
    more = " or more" if rows == _COUNTED_MAX else ""
    return f"table {found}: all of its rows, {rows:,}{more}"


def _is_there(connection: Connection, table: str) -> bool:
    ((is_there,),) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,))
    return bool(is_there)
