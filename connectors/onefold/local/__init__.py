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

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "onefold.local.hbase.server": ("HBaseServer",),
        "onefold.local.java": ("Java", "find_java", "spark_environment"),
        "onefold.local.kafka.broker": ("KafkaServer",),
        "onefold.local.local_server": ("LocalServer", "ServerStatus"),
        "onefold.local.server_errors": ("LocalServerError",),
        "onefold.local.mariadb.server": ("MariaDbServer",),
        "onefold.local.postgres.server": ("PostgresServer",),
        "onefold.local.spark": ("SparkCluster",),
    },
)
