"""What a format of Spark's in Python shares between its streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from onefold.spark.formats.registration import register_format


def test_streams_add_nothing_to_the_environment_that_all_of_a_format_share(spark: SparkSession, tmp_path: Path) -> None:
    class OneRow(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(1,)] if start["at"] == 0 else []), {"at": 1}

    class Ones(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ones"

        def schema(self) -> str:
            return "n int"

        def simpleStreamReader(self, schema: Any) -> OneRow:  # noqa: N802
            del schema
            return OneRow()

    def shared() -> dict[str, str]:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return dict(manager.lookupDataSource("ones").dataSourceCls().envVars())

    environment = dict(spark.sparkContext.environment)
    register_format(spark, Ones)
    assert spark.sparkContext.environment == environment
    before = shared()
    query = spark.readStream.format("ones").load().writeStream.format("noop").trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)
    assert shared().keys() == before.keys()
    assert shared() != before, "a stream has put its own there"
