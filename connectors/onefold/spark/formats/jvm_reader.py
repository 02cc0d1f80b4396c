"""`reader="spark"`: the same source through Spark's own Kafka connector; values parsed as Arrow by the same parsers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from onefold.core import ConfigError, Positions
from onefold.core.job.offset_json import format_offsets
from onefold.spark.errors.failures import from_spark
from onefold.spark.runtime.columns import struct_of
from onefold.spark.runtime.refusals import check_reader
from onefold.spark.runtime.workers import freeze_imports, is_guarded

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource
    from onefold.sources.kafka.fetching.records import Wanted

__all__ = ["read_through_spark"]


def read_through_spark(spark: SparkSession, source: KafkaSource, known: Positions, start: Positions) -> DataFrame:
    """The stream of the source's records from `start` on, with the columns that it has otherwise.

    Spark's positions don't say of which topics they are: here, once for a query, the topics of now are held against
    those of `known`.
    """
    from onefold.sources.kafka import RAW_COLUMNS, check_schema, record_ddl

    ddl = record_ddl(source)
    schema = to_arrow_schema(struct_of(ddl), timezone="UTC")
    check_schema(source, schema)
    try:
        records = spark.readStream.format("kafka").options(**_options(source, known, start)).load()
    except AnalysisException as error:
        if "Failed to find data source: kafka" in str(error):
            raise ConfigError(
                "spark-connector-missing",
                "reader='spark' needs Spark's Kafka connector in the session: start it with spark.jars.packages="
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}",
            ) from None
        raise from_spark(error) from error
    # As our own reader gives them, and for its reason: Spark takes quadratic time to hand null lists to Python.
    headers = F.coalesce("headers", F.array().cast(records.schema["headers"].dataType))
    records = records.withColumn("headers", headers).select(*RAW_COLUMNS.names)
    return records if source.format == "raw" else records.mapInArrow(_Parse(source, schema), ddl)


def _options(source: KafkaSource, known: Positions, start: Positions) -> dict[str, str]:
    from onefold.sources.kafka.config.java import java_settings
    from onefold.sources.kafka.planning.offset_snapshot import OffsetSnapshot
    from onefold.sources.kafka.planning.starting import check_ids

    check_reader(source)
    topics = source.subscription.find(source.broker(), start.topics())
    check_ids(known.topic_ids(), topics)
    offsets = OffsetSnapshot.of(start).offsets
    # Spark wants every partition named; those that came later stand at their first record.
    every = {
        (topic, number): offsets.get((topic, number), 0) for topic, at in topics.items() for number in at.partitions
    }
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "startingOffsets": format_offsets(OffsetSnapshot(every).positions()),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    if source.topics_pattern is None:
        options["subscribe"] = ",".join(source.topics)
    else:
        options["subscribePattern"] = source.topics_pattern
    if source.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return options | {f"kafka.{name}": value for name, value in java_settings(source.client_config).items()}


@dataclass(frozen=True)
class _SparksRecords:
    """What came out of the JVM, as the formats get records: of one partition, since a task of Spark's reads one."""

    batch: pa.RecordBatch
    wanted: Wanted

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def too_large(self) -> Mapping[int, int | None]:
        """As our own reader counts. Spark's connector has all of a record in memory by now, whatever its size."""
        from onefold.sources.kafka.fetching.records import HEADER_BYTES

        columns = ("value", *(["key"] if self.wanted.key else []))
        sizes = sum((_lengths(self.batch.column(name)) for name in columns), np.zeros(len(self), np.int64))
        if self.wanted.headers:
            headers = self.batch.column("headers")
            rows, pairs = pc.list_parent_indices(headers), headers.flatten()
            lengths = _lengths(pairs.field("key")) + _lengths(pairs.field("value")) + HEADER_BYTES
            sizes = sizes + np.bincount(rows, lengths, len(self)).astype(np.int64)
        sizes = pa.array(sizes)
        at = pc.indices_nonzero(pc.greater(sizes, self.wanted.record_bytes_max))
        return dict(zip(at.to_pylist(), sizes.take(at).to_pylist(), strict=True))

    @property
    def values(self) -> Sequence[bytes | None]:
        values: list[bytes | None] = self.batch.column("value").to_pylist()
        return values

    @property
    def odd_headers(self) -> Mapping[int, str]:
        """None: Spark's own client reads all names, and any number."""
        return {}

    def column(self, field: pa.Field) -> pa.Array:
        return self.batch.column(field.name).cast(field.type)


def _lengths(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64)
    return lengths


@dataclass(frozen=True)
class _Parse:
    """Parses raw records into rows, in a worker. It skips bad records as `on_error` says, up to the source's limit."""

    source: KafkaSource
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from onefold.sources.kafka import OffsetRange
        from onefold.sources.kafka.reading import Parsing, tell_skipped

        freeze_imports()
        # Dead letters are found by reading again: what may parse by then must be no bad record now.
        repeatable = self.source.on_error == "dead_letter"
        parsing = Parsing(self.source, self.schema, repeatable=repeatable, guarded=is_guarded())
        begin, skipped = None, 0
        for batch in batches:
            if batch.num_rows:
                (first, last) = (batch.slice(at, 1).to_pylist()[0] for at in (0, batch.num_rows - 1))
                wanted = OffsetRange(first["topic"], first["partition"], first["offset"], last["offset"] + 1)
                part = parsing.part(_SparksRecords(batch, parsing.wanted), wanted)
                begin, skipped = begin or wanted, skipped + part.bad.num_rows
                if part.rows.num_rows:
                    yield part.rows
        if begin is not None:
            tell_skipped(self.source, replace(begin, end=wanted.end), skipped)
