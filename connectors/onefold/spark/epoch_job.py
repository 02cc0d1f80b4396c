"""The Spark jobs that write one epoch.

The direct path reads each record once, so there the bad records come along with the rows. Through Spark, whatever the
user put between reading and writing would lose them: there the epoch's ranges are read a second time, for them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError, EpochRecord, Range, Sink
from onefold.spark.bad_records import Bad, Policy
from onefold.spark.direct import Fetch
from onefold.spark.session import task_of
from onefold.spark.writers import Written, run_writers

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["BadFetch", "policy_of", "write_epoch"]

RANGES_DDL = "topic string, partition int, start bigint, end bigint"


@dataclass(frozen=True)
class BadFetch:
    """From a batch of offset ranges to the bad records in them. Pickles; runs in the writing task."""

    source: KafkaSource
    records: pa.Schema

    def __call__(self, ranges: pa.RecordBatch) -> Iterator[Bad]:
        from onefold.sources.kafka import OffsetRange, read_parts

        for row in ranges.to_pylist():
            wanted = OffsetRange(row["topic"], row["partition"], row["start"], row["end"])
            for part in read_parts(self.source, self.records, wanted, settled=True):
                if part.bad.num_rows:
                    yield Bad(part.bad)


def policy_of(reading: Fetch | BadFetch | None, dead_letters: Sink | None) -> Policy | None:
    """What becomes of the bad records that the epoch's own jobs come upon."""
    if reading is None or (isinstance(reading, BadFetch) and reading.source.on_error != "dead_letter"):
        return None
    return Policy.of(reading.source, dead_letters)


def write_epoch(
    df: DataFrame,
    record: EpochRecord,
    sinks: Sequence[Sink],
    reading: Fetch | BadFetch | None,
    dead_letters: Sink | None,
) -> Written:
    """Write the rows of `df` to the sinks, and the epoch's bad records to theirs."""
    task, policy = task_of(record), policy_of(reading, dead_letters)
    if isinstance(reading, Fetch):
        return run_writers(df, sinks, task, reading, policy)
    if dead_letters is None:
        return run_writers(df, sinks, task)
    if reading is None:
        raise ConfigError(
            "the pipeline has a sink for dead letters, and its DataFrame was not read with pipeline.read, so nobody"
            " knows of its bad records: read it so, or leave out dead_letters"
        )
    rows = run_writers(df, sinks, task, others=(dead_letters,))
    ranges = _ranges(df.sparkSession, reading.source, record.range)
    if ranges is None:
        return rows
    bad = run_writers(ranges, (), task, reading, policy, others=sinks)
    return Written(rows.committables + bad.committables, bad.bad)


def _ranges(spark: SparkSession, source: KafkaSource, span: Range) -> DataFrame | None:
    """The offset ranges of an epoch's records of this source; None if there are none."""
    from onefold.sources.kafka import ranges
    from onefold.sources.kafka.offsets import offsets_of

    start, end = (
        {at: offset for at, offset in offsets_of(positions).items() if at[0] in source.topics}
        for positions in (span.start, span.end)
    )
    wanted = [(each.topic, each.partition, each.start, each.end) for each in ranges(start, end)]
    return spark.createDataFrame(wanted, RANGES_DDL).repartition(len(wanted)) if wanted else None
