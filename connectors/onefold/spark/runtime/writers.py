"""Writes an epoch's rows to every sink in the executors: in one pass, unless the sinks need different arrangements."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.core import EpochRecord, Sink, TaskId
from onefold.core.writing.arrangement import AS_THEY_COME, Arrangement, Pass, passes
from onefold.core.writing.attempt import Written, write_letters, write_task
from onefold.core.writing.dead_letters import Policy
from onefold.spark.runtime.dataframe_columns import columns, mapped
from onefold.spark.runtime.workers import freeze_imports

RESULT_SCHEMA = "written binary"


class OwnWriting(ABC):
    """A query whose rows are not those of its sinks: it writes its epochs itself."""

    @property
    @abstractmethod
    def schemas(self) -> Mapping[str, pa.Schema]:
        """Of the rows of each sink, by its name."""

    @abstractmethod
    def write(self, df: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        """Write the epoch whose rows `df` has."""


def run_writers(df: DataFrame, sinks: Sequence[Sink], task: TaskId, others: Sequence[Sink] = ()) -> Written:
    """Write all of `df` to every sink, one attempt per partition, and return what the accepted attempts prepared.

    `others` are the epoch's sinks that are written by another job.
    """
    most, plan = writers_max((*sinks, *others)), passes(sinks)
    with _kept(df, plan):
        parts = [_run(shared_out(df, one.arrangement, most), partial(write_task, one.sinks, task)) for one in plan]
    return Written(tuple(committable for part in parts for committable in part.committables))


def run_letters(df: DataFrame, policy: Policy, task: TaskId, others: Sequence[Sink]) -> Written:
    """The same of the bad records `df`, of which the policy's sink gets dead letters. Raises BadRecord where they are
    too many."""
    most = writers_max(others if policy.sink is None else (policy.sink, *others))
    written = _run(shared_out(df, AS_THEY_COME, most), partial(write_letters, policy, task))
    policy.refuse(task, written.bad)
    return Written(written.committables, found=((written.bad, policy),))


def _run(df: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Written]) -> Written:
    """A job of which each task runs that."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        yield pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(task(batches))], pa.binary())})

    tasks: list[Written] = results(mapped(df, write, RESULT_SCHEMA))
    return Written(tuple(committable for one in tasks for committable in one.committables), sum(t.bad for t in tasks))


def results(df: DataFrame) -> list[Any]:
    """Run the tasks, each of which gives one row of RESULT_SCHEMA: what its accepted attempt prepared, pickled."""
    return [pickle.loads(bytes(row.written)) for row in df.collect()]


@contextmanager
def _kept(df: DataFrame, plan: Sequence[Pass]) -> Iterator[None]:
    """Computes the epoch's rows once for several passes, so that all sinks get the same rows."""
    if len(plan) < 2 or df.storageLevel != StorageLevel.NONE:  # cached by the user, who may go on with it
        yield
        return
    df.persist()
    try:
        yield
    finally:
        df.unpersist()


def shared_out(df: DataFrame, arrangement: Arrangement, writers_max: int | None = None) -> DataFrame:
    """`df` with its rows in the partitions and the order that the sinks need."""
    if arrangement.partition_by:
        # By an expression that nothing else is shuffled by: adaptive execution drops a shuffle that repeats that of a
        # join before it, and then may split the join's skewed keys among tasks.
        df = df.repartition(F.struct(F.lit("of one key"), *columns(arrangement.partition_by)))
    if arrangement.order_by:
        order = dict.fromkeys((*arrangement.partition_by, *arrangement.order_by))
        df = df.sortWithinPartitions(*columns(order))
    return df if writers_max is None else df.coalesce(writers_max)


def writers_max(sinks: Sequence[Sink]) -> int | None:
    limits = [limit for sink in sinks if (limit := sink.writers_max()) is not None]
    return max(1, min(limits) // len(limits)) if limits else None  # they may share one server's slots
