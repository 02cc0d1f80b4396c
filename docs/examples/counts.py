"""Keeps what each account orders in a minute, up to date with every batch: python counts.py"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from onefold.local import KafkaServer, PostgresServer, spark_environment
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import Pipeline, exit_codes

with exit_codes():
    kafka = KafkaServer(".onefold/local").bootstrap_servers
    postgres = PostgresServer(".onefold/local").url
    os.environ.update(spark_environment())
    builder = SparkSession.builder.master("local[2]").appName("per_minute").config("spark.authenticate", "true")
    spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()  # how many parts the state has, for good

    schema = "id long, account long, amount decimal(12,2), at timestamp"
    orders = KafkaSource("orders", bootstrap_servers=kafka, format="json", schema=schema)
    table = PostgresSink(postgres, table="per_minute", mode="upsert", key=("minute", "account"), order="onefold_epoch")
    pipeline = Pipeline("per_minute", sinks=[table])

    paid = pipeline.read(spark, orders).where("amount > 0").withWatermark("at", "10 minutes")
    groups = paid.groupBy(F.window("at", "1 minute"), "account")
    totals = groups.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    rows = totals.select(F.col("window.start").alias("minute"), "account", "orders", "amount")
    trigger = {"processingTime": "1 second"}
    query = pipeline.write(rows, checkpoint=".onefold/per_minute", trigger=trigger, output_mode="update")
    pipeline.await_termination(query)
