"""`onefold_postgres`, writing: the Postgres sink as a Spark batch format, `df.write.format(...)`, exactly once.

Spark makes the writer in one short-lived Python process of the driver when the query runs, calls `write` in the
executors' workers, and `commit`, or after any failure `abort`, once, in another such process, with the writer and the
messages of one accepted attempt per task. So the first opens the run's epoch and the last decides it; between them only
what pickles exists, and a driver that dies leaves what the next start's recovery finishes or undoes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from onefold.clients.option_texts import from_texts
from onefold.core import Committable, ConfigError
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.attempt import write_task
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.spark.formats.registration import in_words_of_spark
from onefold.spark.runtime.batch import BatchOutcome, OpenedRun, decide_run, give_up_run, open_run
from onefold.spark.runtime.dataframe_columns import arrow_of
from onefold.spark.runtime.workers import freeze_imports
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

__all__ = ["PostgresWrites"]


@dataclass(frozen=True)
class _OfTheRun:
    """The options beside the sink's own."""

    pipeline: str
    run: str
    store: str | None = None
    patience_s: float = PATIENCE_S


class PostgresWrites(DataSource):
    """Options: `url`, `table`, `pipeline`, `run`; `store`, `patienceS` as Pipeline has them; and those of PostgresSink,
    written `lockTimeoutS` for lock_timeout_s, with commas between columns. `key` makes it an upsert. Spark's own mode
    is `mode("append")` always.

    `delivery` is `staged` unless set: with `two_phase` every partition that has rows takes one of the server's prepared
    transactions, and here nobody but the user can bound the partitions (`df.coalesce`).
    """

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
