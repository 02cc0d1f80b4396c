"""A part as Arrow record batches: COPY in the binary format, decoded by ADBC's driver, every value exact or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager._reader import AdbcRecordBatchReader
from adbc_driver_postgresql import StatementOptions

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.decimals import decimals_of
from onefold.core.values.exact import Mismatch, exact_cast
from onefold.sources.formats.value_range import DAY_US, DAYS, MICROSECONDS
from onefold.sources.postgres.connection import STARTED, not_held, of_importing, refused, translate
from onefold.sources.postgres.planning import TablePart
from onefold.sources.postgres.postgres_types import SelectedColumn

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
            raise translate(error, part.label) from error


def _begin(cursor: Any, part: TablePart) -> None:
    snapshot, _, server = (part.snapshot or "").partition("@")
    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if snapshot:
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except adbc.Error as error:
            raise of_importing(error, snapshot, part.label) from error
    cursor.execute(f"SET LOCAL search_path = {part.path}")
    chosen = {name: "NULL" if value is None else f"'{value}'" for name, value in part.settings.items()}
    ours = ", ".join(f"set_config('{name}', {value}, true)" for name, value in chosen.items())
    cursor.execute(f"SELECT started, {ours} FROM ({STARTED}) AS server")
    if cursor.fetch_arrow_table().column("started").to_pylist() != [server] and server:
        raise not_held(snapshot, "another server answered", part.label)


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


class ValueRefused(Exception):
    """A value has no place in the type that was asked for, for this reason."""


def convert(array: Any, kind: pa.DataType) -> Any:
    """`array` as `kind`. Raises `ValueRefused`."""
    wire = array.type
    if pa.types.is_list(wire):
        values = convert(array.values, kind.value_type)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)
    if pa.types.is_date32(wire):
        _within(array, pa.int32(), DAYS, "a date outside of the years 1 to 9999, or infinity")
    elif pa.types.is_timestamp(wire):
        _within(array, pa.int64(), MICROSECONDS, "a timestamp outside of the years 1 to 9999, or infinity")
    elif pa.types.is_time64(wire):
        _within(array, pa.int64(), (0, DAY_US - 1), "the time 24:00:00")
    elif pa.types.is_interval(wire):
        return _durations(array)
    elif pa.types.is_string(wire) and kind != wire:
        return _parsed(array, kind)
    elif pa.types.is_floating(wire) and pa.types.is_integer(kind):  # asked for, by narrowing="check"
        return _cast(array, lambda part: part.cast(kind), kind)
    try:
        return exact_cast(array, kind)
    except Mismatch as error:
        raise ValueRefused(f"{error.value}: {error.reason}") from None


def _within(array: Any, number: pa.DataType, bounds: tuple[int, int], what: str) -> None:
    # Infinity and dates beyond Arrow's range come out wrapped around, on the far side of these bounds.
    found = pc.min_max(array.view(number))
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < bounds[0] or high > bounds[1]):
        raise ValueRefused(what)


def _durations(array: Any) -> Any:
    """Months, days and nanoseconds, of 4, 4 and 8 bytes each, as microseconds."""
    first, end = array.offset, array.offset + len(array)
    whole = memoryview(array.buffers()[1])[first * 16 : end * 16]
    ints, longs = whole.cast("i"), whole.cast("q")
    valid = array.is_valid()  # what stands under a null is anything

    def column(view: Any, kind: pa.DataType) -> Any:
        numbers = pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(view.tobytes())])
        return pc.if_else(valid, numbers, pa.scalar(0, kind))

    if pc.any(pc.not_equal(column(ints[0::4], pa.int32()), 0)).as_py():
        raise ValueRefused("an interval with months or years, which have no fixed length")
    days = pc.multiply(column(ints[1::4], pa.int32()).cast(pa.int64()), DAY_US)
    micros = pc.add_checked(days, pc.divide(column(longs[1::2], pa.int64()), 1000))
    return pc.if_else(valid, micros, pa.scalar(None, pa.int64())).cast(pa.duration("us"))


def _parsed(texts: Any, kind: pa.DataType) -> Any:
    """Numerics as text."""
    if pa.types.is_null(kind):
        if texts.null_count < len(texts):
            raise ValueRefused(f"{texts.drop_null()[0].as_py()!r}, and nothing but null was expected")
        return pa.nulls(len(texts))
    if pa.types.is_decimal(kind):
        return _cast(texts, lambda part: decimals_of(part, kind), kind)
    return _cast(texts, lambda part: part.cast(pa.decimal128(38, 0)).cast(kind), kind)


def _cast(array: Any, cast: Callable[[Any], Any], kind: pa.DataType) -> Any:
    try:
        return cast(array)
    except pa.ArrowInvalid:
        good, bad = 0, len(array)  # array[:good] fits, array[:bad] doesn't
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            cast(array.slice(good, middle - good))
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    raise ValueRefused(f"{array[good].as_py()!r}, which {kind} cannot hold") from None
