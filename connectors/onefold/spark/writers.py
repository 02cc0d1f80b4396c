"""The executors' half of an epoch: one pass over the data, into every sink, ending in committables."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.core import Committable, ConfigError, Partitioned, Sink, SinkWriter, TaskId
from onefold.core.failpoints import failpoint
from onefold.spark.columns import columns
from onefold.spark.direct import Fetch
from onefold.spark.workers import settle

__all__ = ["Batches", "run_writers", "shared_out", "write_task"]

Batches = Iterable[pa.RecordBatch]
RESULT_SCHEMA = "committables binary"


def run_writers(
    df: DataFrame, sinks: Sequence[Sink], task: TaskId, fetch: Fetch | None = None
) -> tuple[Committable, ...]:
    """Write all of `df` to every sink, one attempt per partition, and return what the accepted attempts prepared.

    With `fetch`, the rows of `df` are offset ranges, and each task reads its own.
    """
    df = shared_out(df, sinks, is_direct=fetch is not None)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        prepared = write_task(sinks, task.another_attempt(), _fetched(batches, fetch))
        yield pa.RecordBatch.from_pydict({"committables": pa.array([pickle.dumps(prepared)], pa.binary())})

    rows = df.mapInArrow(write, RESULT_SCHEMA).collect()
    return tuple(committable for row in rows for committable in pickle.loads(bytes(row.committables)))


def shared_out(df: DataFrame, sinks: Sequence[Sink], *, is_direct: bool) -> DataFrame:
    """`df` with its rows in the partitions that the sinks can take, and in no more of them."""
    wanted = {sink.name: sink.partition_by() for sink in sinks if isinstance(sink, Partitioned)}
    wanted = {name: key for name, key in wanted.items() if key}
    if len(set(wanted.values())) > 1:
        raise ConfigError(
            f"the sinks {', '.join(wanted)} want each key in one task, and their keys differ: give all but one of them"
            " delivery='staged' in a pipeline of its own, or the same key"
        )
    for name, key in wanted.items():
        if is_direct:
            raise ConfigError(
                f"sink {name!r} wants the rows of one {', '.join(key)} in one task, and the direct path moves no"
                " rows between tasks: use pipeline.read and pipeline.write, or delivery='staged'"
            )
        # By an expression that nothing else is shuffled by: adaptive execution drops a shuffle that repeats that of a
        # join before it, and then may split the join's skewed keys among tasks.
        df = df.repartition(F.struct(F.lit("of one key"), *columns(key)))
        break
    limits = [limit for sink in sinks if (limit := sink.writers_max()) is not None]
    if limits:
        df = df.coalesce(max(1, min(limits) // len(limits)))  # sinks with a bound may share one server's slots
    return df


def write_task(sinks: Sequence[Sink], task: TaskId, batches: Batches) -> tuple[Committable, ...]:
    """One attempt: every batch to every sink, then prepare. A failure undoes what this attempt had not prepared."""
    with ExitStack() as undo:
        writers: list[SinkWriter] = []
        for sink in sinks:
            writer = sink.writer(task)
            writers.append(writer)
            undo.callback(_abort, writer)
        for batch in batches:
            for writer in writers:
                writer.write(batch)
        failpoint("writers:written")
        prepared = [writer.prepare() for writer in writers]
        undo.pop_all()
    failpoint("writers:prepared")
    return tuple(committable for committable in prepared if committable is not None)


def _abort(writer: SinkWriter) -> None:
    with suppress(Exception):  # the first error is the one to report; what stays behind, the sweep removes
        writer.abort()


def _fetched(batches: Batches, fetch: Fetch | None) -> Batches:
    if fetch is None:
        return batches
    return (rows for ranges in batches for rows in fetch(ranges))
