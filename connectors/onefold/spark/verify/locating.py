"""Finds which records of a topic some rows come from, that operators without state have made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.spark.formats.table_reads import NESTED
from onefold.spark.runtime.dataframe_columns import mapped
from onefold.spark.verify.comparing.samples import text_of, told
from onefold.spark.verify.comparing.sides import Places, Sources
from onefold.spark.verify.expected import Applied, Expected
from onefold.spark.verify.origin import POSITION, SourceRecords

_MATCHES_MAX = 1_000


def locating(origin: SourceRecords, made_by: Expected) -> Sources | None:
    """A function that says of a few rows in some columns, by their texts, where their records are. None where that
    cannot be told, for rows come through what keeps state, or through a query of Spark."""
    applied = made_by.applied()
    if applied is None:
        return None

    def located(keys: DataFrame) -> Mapping[str, Places]:
        records = origin.records_with_position()
        if records is None or any(isinstance(field.dataType, NESTED) for field in keys.schema):
            return {}
        wanted = keys.toArrow()
        kind = StructType([*(records.schema[name] for name in POSITION), *keys.schema.fields])
        made = mapped(records, _finding(applied, wanted, to_arrow_schema(kind, timezone="UTC")), kind)
        found: dict[str, list[Row]] = {}
        matches = told(made.limit(_MATCHES_MAX)).collect()
        for row in matches:
            found.setdefault(text_of(row, wanted.column_names), []).append(row)
        is_cut = len(matches) == _MATCHES_MAX
        return {text: Places(sorted({tuple(row[:3]) for row in rows}), is_cut) for text, rows in found.items()}

    return located


def _finding(applied: Applied, wanted: pa.Table, kind: pa.Schema) -> Applied:
    """By halves: a record's rows do not say which one they come from, but those of a batch say whether it is there."""
    names = wanted.column_names
    exact = {*_tuples(wanted)}

    def keys_in(records: pa.RecordBatch) -> list[pa.RecordBatch]:
        found = []
        for rows in applied(iter([records])):
            keys = rows.select(names).cast(wanted.schema)
            for name in names:
                keys = keys.filter(pc.is_in(keys.column(name), value_set=wanted.column(name).combine_chunks()))
            keys = keys.filter(pa.array([row in exact for row in _tuples(keys)], pa.bool_()))
            if keys.num_rows:
                found.append(keys)
        return found

    def halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        try:
            found = keys_in(batch.drop_columns([*POSITION]))
        except Exception:  # of a function that takes whole batches alone: then nobody can tell
            return
        if found and batch.num_rows == 1:
            for keys in found:
                place = [pa.repeat(batch.column(name)[0], keys.num_rows) for name in POSITION]
                yield pa.RecordBatch.from_arrays([*place, *keys.columns], names=kind.names).cast(kind)
        elif found:
            middle = batch.num_rows // 2
            yield from halves(batch.slice(0, middle))
            yield from halves(batch.slice(middle))

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from halves(batch)

    return find


def _tuples(rows: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows, with dates and timestamps as numbers: Python has none after the year 9999."""
    return [*zip(*(_numbers(of).to_pylist() for of in rows.columns), strict=True)]


def _numbers(values: pa.Array) -> pa.Array:
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    return values
