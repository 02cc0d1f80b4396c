"""Copies orders from Kafka to Postgres, each exactly once: python first.py"""

import os

from pyspark.sql import SparkSession

from onefold.local import KafkaServer, PostgresServer, spark_environment
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import Pipeline, exit_codes

with exit_codes():  # an error is one line, and the exit code says what kind it is
    kafka = KafkaServer(".onefold/local").bootstrap_servers  # "broker:9092" for a Kafka of your own
    postgres = PostgresServer(".onefold/local").url  # "postgresql://loader@db/shop" for a Postgres of your own
    os.environ.update(spark_environment())  # finds a Java
    spark = SparkSession.builder.master("local[2]").appName("orders").getOrCreate()

    schema = "id long, account long, amount decimal(12,2), at timestamp"
    orders = KafkaSource("orders", bootstrap_servers=kafka, format="json", schema=schema)
    pipeline = Pipeline("orders", sinks=[PostgresSink(postgres, table="orders")])
    df = pipeline.read(spark, orders).where("amount > 0")
    query = pipeline.write(df, checkpoint=".onefold/checkpoint", trigger={"processingTime": "1 second"})
    pipeline.await_termination(query)
