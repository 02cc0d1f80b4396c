"""Real servers on this machine, without containers: Kafka, Postgres, HBase, MariaDB, and a Spark cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.local.hbase.server import HBaseServer
    from onefold.local.java import Java, find_java, spark_environment
    from onefold.local.kafka.broker import KafkaServer
    from onefold.local.local_server import LocalServer, ServerStatus
    from onefold.local.mariadb.server import MariaDbServer
    from onefold.local.postgres.server import PostgresServer
    from onefold.local.server_errors import LocalServerError
    from onefold.local.spark import SparkCluster

__all__ = [
    "HBaseServer",
    "Java",
    "KafkaServer",
    "LocalServer",
    "LocalServerError",
    "MariaDbServer",
    "PostgresServer",
    "ServerStatus",
    "SparkCluster",
    "find_java",
    "spark_environment",
]

__getattr__ = on_demand(
    __name__,
    {
        "HBaseServer": "onefold.local.hbase.server",
        "Java": "onefold.local.java",
        "KafkaServer": "onefold.local.kafka.broker",
        "LocalServer": "onefold.local.local_server",
        "LocalServerError": "onefold.local.server_errors",
        "MariaDbServer": "onefold.local.mariadb.server",
        "PostgresServer": "onefold.local.postgres.server",
        "ServerStatus": "onefold.local.local_server",
        "SparkCluster": "onefold.local.spark",
        "find_java": "onefold.local.java",
        "spark_environment": "onefold.local.java",
    },
)


def __dir__() -> list[str]:
    return __all__
