"""Reads a table through Spark: the driver plans its parts, and each part is a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.sources.table_source import TableSource
from onefold.spark.runtime.workers import freeze_imports

__all__ = ["BatchReader"]


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
