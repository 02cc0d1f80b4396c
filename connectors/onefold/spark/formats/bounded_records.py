"""A source's records between two positions, as a bounded DataFrame: those that can be read, or those that can't."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.core import Positions, Range
from onefold.core.source import Part, Source, Split, own_positions
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.spark.runtime.workers import freeze_imports, is_guarded, prepare_workers

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

Reader = Callable[[Split], Iterator[Part]]


def read_records(spark: SparkSession, source: Source, span: Range) -> DataFrame:
    """The records that can be read: `source.arrow_schema()`. With its `on_error` "fail" a bad one ends the query."""
    return read_splits(spark, source, splits_of(source, span))


def read_splits(
    spark: SparkSession,
    source: Source,
    splits: Sequence[Split],
    schema: pa.Schema | None = None,
    made: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]] = lambda rows: iter([rows]),
) -> DataFrame:
    """The same of what a planner has planned, which stays open meanwhile; with a `schema`, what is `made` of them."""
    whole = source if source.on_error == "fail" else _of_all_epochs(source, "skip")
    return _parts(spark, whole, splits, schema or whole.arrow_schema(), attrgetter("rows"), made=made)


def read_values(
    spark: SparkSession,
    source: KafkaSource,
    splits: Sequence[Split],
    schema: pa.Schema,
    made: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]],
) -> DataFrame:
    """What is `made` of the records' values, which nobody parses: a batch has the one column `value`, binary."""
    from onefold.sources.kafka import read_parts

    raw = replace(source, format="raw", schema=None, columns=())
    value = pa.schema([("value", pa.binary())])

    def read(split: Split) -> Iterator[Part]:
        return read_parts(raw, value, split.range, guarded=is_guarded())

    return _parts(spark, raw, splits, schema, attrgetter("rows"), read, made)


def read_bad_records(spark: SparkSession, source: Source, start: Positions, end: Positions) -> DataFrame:
    """The records between two positions that cannot be read: `onefold.core.writing.dead_letters.BAD_COLUMNS`."""
    whole = _of_all_epochs(source, "dead_letter")
    return _parts(spark, whole, splits_of(whole, Range(start, end)), BAD_COLUMNS, attrgetter("bad"))


def bad_of_epoch(spark: SparkSession, source: KafkaSource, span: Range) -> DataFrame:
    """Those of an epoch whose others were read before: the same ones, or the epoch fails."""
    from onefold.sources.kafka import read_parts

    def read(split: Split) -> Iterator[Part]:
        return read_parts(source, source.arrow_schema(), split.range, repeatable=True, guarded=is_guarded())

    return _parts(spark, source, splits_of(source, span), BAD_COLUMNS, attrgetter("bad"), read)


def _parts(
    spark: SparkSession,
    source: Source,
    splits: Sequence[Split],
    schema: pa.Schema,
    of: Callable[[Part], pa.RecordBatch],
    reader: Reader | None = None,
    made: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]] = lambda rows: iter([rows]),
) -> DataFrame:
    prepare_workers(spark, source)
    if not splits:
        return spark.createDataFrame([], from_arrow_schema(schema))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for batch in batches:
            for pickled in batch.column(0).to_pylist():  # a row is a whole split of records
                split = pickle.loads(pickled)
                parts = source.read(split, guarded=is_guarded()) if reader is None else reader(split)
                yield from (found for part in parts if (rows := of(part)).num_rows for found in made(rows))

    rows = spark.createDataFrame([(pickle.dumps(split),) for split in splits], "split binary")
    return rows.repartition(len(splits)).mapInArrow(read, from_arrow_schema(schema))


def splits_of(source: Source, span: Range) -> Sequence[Split]:
    """The parts of a range, of a source whose positions say enough."""
    end = own_positions(source, span.end)
    there = dict(end.items)  # a partition that came after `end` was read has nothing before it
    begin = own_positions(source, span.start)
    start = Positions.of([(name, at) for name, at in begin.items if name in there], begin.marks)
    with closing(source.planner(start)) as planner:
        return planner.splits(Range(start, end))


def _of_all_epochs(source: Source, on_error: str) -> Source:
    """The source without a limit of bad records: all epochs together may have more than one epoch may have."""
    return cast(Source, replace(cast(Any, source), on_error=on_error, bad_records_max=2**62))
