"""Real servers on this machine, without containers: Kafka and Postgres."""

from .errors import LocalServerError
from .java import Java, find_java, spark_environment
from .kafka import KafkaServer
from .postgres import PostgresServer
from .server import LocalServer, ServerStatus

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
