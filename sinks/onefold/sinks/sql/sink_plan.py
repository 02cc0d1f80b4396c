"""What `open` made of a SqlSink's settings: it travels to the executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from onefold.sinks.name_parts import TableName
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind
from onefold.sinks.sql.naming import ATTEMPT, DELETED, ROW, TIMESTAMP, exactly
from onefold.sinks.staged.upsert import Changes


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of the rows: its own Arrow type, and the kind as which it travels."""

    name: str
    source: pa.DataType
    kind: SqlKind


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """What one `open` found out. `columns` are written, `names` are all that the rows have. `stage` and `deleted` are
    tables of this sink alone."""

    pipeline: str
    target: TableName
    columns: tuple[SqlColumn, ...]
    names: tuple[str, ...]
    stage: str
    deleted: str | None
    changes: Changes | None

    def target_table(self) -> sa.TableClause:
        columns: list[sa.ColumnClause[Any]] = [sa.column(exactly(c.name)) for c in self.columns]
        schema = None if self.target.schema is None else exactly(self.target.schema)
        return sa.table(exactly(self.target.name), *columns, schema=schema)

    def stage_table(self) -> sa.TableClause:
        own: list[sa.ColumnClause[Any]] = [sa.column(ATTEMPT), sa.column(ROW)]
        if self.deleted is not None:
            own.append(sa.column(DELETED, sa.Boolean))
        columns = [
            sa.column(exactly(c.name), sa.Boolean if c.kind.family is SqlFamily.BOOLEAN else None) for c in self.columns
        ]
        return sa.table(self.stage, *columns, *own)

    def deleted_table(self) -> sa.TableClause | None:
        if self.deleted is None or self.changes is None:
            return None
        columns: list[sa.ColumnClause[Any]] = [sa.column(exactly(name)) for name in (*self.changes.required, TIMESTAMP)]
        return sa.table(self.deleted, *columns)
