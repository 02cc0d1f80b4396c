"""Statements that mend a table that SqlSink writes to, in SQLite, MariaDB or Postgres: values as it writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from onefold.core.checks import present
from onefold.core.values.plain import plain
from onefold.sinks.sql import SqlSink, target
from onefold.sinks.sql.adapters.adapter import as_text, quoted
from onefold.sinks.sql.adapters.sql_kinds import kind_of, values_of
from onefold.sinks.sql.bookkeeping import SqlBookkeeping
from onefold.sinks.sql.naming import exactly
from onefold.spark.verify.comparing.wrong_rows import WrongRows, shown, statement
from onefold.spark.verify.sql_results import connected

_AS_THEY_ARE = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_binary)


def others(sink: SqlSink, pipeline: str) -> list[str]:
    """The other pipelines whose ledger has a sink of this name, which is the table's unless it was given another."""
    books = SqlBookkeeping(pipeline, sink.name)
    with connected(sink) as (_, connection):
        return sorted(books.others(connection)) if books.check(connection) else []


def statements(sink: SqlSink, wrong: WrongRows) -> Iterator[str]:
    """The statements, and a comment for each row that has no literal there."""
    parts, there = wrong.parts(), target.clause(sink.settings.target)
    with connected(sink) as (_, connection):
        dialect = connection.dialect.name
        named: list[sa.ColumnClause[Any]] = [sa.column(exactly(name)) for name in parts["INSERT"].column_names]
        table, columns = quoted(connection, sa.table(there.name, *named, schema=there.schema))
    key = [columns[parts["INSERT"].column_names.index(name)] for name in wrong.key]
    if dialect in ("mysql", "mariadb"):
        yield "SET NAMES utf8mb4;"  # as the file is, whatever the client's own
    for verb, rows in parts.items():
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            try:
                values = [_literal(dialect, column) for column in row.columns]
            except ValueError as error:  # pa.ArrowInvalid is one
                yield f"-- left out: {plain(str(shown(row)[0]))} ({plain(str(error))})"
            else:
                yield statement(verb, table, dict(zip(columns, values, strict=True)), key)


def _literal(dialect: str, column: pa.ChunkedArray) -> str:
    """The only value. Raises ValueError for one that no text of SQL says there."""
    kind = present(kind_of(column.type), "a type that no table has")
    values = values_of(kind, column.combine_chunks())
    (value,) = values.to_pylist() if any(is_so(values.type) for is_so in _AS_THEY_ARE) else as_text(values).to_pylist()
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value) if dialect == "postgresql" else str(int(value))
        case bytes():
            return f"'\\x{value.hex()}'" if dialect == "postgresql" else f"X'{value.hex()}'"
        case float() if dialect == "sqlite":
            if math.isnan(value):
                raise ValueError("not a number (NaN), which SQLite stores as null")
            return repr(value).replace("inf", "9e999")
        case float() if dialect in ("mysql", "mariadb") and not math.isfinite(value):
            raise ValueError("a number that is not finite (NaN or infinity)")
        case int():
            return str(value)
    text = str(value)
    if "\0" in text:
        raise ValueError("a text with a NUL in it")
    return "'" + (text if dialect in ("sqlite", "postgresql") else text.replace("\\", "\\\\")).replace("'", "''") + "'"
