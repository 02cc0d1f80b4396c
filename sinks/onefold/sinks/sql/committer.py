"""The driver's hand in the database: what was staged becomes visible inside the decision's own transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

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
from onefold.sinks.staged.older_copy import LedgerMemory

__all__ = ["SqlCommitter"]


class SqlCommitter:
    """Idempotent, from any process. `plan` is None before `open`: recovery touches no target, and merges nothing."""

    def __init__(self, settings: Settings, pipeline: str, plan: Plan | None) -> None:
        self._settings, self._plan = settings, plan
        self._database = database_of(settings, pipeline)
        self._books = settings.bookkeeping(pipeline)
        self._memory = LedgerMemory()
        self._may_be_outgrown = plan is not None  # other stages, by this plan's

    def verify(self, committables: Sequence[Committable]) -> None:
        with self._database.transaction() as connection:
            staging.verify(connection, self._books, committables)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision moved the rows already: what is left to do is to throw the stage's copies away."""
        assert all(c.epoch == decided.record.epoch for c in committables), committables
        if committables or self._plan is not None:
            self._memory.wrote(decided.record.epoch)  # the decision wrote the ledger
        self.abort(committables)
        if self._plan is not None and self._may_be_outgrown:
            with self._database.creating() as connection:
                adapter, generation = adapter_of(self._database.url, connection.dialect), decided.record.generation
                self._may_be_outgrown = not staging.drop_outgrown(
                    connection, adapter, self._books, self._plan.stage, generation
                )

    def abort(self, committables: Sequence[Committable]) -> None:
        assert all(c.sink == self._settings.name for c in committables), committables
        if committables:
            with self._database.transaction() as connection:
                staging.discard(connection, committables)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        with self._database.transaction() as connection:
            return staging.leftovers(connection, self._books, up_to_generation)

    def ledger(self) -> LedgerEntry | None:
        with self._database.transaction() as connection:
            found = self._books.ledger(connection)
        self._memory.read(found.epoch if found is not None else 0)
        return found

    def counted(self) -> Mapping[str, Collection[Positions]]:
        changes = self._settings.changes
        if changes is None or not counts_offsets(changes.order):
            return {}
        with self._database.transaction() as connection:
            return self._books.others(connection)

    def bind(self, binding: Binding) -> None:
        with self._database.transaction() as connection:
            self._books.bind(connection, binding)

    def write_ledger(self, entry: LedgerEntry) -> None:
        with self._database.transaction() as connection:
            self._check_ledger_is_not_older(connection)
            self._books.write_ledger(connection, entry)
        self._memory.wrote(entry.epoch)

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
        plan, settings = self._plan, self._settings
        assert plan is not None, "merge needs a committer from open(): recovery never decides"
        assert entry.epoch == record.epoch, (entry.epoch, record.epoch)
        if connection.dialect.name != self._database.engine.dialect.name:
            raise ConfigError(
                f"{self._database.who}: it decides inside its own database, and the checkpoint store is elsewhere: "
                "leave the store to its default, or use the sink's store_url()"
            )
        self._check_ledger_is_not_older(connection)
        mine = [c for c in manifest if c.sink == settings.name]
        adapter = adapter_of(self._database.url)
        staging.merge(connection, adapter, self._books, plan, record.epoch, record.timestamp_ms, mine)
        failpoint("staged.merge")
        self._books.write_ledger(connection, entry)

    def close(self) -> None:
        self._database.close()

    def _check_ledger_is_not_older(self, connection: sa.Connection) -> None:
        there = self._books.ledger(connection)
        self._memory.check(self._database.who, there.epoch if there is not None else 0)
