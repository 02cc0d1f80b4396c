"""`onefold_sql`: batches that Spark writes into a table of a SQL database."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from onefold.core import ConfigError, Sink
from onefold.sinks import SqlSink
from onefold.sinks.staged.table_options import SqlSinkConfig
from onefold.spark.formats.batch_writes import BatchWrites, by_key


class OnefoldSqlDataSource(BatchWrites):
    """Options of a write: those of SqlSink; `key` makes it an upsert. It reads nothing: Spark's `jdbc` does."""

    SINK_MODELS = (SqlSinkConfig,)

    @classmethod
    def name(cls) -> str:
        return "onefold_sql"

    def sink(self, told: dict[str, Any]) -> Sink:
        return SqlSink(**by_key(told))

    def schema(self) -> StructType:
        raise ConfigError(
            "reading-not-supported", "onefold_sql writes batches. Read Postgres with onefold_postgres, others with jdbc"
        )
