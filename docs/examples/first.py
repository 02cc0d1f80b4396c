"""Copies orders from Kafka to Postgres, each exactly once: python first.py"""

import os

from pyspark.sql import SparkSession

from onefold.pipeline import Definition, Transform, Trigger
from onefold.local import KafkaServer, PostgresServer, spark_environment
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import exit_codes

with exit_codes():  # an error is one line, and the exit code says what kind it is
    kafka = KafkaServer(".onefold/local").bootstrap_servers  # "broker:9092" for a Kafka of your own
    postgres = PostgresServer(".onefold/local").url  # "postgresql://loader@db/shop" for a Postgres of your own
schema = "id long, account long, amount decimal(12,2), at timestamp"

orders = Definition(
    "orders",
    source=KafkaSource("orders", bootstrap_servers=kafka, format="json", schema=schema),
    sinks=[PostgresSink(postgres, table="orders")],
    transform=Transform(sql="SELECT * FROM source WHERE amount > 0"),
    trigger=Trigger(processing_time="1 second"),
)

if __name__ == "__main__":  # commands import this file
    with exit_codes():
        os.environ.update(spark_environment())  # finds a Java; Spark is quiet, and listens on this machine only
        builder = SparkSession.builder.master("local[2]").appName("orders")
        orders.run(builder.config("spark.authenticate", "true").getOrCreate())
