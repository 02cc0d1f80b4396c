"""Finds the query that a batch belongs to, and reads its checkpoint's files on any filesystem."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from onefold.clients.files import is_local, local_path
from onefold.core import ConfigError, Positions, Retriable
from onefold.core.checks import present
from onefold.core.positions import CLOCKS, WATERMARK
from onefold.core.values.plain import said_without, shown_url
from onefold.store.job.offset_json import parse_offsets
from onefold.store.job.offset_log import query_id_of
from onefold.store.job.query import Running, RunningQuery


def running_query(spark: SparkSession, known: RunningQuery | None, root: str | None = None) -> RunningQuery:
    """The query that calls foreachBatch, as Spark says: `known`, or another.

    Spark Connect has no JVM handle to ask. There the checkpoint at `root`, which the user gives, names the query, and
    replays are drained, and their watermarks compared, as if the query were stateful.
    """
    if not hasattr(spark, "_jsparkSession"):
        if root is None:
            raise ConfigError(
                "checkpoint-path-missing",
                "on Spark Connect the checkpoint's path must be given: EpochWriter(..., checkpoint='...')",
            )
        process = str(os.getpid())
        if known is not None and (known.root, known.run_id) == (root, process):
            return known
        return RunningQuery(_logged_id(CheckpointFiles(spark), root), process, root, None, (WATERMARK,))
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    run_id = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    if query_id is None or run_id is None:
        raise ConfigError(
            "outside-foreach-batch", "the epoch writer works inside foreachBatch only: df.writeStream.foreachBatch(...)"
        )
    if known is not None and (known.query_id, known.run_id) == (query_id, run_id):
        return known
    execution = _execution(spark, query_id)
    plan = execution.lastExecution().executedPlan().toString()
    return RunningQuery(query_id, run_id, execution.resolvedCheckpointRoot(), _is_stateful(plan), _clocks(plan))


def running_batch(spark: SparkSession, query: RunningQuery) -> Running:
    """Start and end of the batch that runs now, as the execution holds them; unknown on Spark Connect."""
    if not hasattr(spark, "_jsparkSession"):
        return Running()
    execution = _execution(spark, query.query_id)
    context, sources = execution.getLatestExecutionContext(), execution.sources()

    def positions(progress: Any) -> Positions:
        found = [progress.get(sources.apply(number)) for number in range(sources.size())]
        texts = [offset.get().json() if offset.isDefined() else None for offset in found]
        return parse_offsets(texts).without_begun()

    return Running(positions(context.startOffsets()), positions(context.endOffsets()))


def is_active(spark: SparkSession, query: RunningQuery) -> bool:
    """Whether that run of the query still goes on."""
    if not hasattr(spark, "_jsparkSession"):
        return True
    execution = _execution(spark, query.query_id)
    return execution is not None and execution.runId().toString() == query.run_id and execution.isActive()


def is_wanted(spark: SparkSession) -> bool:
    """Whether the query that calls foreachBatch still goes on; called there. Spark Connect cannot tell."""
    if not hasattr(spark, "_jsparkSession"):
        return True
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    execution = None if query_id is None else _execution(spark, query_id)
    return execution is not None and bool(execution.isActive())


def elsewhere(spark: SparkSession, root: str | None = None) -> str | None:
    """Which part of this job is on other machines: the master, or the checkpoint at `root`. None if no part is."""
    master = str(spark.conf.get("spark.master", ""))
    if master.startswith("local") and (root is None or is_local(root)):
        return None
    return f"the master is {master!r}" + ("" if root is None else f" and the checkpoint {root!r}")


class CheckpointFiles:
    """Files of a checkpoint: on this machine as they are, elsewhere through Spark, which knows every filesystem.

    Without Spark only those of this machine.
    """

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def read(self, path: str) -> str | None:
        if is_local(path):
            local = local_path(path)
            return local.read_text() if local.exists() else None
        rows = self._rows(path, F.col("value"))
        return rows[0] if rows else None

    def names(self, folder: str) -> list[str]:
        if is_local(folder):
            local = local_path(folder)
            return [path.name for path in local.iterdir()] if local.exists() else []
        return [name.rpartition("/")[2] for name in self._rows(f"{folder}/*", F.input_file_name())]

    def _rows(self, path: str, column: Column) -> list[str]:
        spark = present(self._spark, "files of other machines are read through Spark")
        try:
            return [str(value) for (value,) in spark.read.text(path, wholetext=True).select(column).collect()]
        except Exception as error:
            if "PATH_NOT_FOUND" in str(error):
                return []
            said = said_without(path, str(error).splitlines()[0])
            raise Retriable("checkpoint-unreadable", f"{shown_url(path)} cannot be read: {said}") from error


def _logged_id(files: CheckpointFiles, root: str) -> str:
    """The query's id, as Spark wrote it down before the first batch."""
    text = files.read(f"{root}/metadata")
    if text is None:
        raise ConfigError(
            "checkpoint-of-another-query",
            f"{shown_url(root)} has no file 'metadata', so it is not the checkpoint of the query that runs: give the"
            " writer the query's checkpointLocation, EpochWriter(..., checkpoint='...')",
        )
    return query_id_of(text, root)


def _execution(spark: SparkSession, query_id: str) -> Any:
    # The batch's session is a clone with a query manager of its own; the shared state knows every running query.
    session = spark._jsparkSession
    uuid = spark._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]  # PySpark: "JVMView | None"
    return session.sharedState().activeStreamingQueries().get(uuid)


def _is_stateful(plan: str) -> bool:
    return any(sign in plan for sign in ("StateStore", "TransformWithState", "GroupsWithState", "state info ["))


def _clocks(plan: str) -> tuple[str, ...]:
    """By which clocks the query makes rows without new records. Deduplication makes none, and merely forgets."""
    if "WithState" in plan and "ProcessingTime" in plan:  # timeouts and timers
        return CLOCKS
    makes_rows = any(sign in plan for sign in ("StateStoreSave", "SymmetricHashJoin", "WithState"))
    return (WATERMARK,) if makes_rows else ()
