"""A pipeline that runs a streaming query: which epoch each of its batches is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from onefold.core import (
    CheckpointMismatch,
    Committable,
    ConfigError,
    EpochRecord,
    OnefoldError,
    Positions,
    Range,
    Relation,
    Sink,
    Terminal,
)
from onefold.core.effects import EpochRequest
from onefold.core.protocol import Initial, Outcome, Started
from onefold.core.recovery import check_committed
from onefold.core.runs import refuse_query
from onefold.core.store import KEEP_EPOCHS, CheckpointStore
from onefold.spark import checkpoint
from onefold.spark.bad_records import Tally
from onefold.spark.checkpoint import RunningQuery
from onefold.spark.direct import BadFetch, Fetch
from onefold.spark.epoch_job import policy_of, write_epoch
from onefold.spark.failures import from_spark
from onefold.spark.session import Session
from onefold.spark.sweeper import Sweeper
from onefold.spark.writers import check_direct

if TYPE_CHECKING:
    from onefold.sources.kafka.subscription import Subscription

__all__ = ["QuerySession"]

QUERY = "#query"  # beside positions that only mean something within one query's checkpoint

log = logging.getLogger("onefold")


class QuerySession(Session):
    """A session and the one query that it works for."""

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: CheckpointStore,
        patience_s: float,
        begin: Positions | None = None,
        adopt_ledger: bool = False,
        accept_damage: int | None = None,
        dead_letters: Sink | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(name, sinks, store, patience_s, adopt_ledger, accept_damage, dead_letters)
        # Where the DataFrame that was read begins, whatever the ledger says by the time that its query starts.
        self.begin = begin
        self.joining: Subscription | None = None  # topics that come later and match stand at their first record
        self._query: RunningQuery | None = None
        self._sweeper: Sweeper | None = None
        self._fingerprint: str | None = None  # None until the sinks were opened for the running query
        self._last_end: tuple[int, Positions] | None = None
        self._tally = tally or Tally()

    def start(self, initial: Initial | None) -> Started:
        with self.lock:
            self._query = None
            started = super().start(initial)
            if initial is not None:
                self.begin = started.start
            return started

    def process(self, df: DataFrame, batch_id: int, root: str | None, reading: Fetch | BadFetch | None) -> Outcome:
        """One batch of the query, exactly once. `reading` is the direct path's, or what `df` was read with."""
        with self.lock:
            query = self._bind(df.sparkSession, root)
            if self._fingerprint is None:
                schema = reading.schema if isinstance(reading, Fetch) else to_arrow_schema(df.schema, timezone="UTC")
                self._fingerprint = self.open_sinks(schema)
                if isinstance(reading, Fetch):
                    check_direct(self.sinks, reading)
            span = self._range(df.sparkSession, query, batch_id)
            self.check_counted(span)
            files = checkpoint.files_of(df.sparkSession, query.root, span.end)
            request = EpochRequest(
                range=span,
                query_id=query.query_id,
                batch_id=batch_id,
                fingerprint=f"{self._fingerprint}/{files}" if files else self._fingerprint,
                sinks=self.names,
                write_through=self.write_through,
                continues=batch_id > 0,
            )
            self._check_state_is_whole(request, query)
            outcome = self.run_epoch(request, lambda record: self._run_job(df, record, reading, query))
            if outcome.replayed:
                log.info("batch %d was written before, as epoch %d: skipped", batch_id, outcome.record.epoch)
                if query.stateful is not False:
                    # Skipping a completed batch of a stateful query would break the state store's validation.
                    df.write.format("noop").mode("overwrite").save()
            else:
                self._tally.settle()
            self._last_end = (batch_id, request.range.end)
            return outcome

    def refuse_second_query(self, spark: SparkSession, besides: RunningQuery | None = None) -> None:
        """One pipeline, one query: two would make two chains of positions."""
        query = self._query
        if query is None or (besides is not None and query.run_id == besides.run_id):
            return
        if checkpoint.is_active(spark, query):
            raise ConfigError(
                f"pipeline {self.name!r} runs query {query.query_id} already: one pipeline, one query. Stop that one,"
                " or give the other its own pipeline name"
            )

    def check_checkpoint(self, spark: SparkSession, root: str) -> None:
        """Before a query starts, also one that finds nothing new: what its checkpoint holds as done is on record."""
        committed = checkpoint.committed_end(spark, root)
        if committed is not None:
            check_committed(self.facts(), committed)

    def close(self) -> None:
        with self.lock:
            self._stop_sweeper()
            super().close()

    def _bind(self, spark: SparkSession, root: str | None) -> RunningQuery:
        """The query this batch belongs to. A new run, of this query or another, starts the protocol anew."""
        query = checkpoint.running_query(spark, self._query, root)
        if self._query != query:
            self.refuse_second_query(spark, query)
            self.check_store_reaches(spark, query.root)
            refuse_query(self.facts(), self.name)
            if self.started is None or self._query is not None:
                self.start(None)
            self._query, self._fingerprint, self._last_end = query, None, None
            self._stop_sweeper()
            self._sweeper = Sweeper(self.sweep, lambda: checkpoint.is_active(spark, query))
        return query

    def _range(self, spark: SparkSession, query: RunningQuery, batch_id: int) -> Range:
        end = checkpoint.positions_at(spark, query.root, batch_id)
        if end is None:
            raise CheckpointMismatch(
                f"the checkpoint at {query.root} has no offsets/{batch_id}, though Spark runs that batch: something"
                " deletes files there. Stop it, and start with a new checkpoint and startingOffsets=ledger"
            )
        if self._last_end is not None and self._last_end[0] == batch_id - 1:
            return Range(self._last_end[1], _within(query, end))
        before = checkpoint.last_end_before(spark, query.root, batch_id)
        start = self._first_start(spark, query, end) if before is None else before
        return Range(_within(query, start), _within(query, end))

    def _first_start(self, spark: SparkSession, query: RunningQuery, end: Positions) -> Positions:
        """Where the first batch began: what Spark logged of its own sources, and what `read` froze of ours."""
        logged = checkpoint.initial_positions(spark, query.root)
        frozen = self.begin or Positions()
        known = logged.topics().keys() | frozen.topics().keys()
        joined = {topic for topic in end.topics() if self.joining is not None and self.joining.covers(topic)}
        if missing := sorted(end.topics().keys() - known - joined):
            raise ConfigError(
                f"the first batch's start in {', '.join(missing)} is not on record anywhere: Spark does not log it for"
                " onefold_kafka. Read through the pipeline, which freezes it: pipeline.read(spark, KafkaSource(...))"
            )
        nowhere: dict[str, int | str] = {name: -1 for name, _ in end.items if name[0] == "#"}
        if nowhere:
            self._check_no_other_query(query)
        return Positions.of({**nowhere, **dict(frozen.items), **dict(logged.items)}, frozen.marks)

    def _check_no_other_query(self, query: RunningQuery) -> None:
        """Sources other than Kafka count in their own way in each checkpoint: nobody could tell what is there."""
        last = self.facts().last
        if last is not None and dict(last.range.end.items).get(QUERY) != query.query_id:
            raise CheckpointMismatch(
                f"pipeline {self.name!r} has written {last.epoch} epochs, and this checkpoint directory is new. The"
                " positions of this query's sources are numbers of their checkpoint, so where a new one begins is not"
                " known. Nothing was written. Restore the checkpoint directory, or start over under a new pipeline"
                " name, with an empty table"
            )

    def _check_state_is_whole(self, request: EpochRequest, query: RunningQuery) -> None:
        """The ledger has the positions, but not the state that a query had built up to there."""
        if query.stateful is not True or request.batch_id != 0:
            return
        facts = self.facts()
        last, begin = facts.last, request.range.start
        if last is None or begin.relation_to(last.range.end) is not Relation.SAME:
            return  # a replay from the very beginning, or a mismatch that the protocol explains
        if facts.frozen is not None and begin.relation_to(facts.frozen) is Relation.SAME:
            return  # nothing but empty batches so far
        if (last.query_id, last.batch_id) == (request.query_id, 0) and last.range.is_empty:
            return
        raise CheckpointMismatch(
            f"this query keeps state, and it would go on at epoch {last.epoch}'s end without the state of the records"
            " before, which is in the checkpoint directory only. Nothing was written. Restore that directory; or start"
            " with startingOffsets=earliest and the same maxOffsetsPerTrigger, which runs all batches from the"
            " pipeline's first position through the state again and writes none of them twice (as long as the store"
            f" still knows them: it keeps {KEEP_EPOCHS:,}); or start over under a new pipeline name, with an empty"
            " table"
        )

    def _run_job(
        self, df: DataFrame, record: EpochRecord, reading: Fetch | BadFetch | None, query: RunningQuery
    ) -> tuple[Committable, ...]:
        try:
            written = write_epoch(df, record, self.sinks, reading, self.dead_letters)
            self._tally.count(record.epoch, written.bad, policy_of(reading, self.dead_letters))
            return written.committables
        except OnefoldError:
            raise
        except Exception as error:
            if not checkpoint.is_active(df.sparkSession, query):
                raise Terminal(
                    f"the query was stopped in the middle of epoch {record.epoch}: nothing of it was decided, and the"
                    " next start runs it again"
                ) from error
            raise from_spark(error) from error

    def _stop_sweeper(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None


def _within(query: RunningQuery, positions: Positions) -> Positions:
    if not any(name.startswith("#") for name, _ in positions.items):
        return positions
    return Positions.of({**dict(positions.items), QUERY: query.query_id}, positions.marks)
