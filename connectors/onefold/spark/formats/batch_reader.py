"""Reads a bounded source through Spark: the driver plans its parts, and each part is a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from onefold.spark.runtime.workers import freeze_imports

__all__ = ["BatchReader"]


@dataclass(frozen=True)
class _Part(InputPartition):
    part: Any


class BatchReader(DataSourceReader):
    """`plan` makes the parts in the driver; `read` turns one of them into batches in its task. Both pickle."""

    def __init__(self, plan: Callable[[], Sequence[Any]], read: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        self._plan, self._read = plan, read

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(part) for part in self._plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        assert isinstance(partition, _Part), partition
        return self._read(partition.part)
