"""Reads a table through Spark: the driver plans its parts, and each part is a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from onefold.sources.table_source import TableSource
from onefold.spark.runtime.dataframe_columns import column
from onefold.spark.runtime.workers import freeze_imports


@dataclass(frozen=True)
class _Part(InputPartition):
    part: Any


class BatchReader(DataSourceReader):
    """Reads the table with the columns and types of `schema`. Pickles."""

    def __init__(self, source: TableSource, schema: StructType) -> None:
        self._source, self._schema = source, to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(part) for part in self._source.parts(self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        assert isinstance(partition, _Part), partition
        return self._source.batches(partition.part)


NESTED = (ArrayType, MapType, StructType)


def fields_of(spark: SparkSession, schema: StructType | str | None) -> list[StructField]:
    if schema is None:
        return []
    return (schema if isinstance(schema, StructType) else spark.createDataFrame([], schema).schema).fields


def wire_of(fields: Sequence[StructField], texts: Collection[str]) -> StructType:
    """The schema as it is read: `texts` names the nested columns that come as JSON."""
    return StructType([StructField(f.name, StringType() if f.name in texts else f.dataType) for f in fields])


def parsed(df: DataFrame, fields: Sequence[StructField], texts: Collection[str], json_mode: str) -> DataFrame:
    """A DataFrame that was read by `wire_of`, with the columns of `fields`."""
    return df.select(*(_parsed(field, json_mode if field.name in texts else None) for field in fields))


def _parsed(field: StructField, json_mode: str | None) -> Column:
    """The field's column, parsed from JSON text where `json_mode` is given."""
    found = column(field.name)
    if json_mode is not None:
        found = F.from_json(found, field.dataType.json(), {"mode": json_mode})
    return found.alias(field.name)
