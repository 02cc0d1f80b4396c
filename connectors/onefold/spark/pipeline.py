"""A pipeline on Spark: one streaming query, or batch runs, into one or more sinks, exactly once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from onefold.clients import exposure
from onefold.core import (
    ConfigError,
    EpochRecord,
    Fenced,
    Guarantee,
    OnefoldError,
    OutOfResources,
    Positions,
    Retriable,
    Sink,
)
from onefold.core.job.offset_json import format_offsets
from onefold.core.job.restores import Beginning, beginning
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Initial, Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.protocol.runs import refuse_query
from onefold.core.sql.backends import url_of
from onefold.core.sql.sqlite_trust import check_whole_path
from onefold.core.store.checkpoint_store import CheckpointStore, default_store
from onefold.core.values.ways import PIPELINE, Ways
from onefold.core.waiting import Wait
from onefold.core.writing.bad_records import Tally, check_dead_letters
from onefold.spark.errors.failures import asking_jvm, check_start, from_spark
from onefold.spark.errors.sealing import seal
from onefold.spark.formats.registration import register
from onefold.spark.gate import DRAINED, Gate
from onefold.spark.interrupts import interrupted_by
from onefold.spark.output_modes import check_output_mode, is_epoch_named, refused_query
from onefold.spark.runtime.access import are_callbacks_closed, check_callbacks, close_callbacks, exposure_of
from onefold.spark.runtime.batch import BatchOutcome, write_batch
from onefold.spark.runtime.checkpoint import elsewhere, is_wanted
from onefold.spark.runtime.columns import struct_of
from onefold.spark.runtime.direct import RANGES, BadFetch, Fetch, Transform
from onefold.spark.runtime.epoch_job import Reading
from onefold.spark.runtime.query import QuerySession
from onefold.spark.runtime.refusals import check_direct_source, check_parts

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource
    from onefold.sources.kafka.planning.group_positions import GroupPositions
    from onefold.sources.kafka.planning.subscription import Subscription

__all__ = ["Pipeline"]

log = logging.getLogger("onefold")


class Pipeline:
    """Source records into sinks exactly once, under one name, in one Spark query.

        pipeline = Pipeline("orders", sinks=[PostgresSink("postgresql://localhost/shop", table="orders")])
        df = pipeline.read(spark, KafkaSource("orders", bootstrap_servers="localhost:9092", ...))
        query = pipeline.write(df.where("amount > 0"), checkpoint="/var/lib/orders", trigger={"availableNow": True})
        pipeline.await_termination(query)

    store         URL of the checkpoint store: by default the first sink's own database, else SQLite under `.onefold/`
    patience_s    how long a server that is down, and a worker that Spark cannot start, is waited for: no request is
                  begun again after that, whichever server it is for
    checkpoint    the query's checkpoint directory, only needed where there is no JVM to ask (Spark Connect)
    on_outcome    a function that is called with the outcome of every batch
    dead_letters  the sink of source records that cannot be read, where the source has `on_error="dead_letter"`: rows of
                  `onefold.core.dead_letters.LETTER_COLUMNS`, in the same epoch as the others. `bad_records` counts them
    require_tls   refuse every connection that leaves this machine without verified TLS, and a Spark whose driver asks
                  nobody for a secret
    trust_machine nobody else uses this machine: start also where any user of it could run code as this process
                  (docs/security.md)

    A pipeline pickles, and opens its connections when they are needed.
    """

    WAYS: ClassVar[Ways] = PIPELINE  # that its errors name

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        checkpoint: str | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
        dead_letters: Sink | None = None,
        require_tls: bool = False,
        trust_machine: bool = False,
    ) -> None:
        self.sinks = tuple(sinks)
        self.dead_letters = dead_letters
        self.name = name
        self.bad_records = Tally()
        self.patience_s = patience_s
        self.error: OnefoldError | None = None
        self._store_url = store or next((url for sink in self._everyone if (url := sink.store_url())), None)
        if self._store_url is not None:
            check_whole_path("store", url_of(self._store_url, "the checkpoint store's"))
        self._requires_tls = require_tls
        self._trusts_machine = trust_machine
        check_parts(name, self.sinks, dead_letters, self._store_url, require_tls=require_tls)
        self._checkpoint = checkpoint
        self._on_outcome = on_outcome
        self._reading: Reading | None = None
        self._numbers_epochs = False
        self._group: GroupPositions | None = None
        self._live: QuerySession | None = None
        self._gate = Gate()
        self._has_batch = False  # whether the query that was started last has called the epoch writer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_gate"} | {
            "_live": None,
            "error": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_gate": Gate()}

    @property
    def _everyone(self) -> tuple[Sink, ...]:
        return self.sinks if self.dead_letters is None else (*self.sinks, self.dead_letters)

    def read(self, spark: SparkSession, source: KafkaSource) -> DataFrame:
        """The source as a streaming DataFrame. This takes the pipeline over: recovery runs, and the initial positions
        are frozen."""
        source = self.pinned(source)
        added: list[str] = []
        if source.deduplicate is not None:
            from onefold.spark.dedup.deduplication import deduplicate, widened  # needs Kafka's client

            source, added = widened(source, source.deduplicate)
        df = self._load(spark, source, {})
        self._reading = BadFetch(source, to_arrow_schema(df.schema, timezone="UTC"))
        return df if source.deduplicate is None else deduplicate(df, source.deduplicate).drop(*added)

    def write(
        self,
        df: DataFrame,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        output_mode: Literal["append", "update"] = "append",
    ) -> StreamingQuery:
        """Start the query that writes `df` to the sinks, and wait until it plans its first batch. `trigger` is what
        DataStreamWriter.trigger takes.

        `output_mode="update"` is for aggregations: each epoch has the groups that changed in it, and every sink must
        replace rows by the groups' columns. The rows then get the column `onefold_epoch`, the number of their epoch,
        where a sink's `order` names it. See docs/aggregation.md.
        """
        if isinstance(self._reading, Fetch):
            self._reading = None
        check_output_mode(output_mode, df, self.sinks)
        self._numbers_epochs = output_mode == "update" and is_epoch_named(self.sinks)
        return self._write(df, checkpoint, trigger, output_mode)

    def write_direct(
        self,
        spark: SparkSession,
        source: KafkaSource,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        transform: Transform | None = None,
    ) -> StreamingQuery:
        """Start the query that writes the source to the sinks by the direct path: Spark plans offset ranges, and the
        task that writes a range also reads and parses it.

        The data bypasses the JVM, so only `transform` can change it: a deterministic function from one Arrow record
        batch to any number of them, all of one schema.
        """
        source = self.pinned(source)
        check_direct_source(source)
        df = self._load(spark, source, RANGES)
        self._reading = Fetch.of(source, transform)
        return self._write(df, checkpoint, trigger, "append")

    def write_batch(self, df: DataFrame, run: str) -> BatchOutcome:
        """Write a batch DataFrame exactly once under the name `run`: the same job run again writes nothing.

        `run` names what is written, not when it is tried: a schedule's date, `{{ ds }}` in airflow. Which of several
        attempts counts is decided once, and of the others nothing shows, so the DataFrame need not be the same in
        each; but a sink that writes through (HBase, keyed Kafka) shows what an attempt wrote before it died, and needs
        the same rows until the run is written. A pipeline that writes batches runs no streaming query. Raises Fenced
        where another process began a run of the pipeline meanwhile.
        """
        if self.dead_letters is not None:
            raise ConfigError(
                "dead-letters-mismatch",
                "a batch DataFrame was read before it came here, and its bad records with it: leave out dead_letters"
                " (a source that is read in batches has on_error='fail' or 'skip')",
            )
        self._check_exposure(df.sparkSession)
        session = self._session()
        session.refuse_second_query(df.sparkSession)
        try:
            return write_batch(session, df, run)
        finally:
            session.sweep_after_run()

    @property
    def epoch_writer(self) -> Callable[[DataFrame, int], None]:
        """The function for `df.writeStream.foreachBatch(pipeline.epoch_writer)`."""
        if not are_callbacks_closed() and (spark := SparkSession.getActiveSession()) is not None:
            with suppress(ConfigError):  # which the first batch raises
                close_callbacks(spark)
        return self._write_epoch

    def _write_epoch(self, df: DataFrame, batch_id: int) -> None:
        self.error, self._has_batch = None, True
        try:
            if not self._trusts_machine:
                check_callbacks()
            with self._gate.batch(partial(is_wanted, df.sparkSession)):
                self._session().process(df, batch_id, self._checkpoint, self._reading, self._tell, self._numbers_epochs)
        except OnefoldError as error:
            self.error = error
            # The JVM takes the traceback's text apart with a regular expression, and a long chain overflows its stack.
            alone = error.reworded(error.message)
            alone.add_note(seal(alone)[0])  # for a job that waits for its query itself
            raise alone from None

    def _tell(self, outcome: Outcome) -> None:
        if self._group is not None:
            self._group.show(outcome.record.range.end)
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    @asking_jvm()
    def await_termination(self, query: StreamingQuery, timeout_s: int | None = None) -> bool:
        """Wait for the query's end, and raise the onefold error that ended it, if one did. False on a timeout.

        In the main thread Ctrl-C and SIGTERM end the query, with its epoch complete in every sink.
        """
        try:
            with interrupted_by(partial(self._interrupt, query)):
                if timeout_s is None:
                    query.awaitTermination()
                elif not query.awaitTermination(timeout_s):
                    return False
        except StreamingQueryException as error:
            reason = self._ended_by(error)
            if reason.code != DRAINED:
                raise reason from error
        finally:
            if self._live is not None and not query.isActive:
                self._live.sweep_at_the_end()
        return True

    def _interrupt(self, query: StreamingQuery, by: signal.Signals) -> None:
        log.info("%s: pipeline %r ends after its epoch. A second signal ends the process at once", by.name, self.name)
        with suppress(Retriable):  # the JVM is gone, and so is the query
            self.drain(query, threading.TIMEOUT_MAX)

    def pause(self) -> None:
        """Begin no further epoch, until `resume`. The one that runs is finished; Spark plans one batch more, at most,
        which waits, and nothing of it is read before."""
        self._gate.hold()

    def resume(self) -> None:
        """Begin epochs again, after `pause`."""
        self._gate.open()

    @property
    def is_paused(self) -> bool:
        return self._gate.is_held

    @asking_jvm()
    def drain(self, query: StreamingQuery, within_s: float) -> bool:
        """End the query, with its epoch complete in every sink: `await_termination` returns as after its last batch.

        False if that took longer than `within_s` seconds: the query ends all the same once its epoch is complete.
        """
        wait = Wait(within_s, pause_max_s=0.05)
        self._gate.end()
        while self._gate.wait_quiet(wait.left_s):
            # Between batches. Where Spark has nothing to do it would never come to the gate.
            if query.isActive and not query.status["isTriggerActive"]:
                query.stop()
            if not query.isActive:
                return True
            if not wait.again():
                break
        return False

    def _ended_by(self, error: StreamingQueryException) -> OnefoldError:
        """The error that ended the query; Fenced if the pipeline was taken over, so that nobody starts it again.

        A zombie that wakes between two batches fails in Spark's own log, where its successor has written already.
        """
        reason = self.error or from_spark(error)
        if isinstance(reason, Fenced) or self._live is None:
            return reason
        return self._live.taken_over(reason) or reason

    def guarantees(self) -> dict[str, Guarantee]:
        """What each sink promises, as it is set up now."""
        return {sink.name: sink.guarantee() for sink in self._everyone}

    def history(self) -> list[EpochRecord]:
        """The newest epochs of this pipeline, oldest first."""
        return self._session().store.history(self.name)

    def moves(self) -> list[EpochRecord]:
        """Every epoch of this pipeline that moved its positions, oldest first (docs/positions.md)."""
        return self._session().store.moves(self.name)

    def beginning(self) -> Beginning | None:
        """Where this pipeline began, if that was with another one's savepoint (docs/savepoints.md)."""
        return beginning(self._session().store, self.name)

    def facts(self) -> StoreFacts:
        """What the checkpoint store knows of this pipeline now."""
        return self._session().facts()

    def recover(
        self, *, adopt_ledger: bool = False, accept_damage: int | None = None, accept_targets: bool = False
    ) -> Started:
        """Finish or undo what earlier processes left, and fence them, without starting a query.

        The arguments are ways out that an error names; call with them once, then start the query as usual.

        adopt_ledger   believe the destinations instead of the store, which was lost or is an older copy
        accept_damage  take this damaged epoch for complete, after you have written its missing rows by hand
        accept_targets go on with tables and topics that were dropped, or made anew, without the rows that they had
        """
        return self._session().recover(
            adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets
        )

    @property
    def started(self) -> Started | None:
        """The last start of this process, since the pipeline was opened."""
        return None if self._live is None else self._live.started

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy, for as long as that is waited out; else None."""
        return None if self._live is None else self._live.waiting_for

    def close(self) -> None:
        """Let go of all connections. The pipeline can be used again, and its next query takes over from any other
        process: without it, a query that starts again is Fenced where another process took over since."""
        if self._live is not None:
            self._live.close()
            self._live = None
        if self._group is not None:
            self._group.close()

    def pinned(self, source: KafkaSource) -> KafkaSource:
        """The source with the schema that the pipeline's first start found, where the source names none."""
        check_dead_letters(source, self.dead_letters)
        if self._requires_tls:
            exposure.require_tls([("the source", source)])
        return source.resolved(lambda name, find: self._session().pin(name, find))

    def _load(self, spark: SparkSession, source: KafkaSource, options: Mapping[str, str]) -> DataFrame:
        from onefold.sources.kafka import record_ddl

        struct_of(record_ddl(source))  # a schema that Spark does not read is refused before anything is taken over
        self._check_access(spark)
        session = self._session()
        session.prepare_workers(spark, source)
        register(spark)
        session.refuse_second_query(spark)
        facts = session.facts()
        refuse_query(facts, self.name)
        frozen_before = facts.frozen
        begin = frozen_before
        if begin is None:
            begin = session.patience.retry(source.initial_positions, "asking where the source begins")
        setting = source.starting_text
        started = session.start(Initial(begin, setting == "ledger", setting), goes_on=True)
        if frozen_before is not None and setting not in ("ledger", frozen_before.setting or setting):
            log.warning(
                "pipeline %r: starting_offsets=%r is ignored: it goes on from what was written. To begin elsewhere,"
                " give it another name, a new checkpoint directory and an empty table",
                self.name,
                setting,
            )
        assert started.start is not None
        self._check_topics(started.start, source.subscription)
        self._gate.begin()  # for a job that starts its query itself
        self.error, self._reading, self._numbers_epochs = None, None, False
        self._group = source.group_positions()
        until = {} if started.until is None else {"until": format_offsets(started.until)}
        frozen = {**source.options(started.start), **until, **options}
        load = partial(_loaded, spark.readStream.format("onefold_kafka").options(**frozen))
        return session.patience.retry(load, "planning the source", OutOfResources)

    def _check_access(self, spark: SparkSession) -> None:
        """Before a query: nobody but Spark may call this process."""
        self._check_exposure(spark)
        with suppress(ConfigError) if self._trusts_machine else nullcontext():
            close_callbacks(spark)

    def _check_exposure(self, spark: SparkSession) -> None:
        if self._requires_tls and (says := exposure_of(spark)):
            raise ConfigError("tls-required", f"Spark may not be reached so, with require_tls: {says}")

    def _check_topics(self, start: Positions, subscription: Subscription) -> None:
        """Raise ConfigError where the source does not name the topics that the pipeline began with. A pattern may match
        further ones."""
        began = start.topics().keys()
        if subscription.pattern is not None:
            subscription.check_continues(began, f"pipeline {self.name!r}")
        elif began - {*subscription.forgotten} != set(subscription.topics):
            is_second = isinstance(self._reading, BadFetch)  # as for a join
            several = ". For a query of several sources, read each by spark.readStream.format('onefold_kafka')"
            raise ConfigError(
                "topics-changed",
                f"pipeline {self.name!r} began with {', '.join(sorted(began)) or 'no topic'}, and this source reads"
                f" {', '.join(sorted(subscription.topics))}: where each topic starts was settled then. Name the same"
                f" topics, or give the pipeline with the others its own name{several if is_second else ''}",
            )

    def _write(self, df: DataFrame, root: str, trigger: Mapping[str, Any] | None, mode: str) -> StreamingQuery:
        session = self._session()
        self._check_access(df.sparkSession)
        session.refuse_second_query(df.sparkSession)
        session.check_store_reaches(elsewhere(df.sparkSession, root))
        session.check_targets()
        writer = df.writeStream.queryName(self.name).foreachBatch(self.epoch_writer)
        writer = writer.option("checkpointLocation", root).outputMode(mode)
        writer = writer.trigger(**trigger) if trigger else writer
        start = partial(self._start, session, df.sparkSession, root, writer)
        try:
            return session.patience.retry(start, "starting the query", OutOfResources)
        except AnalysisException as error:
            raise refused_query(error, mode) from error

    def _start(self, session: QuerySession, spark: SparkSession, root: str, writer: DataStreamWriter) -> StreamingQuery:
        """Each start is one of its own: the checkpoint may have the plan of a batch that the last one did not run."""
        session.check_checkpoint(spark, root)
        self.error, self._has_batch = None, False
        self._gate.begin()
        query = writer.start()
        if hasattr(spark, "_jsparkSession"):  # not Spark Connect, whose server calls the writer in another process
            check_start(query, lambda: self._has_batch, session.patience.patience_s)
        return query

    def _session(self) -> QuerySession:
        if self._live is None:
            url = self._store_url or default_store(self.name, Path())
            self._live = QuerySession(
                self.name,
                self.sinks,
                CheckpointStore(url),
                self.patience_s,
                self.dead_letters,
                self.bad_records,
                self.WAYS,
            )
        return self._live


def _loaded(reader: DataStreamReader) -> DataFrame:
    """The reader's DataFrame, for which Spark starts a worker that plans. Raises the worker's error as onefold's."""
    try:
        return reader.load()
    except (PySparkException, Py4JJavaError) as error:
        raise from_spark(error) from error
