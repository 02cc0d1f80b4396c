"""What a destination holds, as rows of the columns that are asked for: of a table, an HBase table or a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.core import BadRecord, ConfigError
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.postgres import PostgresSink
from onefold.sources.formats import json
from onefold.sources.formats.values import Unparsable
from onefold.sources.postgres import PostgresSource, describe
from onefold.spark.formats.postgres_format import read_postgres
from onefold.spark.runtime.dataframe_columns import mapped
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.verify.comparing.stored_forms import Stored, as_they_are, form_in_postgres, stored
from onefold.spark.verify.kafka_records import TopicLook

if TYPE_CHECKING:
    from onefold.sinks.hbase import HBaseSink
    from onefold.sinks.sql import SqlSink

Verifiable: TypeAlias = "PostgresSink | SqlSink | HBaseSink | KafkaSink"


def is_table(sink: object) -> TypeGuard[PostgresSink | SqlSink]:
    """Whether it writes to a table of SQL. SQLAlchemy need not be installed."""
    return isinstance(sink, PostgresSink) or type(sink).__module__ == "onefold.sinks.sql.sink"


@dataclass(frozen=True)
class There:
    """What a destination holds. `rows` are those of a table or topic in some columns; of a topic with keys the newest
    record of each, and none where that is a tombstone. With a `snapshot` of its database, or of a `topic` the records
    that a look at it has found, it is as it was then; else as it is when the rows are read. A copy is no sink's.
    `stored` brings rows into the form in which a table writes them, which its own `rows` have."""

    rows: Callable[[StructType], DataFrame]
    stored: Stored = as_they_are
    snapshot: str | None = None
    topic: TopicLook | None = None
    is_copy: bool = False

    @property
    def is_of_one_moment(self) -> bool:
        return self.snapshot is not None or self.topic is not None


@contextmanager
def looked_at(spark: SparkSession, sink: Verifiable) -> Iterator[There]:
    """A sink's table or topic as it is now, which stays so within the block where it has such a thing."""
    # Those whose client need not be installed by who verifies something else are imported where they are needed.
    if isinstance(sink, PostgresSink):
        # What was written may be narrower than its column: an int in a bigint, a decimal in a numeric without bounds.
        with PostgresSource(sink.url, sink.table, narrowing="check", hold_s=0).frozen() as table:
            forms = {name: form for name, kind in describe(table) if (form := form_in_postgres(kind)) is not None}
            written = stored(forms)
            # A document that does not fit is a row that was changed, and no reason to stop.
            yield There(
                lambda schema: written(
                    read_postgres(spark, replace(table, columns=tuple(schema.names)), schema, json_mode="PERMISSIVE")
                ),
                written,
                snapshot=table.snapshot,
            )
    elif isinstance(sink, KafkaSink):
        look = TopicLook.at(sink)
        yield There(lambda schema: _newest_of_topic(spark, look, schema), topic=look)
    elif is_table(sink):
        from onefold.spark.verify.sql_results import forms_of, read_sql_table

        written = stored(forms_of(cast("SqlSink", sink)))
        yield There(lambda schema: written(read_sql_table(spark, cast("SqlSink", sink), schema)), written)
    else:
        from onefold.sources.hbase import HBaseSource
        from onefold.spark.formats.hbase_source import read_hbase

        settings = cast("HBaseSink", sink).settings
        source = HBaseSource(settings.hbase, settings.declared)
        yield There(lambda schema: read_hbase(spark, source, schema, json_mode="PERMISSIVE"))


def _newest_of_topic(spark: SparkSession, look: TopicLook, schema: StructType) -> DataFrame:
    sink = look.sink
    encoding = sink.settings.encoding
    if encoding.format != "json" or encoding.headers:
        raise ConfigError(
            "verify-unsupported",
            f"sink {sink.name!r} writes records of format={encoding.format!r}"
            f"{' with headers' if encoding.headers else ''}, and an expectation is compared with columns out of JSON:"
            " leave out --expect, or name other sinks, --sink",
        )
    found = look.records(spark)
    if encoding.key:
        newest = Window.partitionBy("key").orderBy(F.desc("offset"))
        found = found.withColumn("__number", F.row_number().over(newest)).where("__number = 1")
    return mapped(found.where("value IS NOT NULL").select("value"), _parsing(sink.settings.topic, schema), schema)


def _parsing(topic: str, schema: StructType) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    wanted = to_arrow_schema(schema, timezone="UTC")
    json.check(wanted)

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        parser = json.JsonParser(wanted)
        for batch in batches:
            try:
                yield parser.parse(batch.column(0).to_pylist())
            except Unparsable as error:
                raise BadRecord(
                    "value-not-readable",
                    f"topic {topic} has a record that is no row of the expectation: {error.reason}. Cast the query's"
                    " column to what the topic has, or mend the record, and verify again",
                ) from None

    return parse
