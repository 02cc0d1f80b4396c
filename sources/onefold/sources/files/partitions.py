"""Columns that stand in the names of folders, as Hive and Spark write them: `day=2026-01-01/a.parquet`."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.ddl import type_name
from onefold.core.values.plain import plain
from onefold.sources.formats import csv
from onefold.sources.formats.values import Parser, Unparsable, Values

_NULL = "__HIVE_DEFAULT_PARTITION__"


def keys_of(name: str) -> dict[str, str | None]:
    """The columns in a file's name within its folder, as texts."""
    found = {}
    for part in PurePosixPath(name).parent.parts:
        key, is_one, text = part.partition("=")
        if key and is_one:
            found[unquote(key)] = None if text == _NULL else unquote(text)
    return found


def partition_of(name: str, schema: pa.Schema, where: str) -> dict[str, pa.Scalar]:
    """The schema's columns that stand in a file's name, of their types; keys that the schema lacks are passed over.

    A text is read as CSV has it. Raises `BadRecord` for one that is not of its column's type.
    """
    found = {}
    for key, text in keys_of(name).items():
        if key not in schema.names:
            _refuse_other_case(key, schema, where)
            continue
        field = schema.field(key)
        try:
            found[key] = _read(text, field)
        except (Unparsable, ConfigError) as error:
            reason = error.reason if isinstance(error, Unparsable) else str(error)
            raise _refused(f"{where}: the folder's {key}={text!r} is no {type_name(field.type)}: {reason}") from None
        if not field.nullable and not found[key].is_valid:
            raise _refused(f"{where}: the folder's {key} is null, and the schema says NOT NULL")
    return found


class PlacedParser:
    """A parser's rows, with the columns that stand in the file's name."""

    def __init__(self, parser: Parser, schema: pa.Schema, partition: dict[str, pa.Scalar]) -> None:
        self._parser, self._schema, self._partition = parser, schema, partition

    def parse(self, values: Values) -> pa.RecordBatch:
        return placed(self._parser.parse(values), self._schema, self._partition)


def placed(rows: pa.RecordBatch, schema: pa.Schema, partition: dict[str, pa.Scalar]) -> pa.RecordBatch:
    """The rows with the columns of the file's name. Raises `Unparsable` for a row that has another value itself."""
    arrays = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if field.name not in partition:
            arrays.append(rows.column(at))
            continue
        value = partition[field.name]
        if at >= 0:
            _refuse_other(rows.column(at), value, field.name)
        arrays.append(pa.repeat(value, rows.num_rows) if value.is_valid else pa.nulls(rows.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_other(array: pa.Array, value: pa.Scalar, name: str) -> None:
    there = pc.is_valid(array)
    same = pc.fill_null(pc.equal(array, value), False)
    other = pc.and_(there, pc.invert(same))
    if other.true_count:
        index = pc.index(other, True).as_py()
        raise Unparsable(index, f"its {name} is {array[index]}, and the folder's is {value}")


def _read(text: str | None, field: pa.Field) -> pa.Scalar:
    wanted = pa.schema([field.with_nullable(True)])
    if text is None:
        return pa.nulls(1, field.type)[0]
    csv.check(wanted)
    quoted = text.replace('"', '""')
    return csv.CsvParser(wanted, ",", multiline=True).parse([f'"{quoted}"'.encode()]).column(0)[0]


def _refuse_other_case(key: str, schema: pa.Schema, where: str) -> None:
    other = next((name for name in schema.names if name.lower() == key.lower()), None)
    if other is not None:
        raise _refused(f"{where}: the folder's {key} and the schema's {other} differ in case")


def no_column_left(where: str) -> BadRecord:
    """The error for lines of CSV that would have no field."""
    return _refused(f"{where}: all columns of the schema are in the folders' names, and none in its lines")


def _refused(said: str) -> BadRecord:
    return BadRecord(
        "partition-mismatch",
        f"{plain(said)}. Give the column the name and the type that the folders have, such as string, or take the file"
        " away",
    )
