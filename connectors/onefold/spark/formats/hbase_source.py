"""`onefold_hbase`: an HBase table as a Spark data source, and `read_hbase` around it; and batches written into one."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from onefold.clients.hbase import HBaseSettings
from onefold.core import Sink
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.sink_options import HBaseSinkConfig
from onefold.sources.hbase import HBaseSource
from onefold.spark.formats.batch_writes import BatchWrites
from onefold.spark.formats.registration import in_words_of_spark, register
from onefold.spark.formats.table_reads import NESTED, BatchReader, fields_of, parsed, wire_of


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
    wire = wire_of(fields, nested)
    # What does not fit is refused here, not by a job.
    source.reading(to_arrow_schema(wire, timezone="UTC"))
    return parsed(reader.schema(wire).load(), fields, nested, json_mode)


class OnefoldHBaseDataSource(BatchWrites):
    """Options of a read: the fields of `HBaseSource` and of `HBaseSettings`, in Spark's style (`rowKey`, `timeoutS`,
    ...). Columns: all that `columns` declares with encodings, or what `.schema(...)` says.

    Options of a write: those of HBaseSink and of `HBaseSettings`.
    """

    SINK_MODELS = (HBaseSettings, HBaseSinkConfig)

    @classmethod
    def name(cls) -> str:
        return "onefold_hbase"

    def sink(self, told: dict[str, Any]) -> Sink:
        names = {field.name for field in dataclasses.fields(HBaseSettings)}
        settings = HBaseSettings(**{name: value for name, value in told.items() if name in names})
        return HBaseSink(settings, **{name: value for name, value in told.items() if name not in names})

    def schema(self) -> StructType:
        _, schema = self._source().reading()
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._source(), schema)

    def _source(self) -> HBaseSource:
        with in_words_of_spark(HBaseSource, HBaseSettings):
            return HBaseSource.from_options(self.options)
