"""A part as Arrow record batches: COPY in the binary format, decoded by ADBC's driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager._reader import AdbcRecordBatchReader
from adbc_driver_postgresql import StatementOptions

from onefold.core.errors import BadRecord, ConfigError
from onefold.sources.postgres import reader_errors
from onefold.sources.postgres.planning import TablePart
from onefold.sources.postgres.planning_connection import STARTED, refused
from onefold.sources.postgres.postgres_types import SelectedColumn
from onefold.sources.postgres.values import ValueRefused, convert

__all__ = ["read"]

_BATCH_BYTES = 4 << 20


def read(part: TablePart) -> Iterator[pa.RecordBatch]:
    """All rows of the part, in batches of some megabytes with exactly its schema; or an error, at the latest after
    the last batch: what came before an error counts for nothing.

    Raises `BadRecord`, `Retriable`, `ConfigError`, `Terminal`.
    """
    try:
        connection = adbc.connect(part.conninfo, autocommit=False)
    except adbc.Error as error:
        raise refused(error, part.conninfo) from None
    with closing(connection), closing(connection.cursor()) as cursor:
        try:
            _begin(cursor, part)
            options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_BATCH_BYTES)}
            cursor.adbc_statement.set_options(**options)
            cursor.execute(part.query)
            stream = cursor.fetch_arrow()
            # What the cursor's own fetch_record_batch returns loses the SQLSTATE of an error in mid-stream.
            with AdbcRecordBatchReader._import_from_c(stream.address) as batches:
                for batch in batches:
                    yield _rows(part, batch)
        except adbc.Error as error:
            raise reader_errors.translate(error, part.label) from error


def _begin(cursor: Any, part: TablePart) -> None:
    snapshot, _, server = (part.snapshot or "").partition("@")
    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if snapshot:
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except adbc.Error as error:
            raise reader_errors.of_importing(error, snapshot, part.label) from error
    cursor.execute(f"SET LOCAL search_path = {part.path}")
    chosen = {name: "NULL" if value is None else f"'{value}'" for name, value in part.settings.items()}
    ours = ", ".join(f"set_config('{name}', {value}, true)" for name, value in chosen.items())
    cursor.execute(f"SELECT started, {ours} FROM ({STARTED}) AS server")
    if cursor.fetch_arrow_table().column("started").to_pylist() != [server] and server:
        raise reader_errors.not_held(snapshot, "another server answered", part.label)


def _rows(part: TablePart, batch: pa.RecordBatch) -> pa.RecordBatch:
    dimensions = iter(batch.columns[len(part.columns) :])
    arrays = []
    for column, array in zip(part.columns, batch.columns, strict=False):
        if array.type != column.wire:
            raise ConfigError(
                "table-altered-while-read",
                f"{part.label}: column {column.name} came as {array.type}, and {column.wire} was planned: somebody "
                "altered the table meanwhile. Start the read again",
            )
        try:
            if pa.types.is_list(column.wire) and (pc.max(next(dimensions)).as_py() or 0) > 1:
                raise ValueRefused("an array of several dimensions")
            arrays.append(convert(array, column.kind))
        except ValueRefused as refused:
            raise _bad(part, column, str(refused)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=part.schema)


def _bad(part: TablePart, column: SelectedColumn, reason: str) -> BadRecord:
    return BadRecord(
        "value-not-readable",
        f"{part.label}: column {column.name} ({column.sql}) holds {reason}. Read it as a string, or leave such rows "
        "out with where",
    )
