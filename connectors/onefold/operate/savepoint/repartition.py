"""Shares the state of a query's checkpoint out among another number of partitions, by Spark's own means."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from onefold.core import ConfigError
from onefold.operate.savepoint.savepoint import Savepoint

__all__ = ["check_repartition", "repartition"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def check_repartition(savepoint: Savepoint, partitions: int) -> None:
    """Raises ConfigError for what Spark does not do, before anything is copied."""
    if savepoint.provider is None:
        raise ConfigError(
            "savepoint-stateless",
            f"savepoint {savepoint.name!r} is of a query without state, which has no parts to share out: leave out"
            " --shuffle-partitions",
        )
    if savepoint.provider != ROCKSDB and savepoint.partitions != partitions:
        raise ConfigError(
            "state-not-repartitioned",
            f"the state in savepoint {savepoint.name!r} is kept by {savepoint.provider.rpartition('.')[2]}, and Spark"
            " shares out that of RocksDBStateStoreProvider only. Restore it with its"
            f" {savepoint.partitions} partitions,"
            " or start over under a new pipeline name, with that provider in [spark.settings]"
            f" (spark.sql.streaming.stateStore.providerClass = {ROCKSDB!r})",
        )


def repartition(spark: SparkSession, root: str, savepoint: Savepoint, partitions: int) -> None:
    """Adds one batch to the checkpoint at `root`, without records, that has the state in so many partitions.

    Raises ConfigError with Spark's reason.
    """
    try:
        spark._streamingCheckpointManager.repartition(root, partitions)
    except Py4JJavaError as error:
        said = str(error.java_exception).splitlines()[0]
        raise ConfigError(
            "state-not-repartitioned",
            f"Spark does not share out the state in savepoint {savepoint.name!r} among {partitions} partitions: {said}."
            f" Nothing was changed: restore it with its {savepoint.partitions} partitions",
        ) from error
