"""onefold's formats for a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `onefold_kafka` known to this session. Again is fine."""
    from onefold.spark.kafka_source import OnefoldKafkaDataSource  # a pipeline over other sources needs no Kafka client

    spark.dataSource.register(OnefoldKafkaDataSource)
