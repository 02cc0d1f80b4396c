"""The driver's hand in the database: what was staged becomes visible inside the decision's own transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa

from onefold.core.checks import present, require
from onefold.core.contract import Committable, Decided, EpochRecord
from onefold.core.errors import ConfigError
from onefold.sinks.sql import staging
from onefold.sinks.sql.bookkeeping import SqlBookkeeping
from onefold.sinks.sql.databases import database_of, over
from onefold.sinks.sql.sink_plan import SqlPlan
from onefold.sinks.staged.ledger_committer import LedgerCommitter
from onefold.sinks.staged.table_options import SqlSinkConfig


class SqlCommitter(LedgerCommitter[sa.Connection]):
    """Idempotent, from any process. `plan` is None before `open`: recovery touches no target, and merges nothing."""

    _books: SqlBookkeeping

    def __init__(self, settings: SqlSinkConfig, pipeline: str, plan: SqlPlan | None) -> None:
        super().__init__(settings.name, settings.changes, SqlBookkeeping(pipeline, settings.name))
        self._settings, self._plan = settings, plan
        self._database = database_of(settings, pipeline)
        self._may_be_outgrown = plan is not None  # other stages, by this plan's

    def verify(self, committables: Sequence[Committable]) -> None:
        with self._database.connected() as connection:
            staging.verify(connection, self._books, committables)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """The decision moved the rows already: what is left to do is to throw the stage's copies away."""
        require(all(c.epoch == decided.record.epoch for c in committables), f"work of another epoch: {committables}")
        if committables or self._plan is not None:
            self._was_decided(decided.record.epoch)
        self.abort(committables)
        if self._plan is not None and self._may_be_outgrown:
            with self._database.making_tables() as connection:
                generation = decided.record.generation
                self._may_be_outgrown = not staging.drop_outgrown(connection, self._books, self._plan.stage, generation)

    def abort(self, committables: Sequence[Committable]) -> None:
        require(all(c.sink == self._settings.name for c in committables), f"work of another sink: {committables}")
        if committables:
            with self._database.connected() as connection:
                staging.discard(connection, committables)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        with self._database.connected() as connection:
            return staging.leftovers(connection, self._books, up_to_generation)

    def shares_store(self, store_id: str) -> bool:
        with self._database.connected() as connection:
            if not sa.inspect(connection).has_table("onefold_store"):
                return False
            query = sa.text("SELECT store_id FROM onefold_store WHERE store_id = :store_id")
            return connection.scalar(query, {"store_id": store_id}) is not None

    def close(self) -> None:
        self._database.close()

    def _merge(
        self, connection: sa.Connection, record: EpochRecord, mine: Sequence[Committable], generation: int
    ) -> None:
        del generation
        plan = present(self._plan, "merge needs a committer from open(): recovery never decides")
        staging.merge(connection, self._books, plan, record.epoch, record.timestamp_ms, mine)

    @contextmanager
    def _deciding(self, connection: Any, doing: str) -> Iterator[sa.Connection]:
        del doing
        if not isinstance(connection, self._database.backend.connection_type):
            raise ConfigError(
                "store-elsewhere",
                f"{self._where()}: it decides inside its own database, and the checkpoint store is elsewhere: "
                "leave the store to its default, or use the sink's store_url()",
            )
        with over(self._database, connection) as same:
            yield same

    def _reading(self, doing: str) -> AbstractContextManager[sa.Connection]:
        del doing
        return self._database.connected()

    def _writing(self, doing: str) -> AbstractContextManager[sa.Connection]:
        del doing
        return self._database.connected()

    def _where(self) -> str:
        return self._database.who
