"""The driver's hand in the database: what was staged becomes visible inside the decision's own transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from onefold.core.checks import present, require
from onefold.core.contract import Binding, Committable, Decided, EpochRecord, LedgerEntry
from onefold.core.errors import ConfigError
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.core.store.tables import store_info
from onefold.core.topic_identity import counts_offsets
from onefold.sinks.sql import staging
from onefold.sinks.sql.adapters.registry import adapter_of
from onefold.sinks.sql.databases import database_of
from onefold.sinks.sql.plan import Plan, Settings

__all__ = ["SqlCommitter"]


class SqlCommitter:
    """Idempotent, from any process. `plan` is None before `open`: recovery touches no target, and merges nothing."""

    def __init__(self, settings: Settings, pipeline: str, plan: Plan | None) -> None:
        self._settings, self._plan = settings, plan
        self._database = database_of(settings, pipeline)
        self._books = settings.bookkeeping(pipeline)

    def verify(self, committables: Sequence[Committable]) -> None:
        with self._database.transaction() as connection:
            staging.verify(connection, self._books, committables)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision moved the rows already: what is left to do is to throw the stage's copies away."""
        require(all(c.epoch == decided.record.epoch for c in committables), f"work of another epoch: {committables}")
        self.abort(committables)

    def abort(self, committables: Sequence[Committable]) -> None:
        require(all(c.sink == self._settings.name for c in committables), f"work of another sink: {committables}")
        if committables:
            with self._database.transaction() as connection:
                staging.discard(connection, committables)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        with self._database.transaction() as connection:
            return staging.leftovers(connection, self._books, up_to_generation)

    def ledger(self) -> LedgerEntry | None:
        with self._database.transaction() as connection:
            return self._books.ledger(connection)

    def counted(self) -> Mapping[str, Collection[Positions]]:
        upsert = self._settings.upsert
        if upsert is None or not counts_offsets(upsert.order):
            return {}
        with self._database.transaction() as connection:
            return self._books.others(connection)

    def bind(self, binding: Binding) -> None:
        with self._database.transaction() as connection:
            self._books.bind(connection, binding)

    def write_ledger(self, entry: LedgerEntry) -> None:
        with self._database.transaction() as connection:
            self._books.write_ledger(connection, entry)

    def shares_store(self, store_id: str) -> bool:
        with self._database.transaction() as connection:
            if not sa.inspect(connection).has_table(store_info.name):
                return False
            query = sa.select(store_info.c.store_id).where(store_info.c.store_id == store_id)
            return connection.scalar(query) is not None

    def merge(
        self, connection: sa.Connection, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry
    ) -> None:
        """Inside the store's transaction, on the store's connection to this same database."""
        settings = self._settings
        plan = present(self._plan, "merge needs a committer from open(): recovery never decides")
        require(entry.epoch == record.epoch, f"epoch {record.epoch} with the ledger row of epoch {entry.epoch}")
        if connection.dialect.name != self._database.engine.dialect.name:
            raise ConfigError(
                f"{self._database.who}: it decides inside its own database, and the checkpoint store is elsewhere: "
                "leave the store to its default, or use the sink's store_url()"
            )
        mine = [c for c in manifest if c.sink == settings.name]
        adapter = adapter_of(self._database.url)
        staging.merge(connection, adapter, self._books, plan, settings.upsert, record, mine)
        failpoint("staged.merge")
        self._books.write_ledger(connection, entry)

    def close(self) -> None:
        self._database.close()
