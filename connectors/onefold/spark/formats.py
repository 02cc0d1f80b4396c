"""onefold's formats for a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from onefold.spark.kafka_source import OnefoldKafkaDataSource

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `onefold_kafka` known to this session. Again is fine."""
    spark.dataSource.register(OnefoldKafkaDataSource)
