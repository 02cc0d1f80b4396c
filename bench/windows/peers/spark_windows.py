"""`spark_windows.py SERVERS TOPIC ROWS KIND TOLD`: windows by key with Spark's own windows; into its noop sink."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count_if, from_json, session_window, window
from pyspark.sql.functions import sum as sum_

from bench.jars import spark_jars

STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WINDOWS = {
    "tumbling": lambda: window("at", "60 seconds"),
    "sliding": lambda: window("at", "60 seconds", "1 second"),
    "session": lambda: session_window("at", "10 seconds"),
}

servers, topic, _rows, kind, told = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(map(str, spark_jars())))
    .config("spark.sql.streaming.stateStore.providerClass", STATE)
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
values = (
    read.option("subscribe", topic).option("startingOffsets", "earliest").load().select(col("value").cast("string"))
)
parsed = values.select(from_json("value", "id long, account long, amount long, at timestamp").alias("r"))
records = parsed.select("r.*").withWatermark("at", "5 seconds")
totals = records.groupBy("account", WINDOWS[kind]()).agg(sum_("amount").alias("total"))
counted = totals.observe("told", count_if(col("total") > 0).alias("windows"), sum_("total").alias("total"))
to = counted.writeStream.format("noop").outputMode("append").option("checkpointLocation", tempfile.mkdtemp())
query = to.trigger(availableNow=True).start()
query.awaitTermination()
found = [progress.observedMetrics["told"] for progress in query.recentProgress if "told" in progress.observedMetrics]
windows, total = (sum(row[name] or 0 for row in found) for name in ("windows", "total"))
Path(told).write_text(f"{windows} {total}")
