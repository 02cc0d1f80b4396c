"""What onefold keeps beside the target, in the connection's default schema, where the checkpoint store is too:

onefold_sql_ledger   one row for each pipeline and sink: the last epoch completed there, the source's positions, and the
                     store and generation that bound it; epoch 0 until it has completed one
onefold_sql_staged   one row for each attempt whose rows are in a stage
onefold_sql_stages   one row for each table of remembered deletions: its layout
onefold_sql_version  which layout these tables have themselves
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onefold.clients.sql.mariadb_trust import MARIADB_OPTIONS
from onefold.core.contract import LedgerEntry
from onefold.core.errors import ConfigError, Retriable
from onefold.core.positions import Positions
from onefold.sinks.staged.ledger_committer import SinkBookkeeping

VERSION = 1
LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")  # TEXT ends at 64 KB there
metadata = sa.MetaData()
_ledger = sa.Table(
    "onefold_sql_ledger",
    metadata,
    sa.Column("pipeline", sa.String(200), primary_key=True),
    sa.Column("sink", sa.String(200), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
    sa.Column("positions", LongText, nullable=False),
    sa.Column("store_id", sa.String(36), nullable=False),
    **MARIADB_OPTIONS,
)
staged = sa.Table(
    "onefold_sql_staged",
    metadata,
    sa.Column("stage", sa.String(64), primary_key=True),
    sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("pipeline", sa.String(200), nullable=False),
    sa.Column("sink", sa.String(200), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    **MARIADB_OPTIONS,
)
stages = sa.Table(
    "onefold_sql_stages",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("layout", LongText, nullable=False),
    **MARIADB_OPTIONS,
)
_version = sa.Table(
    "onefold_sql_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    **MARIADB_OPTIONS,
)


class SqlBookkeeping(SinkBookkeeping[sa.Connection]):
    """In the connection's default schema. Staged epochs have no members beyond the ledger's row: rows and ledger row
    are one transaction."""

    __slots__ = ()

    def create(self, connection: sa.Connection) -> None:
        """Create what is missing, inside `SqlDatabase.making_tables`. Raises ConfigError for another layout."""
        metadata.create_all(connection)
        if not self.check(connection):
            connection.execute(_version.insert().values(version=VERSION))

    def check(self, connection: sa.Connection) -> bool:
        """Whether the tables are there. Raises ConfigError for another layout."""
        if not sa.inspect(connection).has_table(_version.name):
            return False
        found = connection.scalars(sa.select(_version.c.version)).all()
        if found not in ([], [VERSION]):
            raise ConfigError(
                "ledger-too-new",
                f"the onefold_sql_* tables have layout {max(found)}, and this onefold knows {VERSION}: use the onefold "
                "that made them, or a newer one",
            )
        return bool(found)

    def others(self, connection: sa.Connection) -> dict[str, tuple[Positions]]:
        query = sa.select(_ledger.c.pipeline, _ledger.c.positions)
        query = query.where(_ledger.c.sink == self.sink, _ledger.c.pipeline != self.pipeline)
        return {row.pipeline: (Positions.from_json(row.positions),) for row in connection.execute(query)}

    def _row(self, connection: sa.Connection, *, is_locked: bool = False) -> LedgerEntry | None:
        query = self._mine(sa.select(_ledger))
        row = connection.execute(query.with_for_update() if is_locked else query).one_or_none()
        if row is None:
            return None
        positions = Positions.from_json(row.positions)
        return LedgerEntry(row.epoch, row.generation, row.timestamp_ms, positions, row.store_id)

    def _put(self, connection: sa.Connection, there: LedgerEntry | None, row: LedgerEntry) -> None:
        values = {
            "epoch": row.epoch,
            "generation": row.generation,
            "timestamp_ms": row.timestamp_ms,
            "positions": row.positions.to_json(),
            "store_id": row.store_id,
        }
        if there is not None:
            connection.execute(self._mine(sa.update(_ledger)).values(**values))
            return
        try:
            connection.execute(_ledger.insert().values(pipeline=self.pipeline, sink=self.sink, **values))
        except sa.exc.IntegrityError as error:
            raise Retriable(
                "ledger-contended",
                f"pipeline {self.pipeline!r}, sink {self.sink!r}: another driver wrote the ledger's first row at "
                "the same moment. Nothing was written; asking again tells who is newer",
            ) from error

    def _mine(self, statement: Any) -> Any:
        return statement.where(_ledger.c.pipeline == self.pipeline, _ledger.c.sink == self.sink)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ledger row of one sink, for an operator."""

    sink: str
    epoch: int
    generation: int


def kept(connection: sa.Connection, pipeline: str) -> list[Kept]:
    """The ledger rows of all sinks of a pipeline; none where there is no ledger."""
    if not sa.inspect(connection).has_table(_ledger.name):
        return []
    query = sa.select(_ledger).where(_ledger.c.pipeline == pipeline).order_by(_ledger.c.sink)
    return [Kept(row.sink, row.epoch, row.generation) for row in connection.execute(query)]


def forget(connection: sa.Connection, pipeline: str, tables: Collection[str]) -> None:
    """Remove the rows of all sinks of a pipeline, and the layouts that are noted for these tables of theirs."""
    if sa.inspect(connection).has_table(_ledger.name):
        connection.execute(_ledger.delete().where(_ledger.c.pipeline == pipeline))
        connection.execute(staged.delete().where(staged.c.pipeline == pipeline))
        connection.execute(stages.delete().where(stages.c.name.in_(tables)))
