"""`onefold_postgres`: the Postgres sink as a Spark batch format, `df.write.format("onefold_postgres")`, exactly once.

Spark makes the writer in one short-lived Python process of the driver when the query runs, calls `write` in the
executors' workers, and `commit`, or after any failure `abort`, once, in another such process, with the writer and the
messages of one accepted attempt per task. So the first opens the run's epoch and the last decides it; between them only
what pickles exists, and a driver that dies leaves what the next start's recovery finishes or undoes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onefold.core import Committable, ConfigError
from onefold.core.store import CheckpointStore
from onefold.sinks import PostgresSink
from onefold.spark.batch import BatchOutcome, OpenedRun, decide_run, give_up_run, open_run
from onefold.spark.session import Session, check_pipeline_name, task_of
from onefold.spark.workers import settle
from onefold.spark.writers import write_task

__all__ = ["OnefoldPostgresDataSource"]

_REQUIRED = ("url", "table", "pipeline", "run")
_OPTIONS = (*_REQUIRED, "delivery", "name", "store", "patienceS", "lockTimeoutS", "bookkeepingSchema")


class OnefoldPostgresDataSource(DataSource):
    """Options: `url`, `table`, `pipeline`, `run`; `delivery`, `name`, `lockTimeoutS`, `bookkeepingSchema` as
    PostgresSink has them; `store`, `patienceS` as Pipeline has them. `mode("append")` only.

    `delivery` is `staged` unless set: with `two_phase` every partition that has rows takes one of the server's prepared
    transactions, and here nobody but the user can bound the partitions (`df.coalesce`).
    """

    @classmethod
    def name(cls) -> str:
        return "onefold_postgres"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError("onefold_postgres appends: .mode('append'). To replace rows, delete them first")
        known = {option.lower() for option in _OPTIONS}
        if unknown := sorted(option for option in self.options if option.lower() not in known):
            raise ConfigError(f"onefold_postgres has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}")
        if missing := [option for option in _REQUIRED if not self.options.get(option)]:
            raise ConfigError(f"onefold_postgres needs the option {', '.join(missing)}")
        target = _Target.of(self.options)
        with closing(target.session()) as session:
            run = open_run(session, self.options["run"], to_arrow_schema(schema, timezone="UTC"))
        return _RunWriter(target, run)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        raise ConfigError(
            "onefold_postgres writes batches. A streaming query goes through a pipeline, which knows its positions:"
            " Pipeline(...).write(df, ...), or df.writeStream.foreachBatch(pipeline.epoch_writer)"
        )


@dataclass(frozen=True)
class _Target:
    """Which pipeline writes where. Once a run is opened, its sink carries to the executors what opening found out."""

    pipeline: str
    sink: PostgresSink
    store: str
    patience_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Target:
        check_pipeline_name(options["pipeline"])
        sink = PostgresSink(
            options["url"],
            table=options["table"],
            name=options.get("name"),
            delivery=options.get("delivery", "staged"),
            lock_timeout_s=_seconds(options, "lockTimeoutS", 30),
            bookkeeping_schema=options.get("bookkeepingSchema", "onefold_sinks"),
        )
        store = options.get("store") or sink.store_url()
        assert store is not None, "a Postgres sink's store lives in its own database"
        return cls(options["pipeline"], sink, store, _seconds(options, "patienceS", 120))

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
        settle()
        if isinstance(self.run, BatchOutcome):
            return _Prepared(())
        return _Prepared(write_task([self.target.sink], task_of(self.run.record), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if isinstance(self.run, BatchOutcome):
            return
        manifest: list[Committable] = []
        for message in messages:
            assert isinstance(message, _Prepared), "Spark commits only where every task has answered"
            manifest.extend(message.committables)
        with closing(self.target.session()) as session:
            decide_run(session, self.run, tuple(manifest))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Also called where `commit` failed, which may have decided: so this asks the store, and not the messages."""
        if isinstance(self.run, OpenedRun):
            with closing(self.target.session()) as session:
                give_up_run(session, self.run)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} must be a number of seconds") from None
