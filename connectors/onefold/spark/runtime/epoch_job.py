"""The Spark jobs that write one epoch.

The direct path reads each record once, and bad records come along with the rows. Through Spark, the user's own
transformation would lose them: so there a second job reads the epoch's ranges again, for the bad records alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError, EpochRecord, Range, Sink
from onefold.core.job.session import task_of
from onefold.core.writing.attempt import Written
from onefold.core.writing.bad_records import Policy
from onefold.spark.runtime.direct import RANGES_DDL, BadFetch, Fetch
from onefold.spark.runtime.writers import run_writers

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["OwnWriting", "Reading", "ranges_of", "write_epoch"]


class OwnWriting(ABC):
    """A query whose rows are not those of its sinks: it writes its epochs itself. Pickles."""

    @property
    @abstractmethod
    def schemas(self) -> Mapping[str, pa.Schema]:
        """Of the rows of each sink, by its name."""

    @abstractmethod
    def write(self, df: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        """Write the epoch whose rows `df` has."""


Reading: TypeAlias = Fetch | BadFetch | OwnWriting


def write_epoch(
    df: DataFrame,
    record: EpochRecord,
    sinks: Sequence[Sink],
    reading: Reading | None,
    dead_letters: Sink | None,
) -> Written:
    """Write the rows of `df` to the sinks, and the epoch's bad records to theirs."""
    if isinstance(reading, OwnWriting):
        return reading.write(df, record, sinks)
    task = task_of(record)
    if isinstance(reading, Fetch):
        return run_writers(df, sinks, task, reading, Policy.of(reading.source, dead_letters))
    if dead_letters is None:
        return run_writers(df, sinks, task)
    if reading is None:
        raise ConfigError(
            "dead-letters-mismatch",
            "the pipeline has a sink for dead letters, and its DataFrame was not read with pipeline.read, so nobody"
            " knows of its bad records: read it so, or leave out dead_letters",
        )
    rows = run_writers(df, sinks, task, others=(dead_letters,))
    ranges = ranges_of(df.sparkSession, reading.source, record.range)
    if ranges is None:
        return rows
    bad = run_writers(ranges, (), task, reading, Policy.of(reading.source, dead_letters), others=sinks)
    return Written(rows.committables + bad.committables, found=bad.found)


def ranges_of(spark: SparkSession, source: KafkaSource, span: Range) -> DataFrame | None:
    """The offset ranges of an epoch's records of this source; None if there are none."""
    from onefold.sources.kafka import ranges
    from onefold.sources.kafka.planning.offset_snapshot import OffsetSnapshot

    start, end = (
        {at: offset for at, offset in OffsetSnapshot.of(positions).offsets.items() if source.subscription.covers(at[0])}
        for positions in (span.start, span.end)
    )
    wanted = [astuple(each) for each in ranges(start, end, span.end.topic_ids())]
    return spark.createDataFrame(wanted, RANGES_DDL).repartition(len(wanted)) if wanted else None
