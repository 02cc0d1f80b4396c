"""Runs the batches of a pipeline's streaming query, and sweeps on a timer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from onefold.core import Committable, ConfigError, EpochRecord, OnefoldError, OutOfResources, Sink, Terminal
from onefold.core.errors import InternalError
from onefold.core.protocol.epoch import Outcome
from onefold.core.values.remedies import Remedies
from onefold.core.writing.dead_letters import Tally
from onefold.spark.errors.failures import WorkerDied, from_spark
from onefold.spark.runtime import checkpoint
from onefold.spark.runtime.checkpoint import CheckpointFiles
from onefold.spark.runtime.dataframe_columns import arrow_of
from onefold.spark.runtime.workers import guarding, prepare_workers
from onefold.spark.runtime.writers import OwnWriting, run_writers
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.lifecycle import Lifecycle
from onefold.store.job.logs import logged_as, note
from onefold.store.job.query import QueryJob, QueryLifecycle, RunningQuery, must_drain
from onefold.store.job.session import Session, task_of

GRACE_S = 10.0

log = logging.getLogger("onefold")
epochs = logging.getLogger("onefold.epochs")


class QuerySession(Session):
    LIFECYCLE: ClassVar[type[Lifecycle]] = QueryLifecycle
    lifecycle: QueryLifecycle

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: CheckpointStore,
        patience_s: float,
        letters: Collection[str],
        tally: Tally,
        remedies: Remedies,
    ) -> None:
        super().__init__(name, sinks, store, patience_s, letters, remedies)
        self._sweeper: Sweeper | None = None
        self._job: QueryJob | None = None  # None until the sinks were opened for the running query
        self._tally = tally
        self._told: tuple[str, ...] = ()  # of the epoch that was written last
        self.has_worker_died = False  # in this epoch: then it is read with care
        self.before_drain: Callable[[EpochRecord], None] = lambda _: None  # may refuse to read an epoch again

    def process(
        self,
        df: DataFrame,
        batch_id: int,
        root: str | None,
        writing: OwnWriting | None,
        tell: Callable[[Outcome], None],
    ) -> None:
        """Processes one batch of the query exactly once. `writing` is how, where the rows of `df` are not the sinks'.

        `tell` hears what became of the batch: where that raises, the job may call again. A call for the same batch from
        another thread waits until all of this is over, and is refused.
        """
        with self.lock, logged_as(pipeline=self.name):
            began_s = time.monotonic()
            query = self._bind(df.sparkSession, root)
            if self._job is None:
                self.prepare_workers(df.sparkSession)
                fingerprint = self.open_sinks(arrow_of(df.schema) if writing is None else writing.schemas)
                self._job = QueryJob(fingerprint, self.names, self.write_through)
            running = checkpoint.running_batch(df.sparkSession, query)
            request = self.drive(self.lifecycle.request(batch_id, self._job, running))
            self.check_counted(request.range)

            def write(record: EpochRecord) -> tuple[Committable, ...]:
                note(epoch=record.epoch)
                return self.write(df, record, writing, lambda: checkpoint.is_active(df.sparkSession, query))

            outcome = self.drive(self.lifecycle.run(request), write)
            note(epoch=outcome.record.epoch, generation=outcome.record.generation)
            if outcome.replayed:
                log.info("batch %d was written before, as epoch %d: skipped", batch_id, outcome.record.epoch)
            else:
                self._tally.confirm()
                took_s, record = time.monotonic() - began_s, outcome.record
                epochs.info(
                    "pipeline %r: epoch %d, %s rows, %s",
                    self.name,
                    record.epoch,
                    f"{record.rows:,}",
                    ", ".join((f"{took_s:.1f} s", *self._told)),
                )
            self.has_worker_died = False
            if must_drain(query, outcome):
                self.before_drain(outcome.record)
                df.write.format("noop").mode("overwrite").save()
            tell(outcome)
            self.lifecycle.returned(batch_id, outcome)

    def prepare_workers(self, spark: SparkSession, *parts: object) -> None:
        """See to it that Spark's workers can import what the sinks and these parts need, once they can be started."""
        prepare = partial(prepare_workers, spark, *parts, *self.sinks)
        self.patience.retry(prepare, "starting a Python worker", OutOfResources)

    def refuse_second_query(self, spark: SparkSession, besides: RunningQuery | None = None) -> None:
        """Raise ConfigError where the pipeline runs another query: two queries would make two chains of positions."""
        query = self.lifecycle.query
        if query is None or (besides is not None and query.run_id == besides.run_id):
            return
        if checkpoint.is_active(spark, query):
            raise self.second_query(query.query_id)

    def second_query(self, query_id: str) -> ConfigError:
        """The error of a start while that query runs."""
        return ConfigError(
            "second-query",
            f"pipeline {self.name!r} runs query {query_id} already: one pipeline, one query. Stop that one, or give the"
            " other its own pipeline name",
        )

    def check_checkpoint(self, spark: SparkSession, root: str) -> None:
        """Check before a query starts that the store knows all batches that its checkpoint has as done."""
        with self.lock:
            self._driver.files = CheckpointFiles(spark)
            self.drive(self.lifecycle.check_checkpoint(root))

    def close(self) -> None:
        with self.lock:
            self._stop_sweeper()
            super().close()

    def _bind(self, spark: SparkSession, root: str | None) -> RunningQuery:
        """The query this batch belongs to."""
        query = checkpoint.running_query(spark, self.lifecycle.query, root)
        self._driver.files = CheckpointFiles(spark)
        self.remedies = replace(self.remedies, directory=query.root)
        if self.lifecycle.query != query:
            self.refuse_second_query(spark, query)
            self.check_store_reaches(checkpoint.elsewhere(spark, query.root))
            self.drive(self.lifecycle.bind(query))
            self._job = None
            self._stop_sweeper()
            self._sweeper = Sweeper(self.sweep, lambda: checkpoint.is_active(spark, query))
        return query

    def write(
        self,
        df: DataFrame,
        record: EpochRecord,
        writing: OwnWriting | None = None,
        is_active: Callable[[], bool] = lambda: True,
    ) -> tuple[Committable, ...]:
        """One attempt to write an epoch's rows, as a job of Spark's. `is_active`: whether its query goes on."""
        try:
            with guarding(df.sparkSession, self.has_worker_died):
                if writing is None:
                    written = run_writers(df, self.sinks, task_of(record))
                else:
                    written = writing.write(df, record, self.sinks)
            self._tally.count(record.epoch, written.found, written.late)
            self._told = written.told
            return written.committables
        except OnefoldError:
            raise
        except Exception as error:
            if not is_active():
                raise Terminal(
                    "query-stopped",
                    f"the query was stopped in the middle of epoch {record.epoch}: nothing of it was decided, and the"
                    " next start runs it again",
                ) from error
            failed = from_spark(error)
            self.has_worker_died |= isinstance(failed, WorkerDied)
            if isinstance(failed, WorkerDied):  # it runs again, and else nobody would hear of it
                log.warning("epoch %d: a task has failed: %s", record.epoch, failed)
            raise failed from error

    def sweep_after_run(self) -> None:
        """Sweep once more after a while, when Spark has ended the attempts of a batch run that it does not need."""
        self.ended()
        self._stop_sweeper()
        self._sweeper = Sweeper(self.sweep_at_the_end, lambda: False, GRACE_S)

    def _stop_sweeper(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None


class Sweeper:
    """A daemon thread that calls `sweep` every `every_s` seconds for as long as `is_active()`, and once after."""

    def __init__(self, sweep: Callable[[], None], is_active: Callable[[], bool], every_s: float = 60.0) -> None:
        self._sweep = sweep
        self._every_s = every_s
        self._is_active = is_active
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onefold-sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                is_active = self._is_active()
                self._sweep()
                if not is_active:
                    return
            except InternalError:
                log.exception("the sweep has ended: a check of onefold's own failed")
                return
            except OnefoldError as error:
                log.warning("the sweep will be tried again: %s", error)
            except (OSError, Py4JError):
                return  # Spark is gone, and the query with it
