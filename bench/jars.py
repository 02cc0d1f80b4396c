"""The Kafka connectors of Spark and Flink, Spark's Avro and a JDBC driver: resolved like Kafka's jars, and kept."""

from __future__ import annotations

from pathlib import Path

from onefold.local import LocalServerError, find_java
from onefold.local.artifacts import Distribution, downloaded, pinned

__all__ = ["NotAvailable", "flink_jar", "spark_avro_jar", "spark_jars"]

_MB = 1024 * 1024
# Named one by one, without what they name in turn: Spark brings the rest, and the 4.0.0 of the token provider (which
# only delegation tokens need) is a version that every mirror has.
_SPARK = Distribution(
    "bench-spark",
    "Spark's Kafka connector",
    "4.2.0",
    modules=(
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.2"),
        ("org.apache.commons", "commons-pool2", "2.13.1"),
        ("org.postgresql", "postgresql", "42.7.7"),
    ),
    sums=pinned(Path(__file__).with_name("spark.sha256")),
    transitive=False,
    download_bytes=50 * _MB,
)
_AVRO = Distribution(
    "bench-avro",
    "Spark's Avro",
    "4.1.1",
    modules=(("org.apache.spark", "spark-avro_2.13", "4.1.1"),),  # no mirror has a newer one, and it runs on Spark 4.2
    sums={"spark-avro_2.13-4.1.1.jar": "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d"},
    transitive=False,
    download_bytes=5 * _MB,
)
_FLINK = Distribution(
    "bench-flink",
    "Flink's Kafka connector",
    "5.0.0-2.2",
    modules=(("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2"),),
    sums={
        "flink-sql-connector-kafka-5.0.0-2.2.jar": "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
    },
    transitive=False,
    download_bytes=30 * _MB,
)


class NotAvailable(Exception):
    """A contestant cannot take part, for this reason; the others go on."""


def spark_jars() -> list[Path]:
    """Spark's Kafka connector and the JDBC driver, downloaded if the cache lacks them. Raises `NotAvailable`."""
    return _jars(_SPARK)


def spark_avro_jar() -> list[Path]:
    """Spark's from_avro. Raises `NotAvailable`."""
    return _jars(_AVRO)


def flink_jar() -> Path:
    """Flink's Kafka connector, with the client in it. Raises `NotAvailable`."""
    return _jars(_FLINK)[0]


def _jars(what: Distribution) -> list[Path]:
    try:
        folder = downloaded(what, find_java())
    except LocalServerError as error:
        raise NotAvailable(f"its jars could not be resolved: {error.message}") from error
    return [folder / name for name in what.sums]
