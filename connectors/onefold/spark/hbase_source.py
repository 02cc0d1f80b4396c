"""`onefold_hbase`: an HBase table as a Spark data source, and `read_hbase` around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from onefold.sources.hbase import HBaseSource, Part, plan, read
from onefold.spark.formats import register
from onefold.spark.schemas import NESTED, fields_of, parsed
from onefold.spark.workers import settle

__all__ = ["OnefoldHBaseDataSource", "read_hbase"]


def read_hbase(
    spark: SparkSession,
    source: HBaseSource,
    schema: StructType | str | None = None,
    *,
    json_mode: str = "FAILFAST",
) -> DataFrame:
    """The source as a DataFrame; with a `schema`, its columns as exactly those types.

    JSON is read as strings, or parsed where `schema` says something nested; a document that does not fit fails the
    read, or with `json_mode="PERMISSIVE"` gives nulls.
    """
    register(spark)
    reader = spark.read.format("onefold_hbase").options(**source.options())
    fields = fields_of(spark, schema)
    if not fields:
        return reader.load()
    nested = {field.name for field in fields if isinstance(field.dataType, NESTED)}
    wire = StructType([StructField(f.name, StringType() if f.name in nested else f.dataType) for f in fields])
    # What does not fit is refused here, not by a job.
    source.reading(to_arrow_schema(wire, timezone="UTC"))
    return reader.schema(wire).load().select(*(parsed(f, json_mode if f.name in nested else None) for f in fields))


class OnefoldHBaseDataSource(DataSource):
    """Options: `servers`, `table`, `rowKey`, `salt`, `hash`, `columns`, `family`, `deleted`, `deletedAs`, `fromMs`,
    `untilMs`, as in `HBaseSource`; `transport`, `protocol`, `timeoutS`, `patienceS`, `connections`, `frameBytesMax`,
    `kerberosService`, as in `HBaseSettings`. Columns: all that `columns` declares with encodings, or what
    `.schema(...)` says.
    """

    @classmethod
    def name(cls) -> str:
        return "onefold_hbase"

    def schema(self) -> StructType:
        _, schema = HBaseSource.from_options(self.options).reading()
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(HBaseSource.from_options(self.options), to_arrow_schema(schema, timezone="UTC"))


@dataclass(frozen=True)
class _PartPartition(InputPartition):
    part: Part


class _Reader(DataSourceReader):
    def __init__(self, source: HBaseSource, schema: pa.Schema) -> None:
        self._source, self._schema = source, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [_PartPartition(part) for part in plan(self._source, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        assert isinstance(partition, _PartPartition), partition
        return read(partition.part)
