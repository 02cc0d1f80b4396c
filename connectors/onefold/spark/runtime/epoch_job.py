"""The Spark jobs that write one epoch.

The direct path reads each record once, and bad records come along with the rows. Through Spark, the user's own
transformation would lose them: so there a second job reads the epoch's ranges again, for the bad records alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from onefold.core import ConfigError, EpochRecord, Positions, Range, Sink
from onefold.core.dead_letters import BAD_COLUMNS
from onefold.core.job.session import task_of
from onefold.spark.formats.registration import register
from onefold.spark.runtime.bad_records import Policy
from onefold.spark.runtime.direct import RANGES_DDL, BadFetch, Fetch
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.runtime.writers import Written, run_writers

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["policy_of", "read_bad_records", "write_epoch"]


def policy_of(reading: Fetch | BadFetch | None, dead_letters: Sink | None) -> Policy | None:
    """The policy for bad records that the epoch's own jobs find."""
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


def read_bad_records(spark: SparkSession, source: KafkaSource, start: Positions, end: Positions) -> DataFrame:
    """The records between two positions that cannot be read: `onefold.core.dead_letters.BAD_COLUMNS`."""
    register(spark)
    whole = _of_all_epochs(source, start)
    df = spark.read.format("onefold_kafka").options(**whole.options(start)).load()
    fetch = BadFetch(whole, to_arrow_schema(df.schema, timezone="UTC"), repeatable=False)
    ranges = _ranges(spark, source, Range(start, end))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        return (bad.records for batch in batches for bad in fetch(batch))

    columns = from_arrow_schema(BAD_COLUMNS)
    return spark.createDataFrame([], columns) if ranges is None else ranges.mapInArrow(read, columns)


def _of_all_epochs(source: KafkaSource, start: Positions) -> KafkaSource:
    """The source without a limit of bad records: all epochs together may have more than one epoch may have."""
    from onefold.sources.kafka import KafkaSource

    options = source.options(start) | {"onError": "dead_letter", "badRecordsMax": str(2**62)}
    return KafkaSource.from_options(options)


def _ranges(spark: SparkSession, source: KafkaSource, span: Range) -> DataFrame | None:
    """The offset ranges of an epoch's records of this source; None if there are none."""
    from onefold.sources.kafka import ranges
    from onefold.sources.kafka.planning.offset_snapshot import OffsetSnapshot

    start, end = (
        {at: offset for at, offset in OffsetSnapshot.of(positions).offsets.items() if source.subscription.covers(at[0])}
        for positions in (span.start, span.end)
    )
    wanted = [astuple(each) for each in ranges(start, end, span.end.topic_ids())]
    return spark.createDataFrame(wanted, RANGES_DDL).repartition(len(wanted)) if wanted else None
