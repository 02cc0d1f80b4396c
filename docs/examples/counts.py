"""Keeps what each account orders in a minute, up to date with every epoch: python counts.py"""

from pyspark.sql import functions as F

from onefold.flow import Flow
from onefold.local import KafkaServer, PostgresServer
from onefold.pipeline import Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import exit_codes

with exit_codes():
    kafka = KafkaServer(".onefold/local").bootstrap_servers
    postgres = PostgresServer(".onefold/local").url


def per_minute(orders):
    paid = orders.where("amount > 0").withWatermark("at", "10 minutes")
    groups = paid.groupBy(F.window("at", "1 minute"), "account")
    totals = groups.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    return totals.select(F.col("window.start").alias("minute"), "account", "orders", "amount")


flow = Flow("per_minute")
schema = "id long, account long, amount decimal(12,2), at timestamp"
orders = flow.source(KafkaSource("orders", bootstrap_servers=kafka, format="json", schema=schema), uid="orders")
made = "minute timestamp, account long, orders long, amount decimal(22,2)"  # what Spark makes, which a start compares
totals = orders.spark_dataframe(per_minute, schema=made, output_mode="update")
totals.sink(PostgresSink(postgres, table="per_minute", mode="upsert", key=("minute", "account"), order="onefold_epoch"))

partitions = {"spark.sql.shuffle.partitions": "4"}  # how many parts the state has, for good
pipeline = Pipeline(flow, runtime=Spark("local[2]", settings=partitions, processing_time="1 second"))

if __name__ == "__main__":  # commands import this file
    with exit_codes():
        pipeline.run()
