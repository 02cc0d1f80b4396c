"""Which of a Parquet file's columns are the source's, by their names, and whether their types can be."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.ddl import ddl_of
from onefold.core.values.exact import Mismatch, exact_cast
from onefold.core.values.plain import plain
from onefold.sources.files.listing import Folder
from onefold.sources.files.partitions import keys_of

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}


def columns_of(folder: Folder, name: str) -> pa.Schema:
    """The columns of a file, as a schema of Spark's types has them, and those of its folders as texts."""
    with folder.opened(name) as opened, folder.decoding(name, "Parquet"):
        found = pq.read_schema(opened)
    where = folder.shown(name)
    fields = [pa.field(field.name, _plain(field.type)) for field in found]
    fields += [pa.field(key, pa.string()) for key in keys_of(name) if key not in found.names]
    if odd := [key for key, count in Counter(field.name for field in fields).items() if count > 1]:
        raise _refused(f"{where} has the column {odd[0]!r} more than once")
    for field in fields:
        try:
            ddl_of(pa.schema([field]))
        except ConfigError:
            raise ConfigError(
                "schema-not-inferred",
                f"{where}: the column {plain(field.name)!r} is of the type {field.type}, which no column of a source"
                " has: give a schema, without that column or with a type that takes its values",
            ) from None
    return pa.schema(fields)


def matched(there: pa.Schema, schema: pa.Schema, placed: set[str], where: str) -> list[str]:
    """The columns of the schema that a file has; others are null, those in `placed` stand in its name.

    Raises `BadRecord` where the names or the types do not fit, so that no value is looked at.
    """
    counts, lower = Counter(there.names), {name.lower(): name for name in there.names}
    found = []
    for field in schema:
        if counts[field.name] > 1:
            raise _refused(f"{where} has the column {field.name!r} {counts[field.name]} times")
        if counts[field.name]:
            found.append(field.name)
            _check_type(there.field(field.name).type, field, where)
        elif (other := lower.get(field.name.lower())) is not None:
            raise _refused(f"{where} has the column {other!r}, and the schema {field.name!r}: they differ in case")
        elif not field.nullable and field.name not in placed:
            raise _refused(f"{where} has no column {field.name!r}, and the schema says NOT NULL")
    if not found and not placed.issuperset(schema.names):
        raise _refused(f"{where} has no column of the schema: it has {', '.join(there.names)}")
    return found


def _check_type(kind: pa.DataType, field: pa.Field, where: str) -> None:
    try:
        exact_cast(pa.nulls(0, kind), field.type)
    except Mismatch as error:
        inside = f": {error.path} {error.value}" if error.path or error.value[:1] != "(" else ""
        raise _refused(f"{where}: the column {field.name!r} is {kind} there{inside}, and {error.reason}") from None


def _refused(said: str) -> BadRecord:
    return BadRecord(
        "parquet-columns-mismatch",
        f"{plain(said)}. on_error is for rows, not for whole files: correct the schema, or take the file away",
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _plain(kind.value_type)
    if is_.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if is_.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if is_.is_struct(kind):
        return pa.struct([kind[at].with_type(_plain(kind[at].type)) for at in range(kind.num_fields)])
    return _WIDER.get(kind, pa.date32() if is_.is_date64(kind) else kind)
