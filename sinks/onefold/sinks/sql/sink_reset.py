"""Removes what a SQLite or MariaDB database holds of one pipeline: its ledger, its stages, and rows on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from onefold.sinks.name_parts import TableName
from onefold.sinks.sql import bookkeeping, target
from onefold.sinks.sql.adapters.adapter import driver_of
from onefold.sinks.sql.bookkeeping import Kept
from onefold.sinks.sql.databases import SqlDatabase, adapter_of
from onefold.sinks.sql.naming import own_table


@dataclass(frozen=True, slots=True)
class SqlReset:
    """All sinks of the pipeline in one database. `tables` lose their rows, too."""

    database: SqlDatabase
    pipeline: str
    tables: tuple[TableName, ...]

    @property
    def server(self) -> str:
        return str(self.database)

    def found(self) -> Iterator[str]:
        """What there is of it, each for a line of a plan. Changes nothing."""
        if not self.database.is_there():
            return
        with self._looking() as connection:
            for kept in bookkeeping.kept(connection, self.pipeline):
                own = self._own(connection, kept)
                tables = f" and its tables {', '.join(own)}" if own else ""
                yield f"the ledger of sink {kept.sink}, at epoch {kept.epoch}{tables}"

    def targets(self) -> dict[str, str | None]:
        """Each table that is named with its line of a plan; None where there is no such table."""
        if not self.database.is_there():
            return {str(table): None for table in self.tables}
        with self._looking() as connection:
            return {str(table): _rows(connection, table) for table in self.tables}

    def generation(self) -> int | None:
        """The newest that the ledgers name; None where there is no ledger."""
        if not self.database.is_there():
            return None
        with self._looking() as connection:
            return max((kept.generation for kept in bookkeeping.kept(connection, self.pipeline)), default=None)

    def remove(self) -> None:
        """The rows and the ledger in one transaction: no start finds one without the other. MariaDB commits in front of
        a DROP, so the tables of its own go last."""
        if not self.database.is_there():
            return
        with self.database.making_tables() as connection:
            own = [name for kept in bookkeeping.kept(connection, self.pipeline) for name in self._own(connection, kept)]
            for table in self.tables:
                connection.execute(sa.delete(target.clause(table)))
            bookkeeping.forget(connection, self.pipeline, own)
            adapter = adapter_of(connection.dialect)
            for name in own:
                adapter.drop(connection, name)

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def _looking(self) -> Iterator[sa.Connection]:
        with self.database.connected() as connection:
            self.database.backend.check_ours(driver_of(connection))
            yield connection

    def _own(self, connection: sa.Connection, kept: Kept) -> list[str]:
        """The stages and the remembered deletions of a sink."""
        mine = tuple(own_table(what, self.pipeline, kept.sink) for what in ("stage", "deleted"))
        return [name for name in sa.inspect(connection).get_table_names() if name.startswith(mine)]


def _rows(connection: sa.Connection, table: TableName) -> str | None:
    if not target.is_there(connection, table):
        return None
    rows = connection.scalar(sa.select(sa.func.count()).select_from(target.clause(table)))
    return f"table {table}: all of its rows, {rows:,}"
