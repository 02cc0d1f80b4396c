"""Real servers on this machine, without containers: Kafka, Postgres, HBase, MariaDB, and a Spark cluster."""

from onefold.local.errors import LocalServerError
from onefold.local.hbase.server import HBaseServer
from onefold.local.java import Java, find_java, spark_environment
from onefold.local.kafka.broker import KafkaServer
from onefold.local.mariadb.server import MariaDbServer
from onefold.local.postgres.server import PostgresServer
from onefold.local.server import LocalServer, ServerStatus
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
