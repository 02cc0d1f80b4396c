"""What Spark's own checkpoint says: the source positions of a batch, on any filesystem."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.functions import input_file_name

from onefold.core import CheckpointMismatch, ConfigError, Positions

__all__ = [
    "RunningQuery",
    "committed_end",
    "files_of",
    "initial_positions",
    "is_active",
    "is_local",
    "last_end_before",
    "positions_at",
    "running_query",
]


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query that a foreachBatch function is called for."""

    query_id: str
    run_id: str
    root: str  # the resolved checkpoint root
    stateful: bool | None  # None where nobody can tell (Spark Connect)


def running_query(spark: SparkSession, known: RunningQuery | None, root: str | None = None) -> RunningQuery:
    """Ask Spark, from inside foreachBatch, which query this is: `known`, or another.

    Without a JVM handle (Spark Connect) there is nobody to ask: `root`, as the user gave it, then stands for the query,
    and its replays are drained as if it were stateful.
    """
    if not hasattr(spark, "_jsparkSession"):
        if root is None:
            raise ConfigError("on Spark Connect the checkpoint's path must be given: Pipeline(..., checkpoint='...')")
        return RunningQuery(query_id=root, run_id=str(os.getpid()), root=root, stateful=None)
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    run_id = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    if query_id is None or run_id is None:
        raise ConfigError("the epoch writer works inside foreachBatch only: df.writeStream.foreachBatch(...)")
    if known is not None and (known.query_id, known.run_id) == (query_id, run_id):
        return known
    execution = _execution(spark, query_id)
    plan = execution.lastExecution().executedPlan().toString()
    return RunningQuery(query_id, run_id, execution.resolvedCheckpointRoot(), _is_stateful(plan))


def is_active(spark: SparkSession, query: RunningQuery) -> bool:
    """Whether that run of the query still goes on."""
    if not hasattr(spark, "_jsparkSession"):
        return True
    execution = _execution(spark, query.query_id)
    return execution is not None and execution.runId().toString() == query.run_id and execution.isActive()


def is_local(root: str) -> bool:
    return urlparse(root).scheme in ("", "file")


def positions_at(spark: SparkSession, root: str, batch_id: int) -> Positions | None:
    """Where batch `batch_id` ends, by the checkpoint's `offsets/N`; None if that file isn't there."""
    text = _read(spark, f"{root}/offsets/{batch_id}")
    return None if text is None else _parse(text, f"{root}/offsets/{batch_id}")


def committed_end(spark: SparkSession, root: str) -> Positions | None:
    """Where the last batch that the checkpoint holds as done ends; None for a new checkpoint."""
    done = _logged_batches(spark, f"{root}/commits")
    return positions_at(spark, root, max(done)) if done else None


def last_end_before(spark: SparkSession, root: str, batch_id: int) -> Positions | None:
    """Where the batch before `batch_id` ends; Spark's batch ids can skip. None for the first batch."""
    if batch_id == 0:
        return None
    before = positions_at(spark, root, batch_id - 1)
    if before is not None:
        return before
    earlier = [number for number in _logged_batches(spark, f"{root}/offsets") if number < batch_id]
    if not earlier:
        raise CheckpointMismatch(
            f"the checkpoint at {root} has no offsets before batch {batch_id}: a part of it was deleted. Start the"
            " query with a new, empty checkpoint directory and startingOffsets=ledger"
        )
    return positions_at(spark, root, max(earlier))


def initial_positions(spark: SparkSession, root: str, sources_max: int = 64) -> Positions:
    """Where the query's first batch began, as far as Spark's own Kafka sources log it in `sources/N/0`."""
    logged: dict[str, int | str] = {}
    for number in range(sources_max):
        text = _read(spark, f"{root}/sources/{number}/0")
        if text is None:
            break
        _version, _, body = text.partition("\n")
        try:
            found = Positions.from_spark([body])
        except ValueError:  # another kind of source keeps another kind of log there
            continue
        logged |= {name: offset for name, offset in found.items if not name.startswith("#")}
    return Positions.of(logged)


def files_of(spark: SparkSession, root: str, end: Positions) -> str:
    """A digest of the files that file sources read up to `end`; empty where there is no file source.

    A file source's position is a number of the checkpoint's own: a restored copy gives it again, to other files.
    """
    digest = hashlib.sha256()
    found = False
    for name, number in end.items:
        source, _, kind = name.partition("/")
        if kind == "logOffset" and source.startswith("#"):
            found = True
            log = f"{root}/sources/{source[1:]}/{number}"
            digest.update((_read(spark, log) or _read(spark, f"{log}.compact") or "").encode())
    return digest.hexdigest()[:16] if found else ""


def _parse(text: str, path: str) -> Positions:
    version, _, rest = text.partition("\n")
    if version.strip() != "v1":
        raise ConfigError(
            f"{path} has the format {version.strip()!r}, and onefold reads 'v1': set"
            " spark.sql.streaming.queryEvolution.enableSourceEvolution=false and start with a new checkpoint"
        )
    _metadata, *sources = rest.strip("\n").split("\n")
    return Positions.from_spark([None if line in ("-", "") else line for line in sources])


def _read(spark: SparkSession, path: str) -> str | None:
    if is_local(path):
        local = _local(path)
        return local.read_text() if local.exists() else None
    try:
        rows = spark.read.text(path, wholetext=True).collect()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return None
        raise
    return str(rows[0].value) if rows else None


def _logged_batches(spark: SparkSession, directory: str) -> list[int]:
    if is_local(directory):
        local = _local(directory)
        names = [path.name for path in local.iterdir()] if local.exists() else []
    else:
        try:
            rows = spark.read.text(f"{directory}/*", wholetext=True).select(input_file_name().alias("file")).collect()
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            rows = []
        names = [row.file.rpartition("/")[2] for row in rows]
    return [int(name) for name in names if name.isdigit()]


def _local(path: str) -> Path:
    """Hadoop writes a local path as `file:/tmp/x`, with no character escaped."""
    bare = path.removeprefix("file:")
    return Path("/" + bare.lstrip("/") if bare.startswith("//") else bare)


def _execution(spark: SparkSession, query_id: str) -> Any:
    # The batch's session is a clone with a query manager of its own; the shared state knows every running query.
    session = spark._jsparkSession
    uuid = spark._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]  # PySpark: "JVMView | None"
    return session.sharedState().activeStreamingQueries().get(uuid)


def _is_stateful(plan: str) -> bool:
    return any(sign in plan for sign in ("StateStore", "TransformWithState", "GroupsWithState", "state info ["))
