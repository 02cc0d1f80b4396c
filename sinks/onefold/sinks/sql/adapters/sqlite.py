"""SQLite: one file on one machine, one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onefold.core.findings import Finding, Level
from onefold.sinks.sql.adapters.adapter import Adapter, SqlType, as_text, each_column, quoted
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind

_TYPES: dict[SqlFamily, type[SqlType]] = {
    SqlFamily.BOOLEAN: sa.Boolean,
    SqlFamily.INTEGER: sa.BigInteger,
    SqlFamily.FLOAT: sa.REAL,
    SqlFamily.DECIMAL: sa.Text,  # SQLite's own numbers are 64-bit integers and floats: text keeps every digit
    SqlFamily.TEXT: sa.Text,
    SqlFamily.BINARY: sa.LargeBinary,
    SqlFamily.DATE: sa.Date,
    SqlFamily.TIME: sa.Time,
    SqlFamily.LOCAL: sa.DateTime,
    SqlFamily.INSTANT: sa.DateTime,
    SqlFamily.NULL: sa.Text,
}
# Dates and times are text in the formats of SQLAlchemy and of SQLite's own functions, which sort as they should.
_MAY_BE_TEXT = (SqlFamily.DECIMAL, SqlFamily.TEXT, SqlFamily.DATE, SqlFamily.TIME, SqlFamily.LOCAL, SqlFamily.INSTANT)


class SqliteAdapter(Adapter):
    conditions = (
        "every process that uses the file runs on this machine, and its disk keeps what it acknowledged",
        "one task writes at a time",
    )
    writers_max = 1
    holds_back = True  # a task that was frozen with rows in an open transaction would keep everybody else out
    stage_options: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    unordered = Adapter.unordered | {SqlFamily.DECIMAL}

    def examine(self, connection: sa.Connection) -> Iterator[Finding]:
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        says = f"SQLite {sqlite3.sqlite_version}, journal {journal}: the sink's sessions write with synchronous=EXTRA"
        yield Finding(Level.FINE, says)

    def column_type(self, kind: SqlKind, keys: int = 0) -> SqlType:
        del keys
        return _TYPES[kind.family]()

    def takes(self, kind: SqlKind, there: SqlType) -> bool:
        match kind.family:
            case SqlFamily.BOOLEAN | SqlFamily.INTEGER:
                return isinstance(there, sa.Integer) or (
                    kind.family is SqlFamily.BOOLEAN and isinstance(there, sa.Boolean)
                )
            case SqlFamily.FLOAT:
                return isinstance(there, sa.Float)
            case SqlFamily.INSTANT | SqlFamily.LOCAL if isinstance(there, sa.DateTime):
                return True
            case family if family in _MAY_BE_TEXT and isinstance(there, sa.String):
                return True
            case SqlFamily.DECIMAL:
                return False
        return super().takes(kind, there)

    def collations(self, connection: sa.Connection, table: sa.TableClause) -> dict[str, str]:
        """Of columns in unique indexes: no other place tells them."""
        query = sa.text(
            "SELECT x.name, x.coll "
            "FROM pragma_index_list(:name, :schema) AS i, pragma_index_xinfo(i.name, :schema) AS x "
            "WHERE i.\"unique\" AND x.key AND x.name IS NOT NULL AND x.coll <> 'BINARY'"
        )
        found = connection.execute(query, {"name": table.name, "schema": table.schema or "main"})
        return {row.name: row.coll for row in found}

    def load(self, connection: sa.Connection, stage: sa.TableClause, batch: pa.RecordBatch) -> None:
        table, columns = quoted(connection, stage)
        values = ", ".join("?" * batch.num_columns)
        rows = list(zip(*each_column(batch, _python), strict=True))
        connection.exec_driver_sql(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)

    def deleting(
        self, table: sa.TableClause, key: Sequence[str], source: sa.Subquery, condition: sa.ColumnElement[bool]
    ) -> sa.Delete:
        found = sa.select(*(table.c[name] for name in key)).select_from(sa.join(table, source, condition))
        return sa.delete(table).where(sa.tuple_(*(table.c[name] for name in key)).in_(found.correlate(None)))


def _python(values: Any) -> list[Any]:
    kind = values.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        raise ValueError("not a number (NaN), which SQLite stores as null")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind):
        listed: list[Any] = values.to_pylist()
        return listed
    return list(as_text(values).to_pylist())
