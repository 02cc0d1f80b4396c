"""A query's checkpoint as it is copied: where it stands, which of its files belong to that, and how its state is shared
out."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from onefold.core import ConfigError, Positions
from onefold.core.checks import present
from onefold.core.protocol.effects import Protocol, ReadFile, retry
from onefold.core.values.remedies import RESET
from onefold.engine.savepoints.savepoint import Savepoint
from onefold.store.job import offset_log

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_LOGGED = re.compile(r"(?:offsets|commits|state/.*/_metadata/v2)/(\d+)")
_VERSION = re.compile(r"state/(?:.*/)?(\d+)(?:_[^./]+)?\.(?:delta|snapshot|zip|changelog)")


@dataclass(frozen=True, slots=True)
class CheckpointStanding:
    """The last batch that the checkpoint has as done, where it ends, and what its state is kept by."""

    query_id: str
    batch_id: int
    end: Positions
    partitions: int | None
    provider: str | None


def standing(root: str, clocks: Collection[str]) -> Protocol[CheckpointStanding | None]:
    """None for a checkpoint without a batch that is done. `clocks` are those of the pipeline's positions."""
    done = yield from offset_log.last_committed(root)
    if done is None:
        return None
    end = yield from offset_log.end_of(root, done.batch_id, clocks)
    text: str | None = yield from retry(ReadFile(f"{root}/offsets/{done.batch_id}"))
    settings = json.loads((text or "\n{}").split("\n")[1]).get("conf", {})
    partitions = settings.get(_PARTITIONS)
    return CheckpointStanding(
        done.query_id,
        done.batch_id,
        done.end if end is None else end,
        None if partitions is None else int(partitions),
        settings.get(_PROVIDER),
    )


def belonging(paths: Iterable[str], batch_id: int) -> list[str]:
    """Those of a checkpoint's files that are of that batch or an earlier one.

    A later batch may be planned, and its tasks may have left state of it: nothing of it is decided, and another batch
    is planned in its place. What it left must not be taken for that one's.
    """
    return [path for path in paths if _last_batch(path) <= batch_id]


def has_state(paths: Iterable[str]) -> bool:
    return any(path.startswith("state/") for path in paths)


def with_query_id(metadata: str, query_id: str) -> str:
    """The checkpoint's file `metadata` for another query: Spark stops a query when one of the same id starts."""
    return json.dumps(json.loads(metadata) | {"id": query_id}, separators=(",", ":"))


def names_schemas(path: str) -> bool:
    """Whether that file of a checkpoint names others of it by their whole paths."""
    return re.fullmatch(r"state/\d+/_metadata/v2/\d+", path) is not None


def with_schemas_below(metadata: str, root: str) -> str:
    """An operator's metadata for a checkpoint at `root`: the schemas of its state (of transformWithState) are there."""
    return re.sub(r'"[^"]*(/state/\d+/_stateSchema/[^"]*)"', lambda found: json.dumps(root + found[1]), metadata)


def _last_batch(path: str) -> int:
    if found := _LOGGED.fullmatch(path):
        return int(found[1])
    if found := _VERSION.fullmatch(path):
        return int(found[1]) - 1  # batch N leaves version N + 1
    return -1


def check_repartition(savepoint: Savepoint, partitions: int) -> None:
    """Raises ConfigError for what Spark does not do, before anything is copied."""
    query = present(savepoint.query, "it is a query's")
    if query.provider is None:
        raise ConfigError(
            "savepoint-stateless",
            f"savepoint {savepoint.name!r} is of a query without state, which has no parts to share out: leave out"
            " --shuffle-partitions",
        )
    if query.provider != ROCKSDB and query.partitions != partitions:
        raise ConfigError(
            "state-not-repartitioned",
            f"the state in savepoint {savepoint.name!r} is kept by {query.provider.rpartition('.')[2]}, and Spark"
            " shares out that of RocksDBStateStoreProvider only. Restore it with its"
            f" {query.partitions} partitions,"
            f" or {RESET}, with that provider in [spark.settings]"
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
            " Nothing was changed: restore it with the partitions that it has",
        ) from error
