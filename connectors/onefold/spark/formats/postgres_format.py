"""`onefold_postgres`: a Postgres table or query as a Spark data source, and batches written into a sink's table.

Spark plans a read in a Python process of the driver that may end at any time after, so nothing there can hold a
snapshot for the parts: `read_postgres` holds it in the user's own process, and the format takes its id.
"""

from __future__ import annotations

import atexit
import dataclasses
from collections import deque
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from onefold.core import ConfigError, Sink
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sources.postgres import HeldSnapshot, PostgresSource, describe, hold, resolve
from onefold.spark.formats.batch_writes import BatchWrites, by_key
from onefold.spark.formats.registration import in_words_of_spark, register
from onefold.spark.formats.table_reads import NESTED, BatchReader, fields_of, parsed, wire_of

HELD_MAX = 4

_held: deque[HeldSnapshot] = deque()


def read_postgres(
    spark: SparkSession,
    source: PostgresSource,
    schema: StructType | str | None = None,
    *,
    json_mode: str = "FAILFAST",
) -> DataFrame:
    """The source as a DataFrame; with a `schema`, by default its own, the columns as exactly those types.

    json and jsonb are read as strings, or parsed where `schema` says something nested; a document that does not fit
    fails the read, or with `json_mode="PERMISSIVE"` gives nulls. Unless the source is frozen already (`with
    source.frozen() as source:`, which says when it ends), a snapshot is taken now and held by this process for
    `hold_s`, at most 4 such: the oldest goes first.
    """
    register(spark)
    fields = fields_of(spark, schema or source.schema)
    types = describe(source)
    jsons = {name for name, kind in types if kind.is_json}
    nested = {f.name for f in fields if f.name in jsons and isinstance(f.dataType, NESTED)}
    wire = wire_of(fields, nested)
    # What does not fit is refused here, not by a job.
    columns = resolve(source, types, to_arrow_schema(wire, timezone="UTC") if fields else None)
    if source.snapshot == "shared":
        source = dataclasses.replace(source, snapshot=_hold(source).id)
    reader = spark.read.format("onefold_postgres").options(**source.options())
    if not fields:
        return reader.schema(from_arrow_schema(pa.schema([(c.name, c.kind) for c in columns]))).load()
    return parsed(reader.schema(wire).load(), fields, nested, json_mode)


def _hold(source: PostgresSource) -> HeldSnapshot:
    held = hold(source)
    _held.append(held)
    while len(_held) > HELD_MAX:
        _held.popleft().release()
    return held


@atexit.register
def _release_all() -> None:
    while _held:
        _held.popleft().release()


class OnefoldPostgresDataSource(BatchWrites):
    """One name in Spark for reading tables and for writing batches.

    Options of a read: the fields of `PostgresSource` but `hold_s`, in Spark's style (`splitBy`), with commas between
    columns. Columns: those of Postgres, or what `.schema(...)` says. Reading in more than one part needs a `snapshot`:
    the id of one that is held, or `each`.

    Options of a write: those of PostgresSink; `key` makes it an upsert. `delivery` is `staged` unless set: with
    `two_phase` every partition that has rows takes one of the server's prepared transactions, and here nobody but the
    user can bound the partitions (`df.coalesce`).
    """

    SINK_MODELS = (PostgresSinkConfig,)
    UNPARTITIONED = "delivery=staged"

    @classmethod
    def name(cls) -> str:
        return "onefold_postgres"

    def schema(self) -> StructType:
        source = self._source()
        return from_arrow_schema(pa.schema([(c.name, c.kind) for c in resolve(source, describe(source), None)]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._source(), schema)

    def sink(self, told: dict[str, Any]) -> Sink:
        return PostgresSink(**by_key({"delivery": "staged", **told}))

    def _source(self) -> PostgresSource:
        with in_words_of_spark(PostgresSource):
            source = PostgresSource.from_options(self.options)
        if source.snapshot == "shared" and source.splits > 1:
            raise ConfigError(
                "snapshot-missing",
                "onefold_postgres reads in several parts, and nobody holds a snapshot for them: use "
                "onefold.spark.read_postgres(spark, source), which does, or .option('splits', 1), or, where nobody "
                "writes meanwhile, .option('snapshot', 'each')",
            )
        return source
