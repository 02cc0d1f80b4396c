"""Settings of Spark's Python workers, the processes that run one task after another."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from onefold.core import ConfigError
from onefold.spark.errors.failures import from_spark, share_key

_GUARDED = "onefold.guarded"  # a property of the jobs that one thread of the driver starts

_is_frozen = False
_importable: set[tuple[str, str]] = set()  # Spark's application, and a module that its workers have imported


def prepare_workers(spark: SparkSession, *parts: object) -> None:
    """Sees to it that Spark's Python workers can import onefold, and what these sinks and sources need.

    On a local master the workers run this process's Python, unless PYSPARK_PYTHON or spark.pyspark.python says
    otherwise; Spark itself takes the first python3 on PATH. Any other Python is tried once by a job of one task:
    raises ConfigError where it cannot import them.
    """
    share_key(spark)
    if _run_here(spark):
        return
    application = str(spark.conf.get("spark.app.id", ""))
    needed = {(application, type(part).__module__) for part in parts} | {(application, "onefold")}
    if needed <= _importable:
        return
    pickled: bytes = cloudpickle.dumps(parts)  # type: ignore[no-untyped-call]  # it has no types

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _unpickle(pickled)
        yield from batches

    try:
        spark.range(0, 1, 1, 1).mapInArrow(look, "id long").collect()
    except Exception as error:
        failed = from_spark(error)
        if failed.code == "module-not-importable":
            raise ConfigError("workers-without-onefold", failed.message) from error
        raise failed from error
    _importable.update(needed)


def _run_here(spark: SparkSession) -> bool:
    """Whether the workers run this process's Python. Has them do so, where that is for onefold to choose."""
    if not hasattr(spark, "_jsparkSession"):
        return False  # Spark Connect: they are the server's
    context = spark.sparkContext
    is_local = str(context.master).startswith("local")
    if is_local and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = spark.conf.get("spark.pyspark.python", None) or sys.executable
    return is_local and shutil.which(context.pythonExec) == sys.executable


def _unpickle(pickled: bytes) -> None:
    """In a worker: imports onefold, to find this function, and then all that the pickled objects are made of."""
    pickle.loads(pickled)


def freeze_imports() -> None:
    """Takes what is imported by now out of garbage collection. Call it first in a task: PySpark collects after every
    task, over everything that was ever imported (CPU per small task: from 190 to 105 ms)."""
    global _is_frozen
    if not _is_frozen:
        _is_frozen = True
        gc.freeze()


@contextmanager
def guarding(spark: SparkSession, is_on: bool = True) -> Iterator[None]:
    """Marks the jobs that the driver starts meanwhile: `from_spark` reads their errors, and if it `is_on` their tasks
    parse in a way in which no value can end their worker."""
    share_key(spark)
    spark.sparkContext.setLocalProperty(_GUARDED, str(is_on))
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(_GUARDED, "False")


def is_guarded() -> bool:
    """Whether this task must parse with care: its job is marked by `guarding`, or an earlier attempt failed."""
    context = TaskContext.get()
    return context is not None and (context.attemptNumber() > 0 or context.getLocalProperty(_GUARDED) == "True")
