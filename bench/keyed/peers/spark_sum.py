"""`spark_sum.py SERVERS TOPIC ROWS`: a sum by key with Spark's transformWithState in Python; into its noop sink."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from bench.jars import spark_jars

STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(row.amount for row in rows)
        self.total.update((total,))
        yield Row(account=key[0], total=total)

    def close(self) -> None: ...


servers, topic, _rows = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable  # else its workers are the system's
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(map(str, spark_jars())))
    .config("spark.sql.streaming.stateStore.providerClass", STATE)
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
values = (
    read.option("subscribe", topic).option("startingOffsets", "earliest").load().select(col("value").cast("string"))
)
records = values.select(from_json("value", "id long, account long, amount long").alias("r")).select("r.*")
totals = records.groupBy("account").transformWithState(Sum(), "account long, total long", "Update", "None")
to = totals.writeStream.format("noop").outputMode("update").option("checkpointLocation", tempfile.mkdtemp())
to.trigger(availableNow=True).start().awaitTermination()
