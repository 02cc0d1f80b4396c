"""onefold's formats for a Spark session."""

from __future__ import annotations

from importlib.util import find_spec

from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `onefold_kafka` and `onefold_postgres` known to this session, each if its extra is installed. Again is
    fine."""
    if find_spec("confluent_kafka"):
        from onefold.spark.kafka_source import OnefoldKafkaDataSource

        spark.dataSource.register(OnefoldKafkaDataSource)
    if find_spec("adbc_driver_postgresql"):
        from onefold.spark.postgres_source import OnefoldPostgresDataSource

        spark.dataSource.register(OnefoldPostgresDataSource)
