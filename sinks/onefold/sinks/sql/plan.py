"""What a SqlSink was told, and what `open` made of it: both travel to the executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from onefold.core.errors import ConfigError
from onefold.sinks.sql.adapters.kinds import Family, Kind
from onefold.sinks.sql.bookkeeping import Bookkeeping
from onefold.sinks.sql.naming import ATTEMPT, ROW, TIMESTAMP, TableName, exactly

__all__ = ["Column", "Plan", "Settings", "Upsert"]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Which row is meant (`key`), which version of it is newer (`order`), and which one deletes it (`marker`)."""

    key: tuple[str, ...]
    order: tuple[str, ...]
    marker: str | None
    deletes_kept_s: float

    @property
    def conditions(self) -> tuple[str, ...]:
        """Under which the guarantee holds."""
        order = ", ".join(self.order)
        distinct = f"versions of one row differ in {order}: of two that do not, the first epoch's stays"
        kept = f"no version comes {self.deletes_kept_s:g} s later than a newer deletion: it would be a row again"
        alone = "no other pipeline upserts into the table"
        return (distinct, alone, kept) if self.marker else (distinct, alone)

    def check(self, names: Sequence[str]) -> None:
        """Raises ConfigError where the rows lack a column that this needs."""
        needed = [*self.key, *self.order, *([self.marker] if self.marker else [])]
        missing = [name for name in needed if name not in names]
        if missing:
            raise ConfigError(
                f"mode='upsert' needs the columns {', '.join(missing)}, and the rows have {', '.join(names)}: name "
                "columns of the rows as key, order and delete_when_true"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """A sink's settings as the user gave them; the URL, which may hold a password, stays out of every text."""

    url: str = field(repr=False)
    table: TableName
    name: str
    upsert: Upsert | None
    lock_timeout_s: float

    def bookkeeping(self, pipeline: str) -> Bookkeeping:
        return Bookkeeping(pipeline, self.name)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows: its own Arrow type, and the kind as which it travels."""

    name: str
    source: pa.DataType
    kind: Kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What one `open` found out. `stage` and `deleted` are tables of this sink alone."""

    pipeline: str
    target: TableName
    columns: tuple[Column, ...]
    stage: str
    deleted: str | None

    def target_table(self, upsert: Upsert | None) -> sa.TableClause:
        marker = upsert.marker if upsert else None
        columns: list[sa.ColumnClause[Any]] = [sa.column(exactly(c.name)) for c in self.columns if c.name != marker]
        schema = None if self.target.schema is None else exactly(self.target.schema)
        return sa.table(exactly(self.target.name), *columns, schema=schema)

    def stage_table(self) -> sa.TableClause:
        own: list[sa.ColumnClause[Any]] = [sa.column(ATTEMPT), sa.column(ROW)]
        columns = [
            sa.column(exactly(c.name), sa.Boolean if c.kind.family is Family.BOOLEAN else None) for c in self.columns
        ]
        return sa.table(self.stage, *columns, *own)

    def deleted_table(self, upsert: Upsert) -> sa.TableClause | None:
        if self.deleted is None:
            return None
        columns: list[sa.ColumnClause[Any]] = [
            sa.column(exactly(name)) for name in (*upsert.key, *upsert.order, TIMESTAMP)
        ]
        return sa.table(self.deleted, *columns)
