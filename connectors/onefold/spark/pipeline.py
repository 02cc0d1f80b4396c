"""A pipeline on Spark: one streaming query, or batch runs, into one or more sinks, exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from onefold.clients import exposure
from onefold.core import ConfigError, EpochRecord, OutOfResources, Positions, Sink
from onefold.core.job.offset_json import format_offsets
from onefold.core.job.restores import Beginning, beginning
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Initial, Outcome
from onefold.core.protocol.runs import refuse_query
from onefold.core.values.ways import PIPELINE, Ways
from onefold.core.writing.bad_records import check_dead_letters
from onefold.spark.epoch_writer import EpochWriter, WriterSettings
from onefold.spark.errors.failures import check_start, from_spark
from onefold.spark.formats.registration import register
from onefold.spark.output_modes import check_output_mode, is_epoch_named, refused_query
from onefold.spark.runtime.batch import BatchOutcome
from onefold.spark.runtime.checkpoint import elsewhere
from onefold.spark.runtime.columns import struct_of
from onefold.spark.runtime.direct import RANGES, BadFetch, Fetch, Transform
from onefold.spark.runtime.epoch_job import Reading
from onefold.spark.runtime.query import QuerySession
from onefold.spark.runtime.refusals import check_direct_source

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource
    from onefold.sources.kafka.planning.group_positions import GroupPositions
    from onefold.sources.kafka.planning.subscription import Subscription

__all__ = ["Pipeline"]

log = logging.getLogger("onefold")


class Pipeline(EpochWriter):
    """Source records into sinks exactly once, under one name, in one Spark query.

        pipeline = Pipeline("orders", sinks=[PostgresSink("postgresql://localhost/shop", table="orders")])
        df = pipeline.read(spark, KafkaSource("orders", bootstrap_servers="localhost:9092", ...))
        query = pipeline.write(df.where("amount > 0"), checkpoint="/var/lib/orders", trigger={"availableNow": True})
        pipeline.await_termination(query)

    dead_letters  the sink of source records that cannot be read, where the source has `on_error="dead_letter"`: rows of
                  `onefold.core.dead_letters.LETTER_COLUMNS`, in the same epoch as the others. `bad_records` counts them
    settings      as `EpochWriter` has them
    """

    WAYS: ClassVar[Ways] = PIPELINE

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: str | None = None,
        *,
        dead_letters: Sink | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None:
        self.dead_letters = dead_letters
        self._reading: Reading | None = None
        self._numbers_epochs = False
        self._group: GroupPositions | None = None
        super().__init__(name, sinks, store, **settings)

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
        if self.dead_letters is not None:
            raise ConfigError(
                "dead-letters-mismatch",
                "a batch DataFrame was read before it came here, and its bad records with it: leave out dead_letters"
                " (a source that is read in batches has on_error='fail' or 'skip')",
            )
        return super().write_batch(df, run)

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

    def _process(self, df: DataFrame, batch_id: int) -> None:
        self._session().process(df, batch_id, self._checkpoint, self._reading, self._tell, self._numbers_epochs)

    def _tell(self, outcome: Outcome) -> None:
        if self._group is not None:
            self._group.show(outcome.record.range.end)
        super()._tell(outcome)

    def moves(self) -> list[EpochRecord]:
        """Every epoch of this pipeline that moved its positions, oldest first (docs/positions.md)."""
        return self._session().store.moves(self.name)

    def beginning(self) -> Beginning | None:
        """Where this pipeline began, if that was with another one's savepoint (docs/savepoints.md)."""
        return beginning(self._session().store, self.name)

    def close(self) -> None:
        super().close()
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
        session, facts = self._prepared(spark, source)
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
        self._group = source.group_positions()
        until = {} if started.until is None else {"until": format_offsets(started.until)}
        frozen = {**source.options(started.start), **until, **options}
        return self._planning(session, spark.readStream.format("onefold_kafka").options(**frozen))

    def _prepared(self, spark: SparkSession, *sources: object) -> tuple[QuerySession, StoreFacts]:
        """Before a start: the session, and what the store knows."""
        self._check_access(spark)
        session = self._session()
        session.prepare_workers(spark, *sources)
        register(spark)
        session.refuse_second_query(spark)
        facts = session.facts()
        refuse_query(facts, self.name)
        return session, facts

    def _planning(self, session: QuerySession, reader: DataStreamReader) -> DataFrame:
        """After a start: what the query reads."""
        self._gate.begin()  # for a job that starts its query itself
        self.error, self._reading, self._numbers_epochs = None, None, False
        return session.patience.retry(partial(_loaded, reader), "planning the source", OutOfResources)

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
        writer = df.writeStream.queryName(self.name).foreachBatch(self)
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


def _loaded(reader: DataStreamReader) -> DataFrame:
    """The reader's DataFrame, for which Spark starts a worker that plans. Raises the worker's error as onefold's."""
    try:
        return reader.load()
    except (PySparkException, Py4JJavaError) as error:
        raise from_spark(error) from error
