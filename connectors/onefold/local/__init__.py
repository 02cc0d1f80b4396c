"""Real servers on this machine, without containers: Kafka and Postgres."""

from onefold.local.errors import LocalServerError
from onefold.local.java import Java, find_java, spark_environment
from onefold.local.kafka import KafkaServer
from onefold.local.postgres import PostgresServer
from onefold.local.server import LocalServer, ServerStatus

__all__ = [
    "Java",
    "KafkaServer",
    "LocalServer",
    "LocalServerError",
    "PostgresServer",
    "ServerStatus",
    "find_java",
    "spark_environment",
]
