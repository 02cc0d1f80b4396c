"""Batches that `df.write.format(...)` writes into a sink exactly once: what all formats that write have in common.

Spark makes the writer in one short-lived Python process of the driver when the query runs, calls `write` in the
executors' workers, and `commit`, or after any failure `abort`, once, in another such process, with the writer and the
messages of one accepted attempt per task. So the first opens the run's epoch and the last decides it; between them only
what pickles exists, and a driver that dies leaves what the next start's recovery finishes or undoes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from onefold.clients.option_texts import from_texts
from onefold.clients.sql.sqlite import check_whole_path
from onefold.clients.sql.url import url_of
from onefold.core import Committable, ConfigError, Sink
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.protocol.runs import check_name
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.arrangement import needed_by
from onefold.core.writing.attempt import write_task
from onefold.spark.formats.registration import in_words_of_spark
from onefold.spark.runtime.batch import BatchOutcome, OpenedRun, decide_run, give_up_run, open_run
from onefold.spark.runtime.dataframe_columns import arrow_of, in_utc
from onefold.spark.runtime.workers import freeze_imports
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of


@dataclass(frozen=True)
class _OfTheRun:
    """The options beside the sink's own."""

    pipeline: str
    run: str
    store: str | None = None
    patience_s: float = PATIENCE_S


class BatchWrites(DataSource, ABC):
    """A format that writes batch runs.

    Options of a write: `pipeline`, `run`; `store`, `patienceS` as EpochWriter has them; and those of the sink, in
    Spark's style (`lockTimeoutS` for lock_timeout_s), with commas between columns. Spark's own mode is `mode("append")`
    always. A sink without a database of its own needs a `store`: these processes have no directory to count on.
    """

    SINK_MODELS: ClassVar[tuple[type, ...]]  # of the sink's options
    UNPARTITIONED: ClassVar = "repartition=false where they do: each key comes once, or you partitioned the rows by it"

    @abstractmethod
    def sink(self, told: dict[str, Any]) -> Sink:
        """The sink of these fields of its models."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError(
                "append-only", f"{self.name()} appends: .mode('append'). To replace rows, delete them first"
            )
        target = self.target()
        with closing(target.session()) as session:
            run = open_run(session, target.run, arrow_of(schema))
        return _RunWriter(target, run)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        raise ConfigError(
            "streaming-not-supported",
            f"{self.name()} writes batches. A streaming query goes through an epoch writer, which knows its"
            " positions: df.writeStream.foreachBatch(EpochWriter(...))",
        )

    def target(self) -> RunTarget:
        """The pipeline and the sink that the options describe. Raises ConfigError."""
        models = (*self.SINK_MODELS, _OfTheRun)
        required = [f.name for m in models for f in dataclasses.fields(m) if f.default is f.default_factory is MISSING]
        told = from_texts(self.name(), self.options, *models, required=required)
        run = _OfTheRun(**{f.name: told.pop(f.name) for f in dataclasses.fields(_OfTheRun) if f.name in told})
        check_pipeline_name(run.pipeline)
        check_name(run.run)
        with in_words_of_spark(*self.SINK_MODELS):
            sink = self.sink(told)
        if key := needed_by(sink).partition_by:
            raise ConfigError(
                "rows-unpartitioned",
                f"the rows of one {', '.join(key)} must come from one task, and a format cannot see to that: use"
                f" EpochWriter.write_batch, which does, or {self.UNPARTITIONED}",
            )
        store = run.store or sink.store_url()
        if store is None:
            raise ConfigError(
                "option-missing",
                f"{self.name()}: the option 'store' is missing. It names the database that keeps the pipeline's runs:"
                " postgresql://..., or sqlite:////var/lib/runs.db where every driver runs on this machine",
            )
        check_whole_path("store", url_of(store, "the checkpoint store's"))
        return RunTarget(run.pipeline, run.run, sink, store, run.patience_s)


def by_key(told: dict[str, Any]) -> dict[str, Any]:
    """The options of a table's sink, whose `mode` the key tells."""
    return {"mode": "upsert" if "key" in told else "append", **told}


@dataclass(frozen=True)
class RunTarget:
    """The pipeline and its sink. Once a run is opened, the sink carries its plan to the executors."""

    pipeline: str
    run: str
    sink: Sink
    store: str = field(repr=False)  # it may hold a password
    patience_s: float

    def session(self) -> Session:
        return Session(self.pipeline, [self.sink], CheckpointStore(self.store), self.patience_s)


@dataclass(frozen=True)
class _Prepared(WriterCommitMessage):
    """What one task prepared."""

    committables: tuple[Committable, ...]


@dataclass(frozen=True)
class _RunWriter(DataSourceArrowWriter):
    target: RunTarget
    run: OpenedRun | BatchOutcome  # an outcome where the run was written before: nothing is written now

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_imports()
        if isinstance(self.run, BatchOutcome):
            return _Prepared(())
        told = self.run.schema
        batches = (in_utc(batch.rename_columns(told.names), told) for batch in iterator)
        return _Prepared(write_task([self.target.sink], task_of(self.run.record), batches).committables)

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
