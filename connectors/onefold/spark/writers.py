"""The executors' half of an epoch: one pass over the data, into every sink, ending in committables."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.core import Committable, ConfigError, Ordered, Partitioned, Sink, SinkWriter, TaskId
from onefold.core.failpoints import failpoint
from onefold.spark.bad_records import Bad, Letters, Policy
from onefold.spark.columns import columns
from onefold.spark.workers import settle

__all__ = ["Batches", "Fetching", "Written", "run_writers", "shared_out", "write_task"]

Batches = Iterable[pa.RecordBatch | Bad]
Fetching = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch | Bad]]
RESULT_SCHEMA = "written binary"
_DO_WITHOUT = "delivery='staged' in Postgres; in HBase repartition=False, where a key's rows are in one task already"


@dataclass(frozen=True, slots=True)
class Written:
    """What one task, or all of them, prepared, and how many bad records they came upon."""

    committables: tuple[Committable, ...]
    bad: int = 0


def run_writers(
    df: DataFrame,
    sinks: Sequence[Sink],
    task: TaskId,
    fetch: Fetching | None = None,
    policy: Policy | None = None,
    others: Sequence[Sink] = (),
) -> Written:
    """Write all of `df` to every sink, one attempt per partition, and return what the accepted attempts prepared.

    With `fetch`, the rows of `df` are offset ranges, and each task reads its own; `policy` says what becomes of the bad
    records that it comes upon. `others` are the epoch's sinks that are written by another job.
    """
    if policy is not None and policy.sink is not None:
        others = (*others, policy.sink)
    df = shared_out(df, sinks, others, is_direct=fetch is not None)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        written = write_task(sinks, task.another_attempt(), _fetched(batches, fetch), policy)
        yield pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(written)], pa.binary())})

    tasks: list[Written] = [pickle.loads(bytes(row.written)) for row in df.mapInArrow(write, RESULT_SCHEMA).collect()]
    bad = sum(one.bad for one in tasks)
    if policy is not None:
        policy.refuse(task, bad)
    return Written(tuple(committable for one in tasks for committable in one.committables), bad)


def shared_out(df: DataFrame, sinks: Sequence[Sink], others: Sequence[Sink] = (), *, is_direct: bool) -> DataFrame:
    """`df` with its rows in as many partitions, and in the order, that the sinks can take beside the others."""
    wanted = {sink.name: sink.partition_by() for sink in sinks if isinstance(sink, Partitioned)}
    wanted = {name: key for name, key in wanted.items() if key}
    if len(set(wanted.values())) > 1:
        raise ConfigError(
            f"the sinks {', '.join(wanted)} want each key in one task, and their keys differ: give them the same key,"
            f" or each a pipeline of its own, or let all but one do without ({_DO_WITHOUT})"
        )
    for name, key in wanted.items():
        if is_direct:
            raise ConfigError(
                f"sink {name!r} wants the rows of one {', '.join(key)} in one task, and the direct path moves no"
                f" rows between tasks: use pipeline.read and pipeline.write, or let the sink do without ({_DO_WITHOUT})"
            )
        # By an expression that nothing else is shuffled by: adaptive execution drops a shuffle that repeats that of a
        # join before it, and then may split the join's skewed keys among tasks.
        df = df.repartition(F.struct(F.lit("of one key"), *columns(key)))
        break
    orders = {sink.name: order for sink in sinks if isinstance(sink, Ordered) and (order := sink.order_by())}
    if len(set(orders.values())) > 1:
        raise ConfigError(
            f"the sinks {', '.join(orders)} want the rows of a task in one order, and name different ones: give each of"
            " them a pipeline of its own"
        )
    for order in set(orders.values()):
        df = df.sortWithinPartitions(*columns(order))
    limits = [limit for sink in (*sinks, *others) if (limit := sink.writers_max()) is not None]
    if limits:
        df = df.coalesce(max(1, min(limits) // len(limits)))  # sinks with a bound may share one server's slots
    return df


def write_task(sinks: Sequence[Sink], task: TaskId, batches: Batches, policy: Policy | None = None) -> Written:
    """One attempt: every batch to every sink, bad records to theirs, then prepare. A failure undoes what this attempt
    had not prepared."""
    with ExitStack() as undo:

        def writer_of(sink: Sink) -> SinkWriter:
            writer = sink.writer(task)
            undo.callback(_abort, writer)
            return writer

        writers = [writer_of(sink) for sink in sinks]
        dead = writer_of(policy.sink) if policy is not None and policy.sink is not None else None
        letters = Letters(policy, task, dead) if policy is not None else None
        for batch in batches:
            if isinstance(batch, Bad):
                assert letters is not None, "bad records are only fetched where somebody said what becomes of them"
                letters.take(batch.records)
                continue
            for writer in writers:
                writer.write(batch)
        failpoint("writers:written")
        prepared = [writer.prepare() for writer in (*writers, *([dead] if dead is not None else []))]
        undo.pop_all()
    failpoint("writers:prepared")
    committables = tuple(committable for committable in prepared if committable is not None)
    return Written(committables, letters.count if letters is not None else 0)


def _abort(writer: SinkWriter) -> None:
    with suppress(Exception):  # the first error is the one to report; what stays behind, the sweep removes
        writer.abort()


def _fetched(batches: Iterable[pa.RecordBatch], fetch: Fetching | None) -> Batches:
    if fetch is None:
        return batches
    return (rows for ranges in batches for rows in fetch(ranges))
