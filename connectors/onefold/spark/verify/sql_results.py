"""The rows that a table has in a database that SqlSink writes to, read through SQLAlchemy."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.core import BadRecord, ConfigError
from onefold.core.checks import present
from onefold.core.values.plain import plain
from onefold.sinks.sql import SqlSink, target
from onefold.sinks.sql.adapters.sql_kinds import SqlFamily, SqlKind, kind_of
from onefold.sinks.sql.databases import SqlDatabase, adapter_of
from onefold.sinks.sql.naming import exactly
from onefold.sinks.staged.table_options import SqlSinkConfig
from onefold.spark.runtime.workers import freeze_imports, prepare_workers
from onefold.spark.verify.comparing.stored_forms import Form, fixed_text, varying_text

_ROWS_MAX = 10_000  # of a batch


def read_sql_table(spark: SparkSession, sink: SqlSink, schema: StructType) -> DataFrame:
    """The sink's table in these columns, by one SELECT of one task, so at one snapshot.

    Raises ConfigError where there is no such table, and where it lacks a column. A value that is none of its column's
    type in `schema` fails the read: BadRecord.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    _check(sink, wanted)
    prepare_workers(spark, sink)

    def read(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        yield from _read(sink, wanted)

    return spark.range(0, 1, 1, 1).mapInArrow(read, schema)


def forms_of(sink: SqlSink) -> dict[str, Form]:
    """How MariaDB's columns write texts; SQLite's write them as they are. Raises ConfigError without a table."""
    dialect, there = _columns(sink)
    kinds = {name: found["type"] for name, found in there.items()} if dialect in ("mysql", "mariadb") else {}
    fixed: dict[str, Form] = {name: fixed_text for name, kind in kinds.items() if isinstance(kind, sa.CHAR)}
    return fixed | {
        name: varying_text(kind.length)
        for name, kind in kinds.items()
        if isinstance(kind, sa.VARCHAR) and kind.length is not None
    }


@contextmanager
def connected(sink: SqlSink) -> Iterator[tuple[SqlDatabase, sa.Connection]]:
    settings = sink.settings
    database = SqlDatabase(settings.url, settings.lock_timeout_s, f"sink {settings.name!r}", "onefold verify")
    try:
        with database.connected() as connection:
            yield database, connection
    finally:
        database.close()


def _columns(sink: SqlSink) -> tuple[str, Mapping[str, target.There]]:
    """The database's dialect, and the table's columns. Raises ConfigError where there is no such table."""
    settings = sink.settings
    with connected(sink) as (database, connection):
        dialect, there = connection.dialect.name, target.find(connection, settings.target)
    if there is None:
        raise ConfigError(
            "table-missing", f"there is no table {settings.target} in {database}: check the sink's table and its URL"
        )
    return dialect, there


def _check(sink: SqlSink, wanted: pa.Schema) -> None:
    _, there = _columns(sink)
    if lacking := [field.name for field in wanted if field.name not in there or kind_of(field.type) is None]:
        raise ConfigError(
            "verify-columns-missing",
            f"table {sink.settings.target} has no columns {', '.join(lacking)} as the rows have them; it has"
            f" {', '.join(there)}. Verify with the transformation that wrote it",
        )


def _read(sink: SqlSink, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    settings, kinds = sink.settings, [present(kind_of(field.type), "the driver has looked") for field in wanted]
    named: list[sa.ColumnClause[Any]] = [sa.column(exactly(name)) for name in wanted.names]
    with connected(sink) as (_, connection):
        adapter = adapter_of(connection.dialect)
        stored = [
            # SQLAlchemy makes any number a boolean.
            sa.type_coerce(column, sa.Integer()) if kind.family is SqlFamily.BOOLEAN else adapter.stored(column, kind)
            for column, kind in zip(named, kinds, strict=True)
        ]
        select = sa.select(*stored).select_from(target.clause(settings.target))
        found = connection.execution_options(yield_per=_ROWS_MAX).execute(select)
        for rows in _partitions(settings, found):
            columns = zip(*rows, strict=True)
            arrays = [_array(settings, *of) for of in zip(wanted, kinds, columns, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _partitions(settings: SqlSinkConfig, found: sa.CursorResult[Any]) -> Iterator[Any]:
    try:
        yield from found.partitions()
    except ValueError as error:  # SQLAlchemy's, of a text that is no date
        raise _unreadable(settings, plain(str(error))) from None


def _array(settings: SqlSinkConfig, field: pa.Field, kind: SqlKind, values: tuple[Any, ...]) -> pa.Array:
    try:
        return pa.array([value if value is None else _exact(kind, value) for value in values], field.type)
    except (ValueError, TypeError, OverflowError, decimal.InvalidOperation) as error:
        raise _unreadable(settings, f"column {field.name}, {field.type}: {plain(str(error))}") from None


def _exact(kind: SqlKind, value: Any) -> Any:
    match kind.family:
        case SqlFamily.DECIMAL:  # in SQLite a text
            return decimal.Decimal(value)
        case SqlFamily.INTEGER if isinstance(value, decimal.Decimal | float):  # out of a DECIMAL(20, 0), or in SQLite
            if value != int(value):  # Arrow would cut it
                raise ValueError(f"{value} is no integer")
            return int(value)
        case SqlFamily.BOOLEAN:
            if value not in (0, 1):
                raise ValueError(f"{value!r} is no boolean")
            return bool(value)
        case _:
            return value


def _unreadable(settings: SqlSinkConfig, says: str) -> BadRecord:
    return BadRecord(
        "value-not-readable",
        f"table {settings.target} has a value that no row of the pipeline has: {says}. Mend that value, or remove its"
        " row, and verify again",
    )
