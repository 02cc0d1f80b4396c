"""Copies orders from Kafka to Postgres, each exactly once: python first.py"""

from onefold.flow import Flow
from onefold.local import KafkaServer, PostgresServer
from onefold.pipeline import Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import exit_codes

with exit_codes():  # an error is one line, and the exit code says what kind it is
    kafka = KafkaServer(".onefold/local").bootstrap_servers  # "broker:9092" for a Kafka of your own
    postgres = PostgresServer(".onefold/local").url  # "postgresql://loader@db/shop" for a Postgres of your own
schema = "id long, account long, amount decimal(12,2), at timestamp"

flow = Flow("orders")
source = KafkaSource("orders", bootstrap_servers=kafka, format="json", schema=schema)
flow.source(source, uid="orders").filter("amount > 0").sink(PostgresSink(postgres, table="orders"))
orders = Pipeline(flow, runtime=Spark("local[2]", processing_time="1 second"))

if __name__ == "__main__":  # commands import this file
    with exit_codes():
        orders.run()  # brings a Spark, on this machine only
