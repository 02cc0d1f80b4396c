"""`onefold_postgres`: a Postgres table or query as a Spark data source, and batches written into a sink's table.

Spark plans a read in a Python process of the driver that may end at any time after, so nothing there can hold a
snapshot for the parts: `read_postgres` holds it in the user's own process, and the format takes its id.

The sink writes `df.write.format(...)` exactly once. Spark makes the writer in one short-lived Python process of the
driver when the query runs, calls `write` in the executors' workers, and `commit`, or after any failure `abort`, once,
in another such process, with the writer and the messages of one accepted attempt per task. So the first opens the run's
epoch and the last decides it; between them only what pickles exists, and a driver that dies leaves what the next
start's recovery finishes or undoes.
"""

from __future__ import annotations

import atexit
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from onefold.clients.option_texts import from_texts
from onefold.core import Committable, ConfigError
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.attempt import write_task
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sources.postgres import HeldSnapshot, PostgresSource, describe, hold, resolve
from onefold.spark.formats.registration import in_words_of_spark, register
from onefold.spark.formats.table_reads import NESTED, BatchReader, fields_of, parsed, wire_of
from onefold.spark.runtime.batch import BatchOutcome, OpenedRun, decide_run, give_up_run, open_run
from onefold.spark.runtime.dataframe_columns import arrow_of
from onefold.spark.runtime.workers import freeze_imports
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

__all__ = ["OnefoldPostgresDataSource", "read_postgres"]

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


class OnefoldPostgresDataSource(DataSource):
    """One name in Spark for reading tables and for writing batches.

    Options of a read: the fields of `PostgresSource` but `hold_s`, in Spark's style (`splitBy`), with commas between
    columns. Columns: those of Postgres, or what `.schema(...)` says. Reading in more than one part needs a `snapshot`:
    the id of one that is held, or `each`.

    Options of a write: `url`, `table`, `pipeline`, `run`; `store`, `patienceS` as Pipeline has them; and those of
    PostgresSink, written `lockTimeoutS` for lock_timeout_s, with commas between columns. `key` makes it an upsert.
    Spark's own mode is `mode("append")` always. `delivery` is `staged` unless set: with `two_phase` every partition
    that has rows takes one of the server's prepared transactions, and here nobody but the user can bound the partitions
    (`df.coalesce`).
    """

    @classmethod
    def name(cls) -> str:
        return "onefold_postgres"

    def schema(self) -> StructType:
        source = self._source()
        return from_arrow_schema(pa.schema([(c.name, c.kind) for c in resolve(source, describe(source), None)]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._source(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError(
                "append-only", "onefold_postgres appends: .mode('append'). To replace rows, delete them first"
            )
        target = _Target.of(self.options)
        with closing(target.session()) as session:
            run = open_run(session, target.run, arrow_of(schema))
        return _RunWriter(target, run)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        raise ConfigError(
            "streaming-not-supported",
            "onefold_postgres writes batches. A streaming query goes through an epoch writer, which knows its"
            " positions: df.writeStream.foreachBatch(EpochWriter(...))",
        )

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


@dataclass(frozen=True)
class _OfTheRun:
    """The options beside the sink's own."""

    pipeline: str
    run: str
    store: str | None = None
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class _Target:
    """The pipeline and its sink. Once a run is opened, the sink carries its plan to the executors."""

    pipeline: str
    run: str
    sink: PostgresSink
    store: str = field(repr=False)  # it may hold a password
    patience_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Target:
        required = ("url", "table", "pipeline", "run")
        told = from_texts("onefold_postgres", options, PostgresSinkConfig, _OfTheRun, required=required)
        run = _OfTheRun(**{field.name: told.pop(field.name) for field in fields(_OfTheRun) if field.name in told})
        check_pipeline_name(run.pipeline)
        config = {"delivery": "staged", "mode": "upsert" if "key" in told else "append", **told}
        if config["mode"] == "upsert" and config["delivery"] == "two_phase":
            raise ConfigError(
                "two-phase-unpartitioned",
                "with delivery=two_phase the rows of one key must come from one task, and here nobody sees to that: use"
                " delivery=staged, or EpochWriter.write_batch",
            )
        with in_words_of_spark(PostgresSinkConfig):
            sink = PostgresSink(**config)
        store = run.store or sink.store_url()
        assert store is not None, "a Postgres sink's store lives in its own database"
        return cls(run.pipeline, run.run, sink, store, run.patience_s)

    def session(self) -> Session:
        return Session(self.pipeline, [self.sink], CheckpointStore(self.store), self.patience_s)


@dataclass(frozen=True)
class _Prepared(WriterCommitMessage):
    """What one task prepared."""

    committables: tuple[Committable, ...]


@dataclass(frozen=True)
class _RunWriter(DataSourceArrowWriter):
    target: _Target
    run: OpenedRun | BatchOutcome  # an outcome where the run was written before: nothing is written now

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_imports()
        if isinstance(self.run, BatchOutcome):
            return _Prepared(())
        return _Prepared(write_task([self.target.sink], task_of(self.run.record), iterator).committables)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if isinstance(self.run, BatchOutcome):
            return
        manifest: list[Committable] = []
        for message in messages:
            assert isinstance(message, _Prepared), "Spark commits only where every task has answered"
            manifest.extend(message.committables)
        with closing(self.target.session()) as session:
            decide_run(session, self.run, tuple(manifest))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Cleans up. Spark calls it also after a failed `commit`, which may have decided: so it asks the store."""
        if isinstance(self.run, OpenedRun):
            with closing(self.target.session()) as session:
                give_up_run(session, self.run)
