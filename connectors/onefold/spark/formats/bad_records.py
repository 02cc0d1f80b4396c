"""A Kafka source's bad records between two positions, as a bounded DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from onefold.core import Positions, Range
from onefold.core.dead_letters import BAD_COLUMNS
from onefold.spark.formats.registration import register
from onefold.spark.runtime.direct import BadFetch
from onefold.spark.runtime.epoch_job import ranges_of
from onefold.spark.runtime.workers import freeze_imports

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["read_bad_records"]


def read_bad_records(spark: SparkSession, source: KafkaSource, start: Positions, end: Positions) -> DataFrame:
    """The records between two positions that cannot be read: `onefold.core.dead_letters.BAD_COLUMNS`."""
    register(spark)
    whole = _of_all_epochs(source, start)
    df = spark.read.format("onefold_kafka").options(**whole.options(start)).load()
    fetch = BadFetch(whole, to_arrow_schema(df.schema, timezone="UTC"), repeatable=False)
    ranges = ranges_of(spark, source, Range(start, end))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        return (bad.records for batch in batches for bad in fetch(batch))

    columns = from_arrow_schema(BAD_COLUMNS)
    return spark.createDataFrame([], columns) if ranges is None else ranges.mapInArrow(read, columns)


def _of_all_epochs(source: KafkaSource, start: Positions) -> KafkaSource:
    """The source without a limit of bad records: all epochs together may have more than one epoch may have."""
    from onefold.sources.kafka import KafkaSource

    options = source.options(start) | {"onError": "dead_letter", "badRecordsMax": str(2**62)}
    return KafkaSource.from_options(options)
