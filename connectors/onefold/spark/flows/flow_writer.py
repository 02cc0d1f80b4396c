"""The writer of a flow's query: it starts the query, with the flow's sources, and writes its epochs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from onefold.clients import exposure
from onefold.core import ConfigError, EpochRecord, OutOfResources
from onefold.core.checks import present
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.protocol.runs import refuse_query
from onefold.core.source import BoundedSource, ReadOnce, Source
from onefold.core.values.remedies import SPARK_FLOW, Remedies, in_words_of
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.driver.resume_point import check_same_mechanism
from onefold.engine.state import handles_of, refuse_in_flight
from onefold.flow.graph.event_time import clocks_of
from onefold.flow.graph.nodes import Graph
from onefold.flow.graph.operators import Processing, Writing
from onefold.flow.planning import (
    Planners,
    check_apart,
    check_covered,
    check_journals,
    check_read_once,
    check_replayable,
    initial_of,
)
from onefold.flow.processing.processor import StatefulProcessor
from onefold.flow.time.told import ToldClock
from onefold.spark.epoch_writer import EpochWriter, WriterSettings
from onefold.spark.errors.failures import check_start, from_spark
from onefold.spark.flows.moved_state import restored_state
from onefold.spark.flows.ranges import OnefoldRanges, RangesPlan
from onefold.spark.flows.refusals import KEY_GROUPS, check_flow, check_kept, check_reached
from onefold.spark.flows.spark_operator import OperatorWriting, checked_operator, for_tasks, lettered
from onefold.spark.flows.translation import Translation
from onefold.spark.formats.registration import register_format
from onefold.spark.output_modes import refused_query
from onefold.spark.runtime.checkpoint import elsewhere
from onefold.store.job.holding import Hold, held
from onefold.store.savepoint_notes import Beginning, beginning

log = logging.getLogger("onefold")

_PACKED_ROWS_MAX = 32  # in one batch between Spark and Python: each has some megabytes at most
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
# Where a task that has read is run again, for a part of those that took its rows, and finds others: all of them are.
_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"
_READ_ALIKE = {f"{_CHECKSUM}.enabled": "true", f"{_CHECKSUM}.enableFullRetryOnMismatch": "true"}


class FlowWriter(EpochWriter):
    """Runs one flow on Spark, as one query after the other. Raises ConfigError for what Spark cannot run of it."""

    REMEDIES: ClassVar[Remedies] = SPARK_FLOW

    def __init__(self, graph: Graph, store: str | None = None, **settings: Unpack[WriterSettings]) -> None:
        check_flow(graph)
        self.graph = graph
        self.ends = False  # whether the query that was started last ends by itself
        self._plan: Plan | None = None  # this and the next: of the queries that were started
        self._passed = Counter[int]()
        super().__init__(graph.flow, [writing.sink for _, writing in graph.writings()], store, **settings)
        self._letters = graph.letters()
        if self._requires_tls:
            exposure.check_reached([reading.source for _, reading in graph.readings()], (), "")

    def start(self, spark: SparkSession, checkpoint: str, trigger: Mapping[str, Any] | None = None) -> StreamingQuery:
        """Start the flow's query, and wait until it plans its first epoch. This takes the flow over: recovery runs, and
        where its sources begin is settled. `trigger` is what DataStreamWriter.trigger takes; by default a flow whose
        sources all have an end ends with them."""
        graph = self.graph
        if trigger is None and all(isinstance(each.source, BoundedSource | ReadOnce) for _, each in graph.readings()):
            trigger = {"availableNow": True}
        self.ends = bool(trigger and (trigger.get("availableNow") or trigger.get("once")))
        if not hasattr(spark, "_jsparkSession"):
            raise ConfigError(
                "flow-not-on-spark",
                f"flow {graph.flow!r} cannot run on Spark Connect: give start a session of Spark's own",
            )
        operator = checked_operator(spark, graph)
        session = self._session()
        session.endpoints = graph.endpoints
        groups = int(session.pin(KEY_GROUPS, lambda: str(graph.max_parallelism)))
        if groups != graph.max_parallelism:
            raise ConfigError(
                "max-parallelism",
                f"flow {graph.flow!r} began with max_parallelism={groups}, and has {graph.max_parallelism} now: that is"
                " for good",
            )
        flow = plan(for_tasks(graph), sinks_apart=True)
        check_kept(session.pin, flow)
        sources = {node.number: graph.resolved(node, session.pin) for node, _ in graph.readings()}
        check_reached(graph, elsewhere(spark))
        check_apart(sources.values(), checkpoint, checkpoint, self._url)
        self._plan = flow
        translation = Translation(flow, sources, self._passed)
        _check_pickles(translation)
        writing = (
            translation if operator is None else OperatorWriting(flow, lettered(graph, sources.values()), self._passed)
        )
        splits = self._splits(spark, sources)
        self._writing = writing
        if operator is not None:
            rows = operator.rows(translation.given(operator, splits))
            with _settings(spark, _READ_ALIKE):
                return self._query(rows, checkpoint, trigger, operator.output_mode)
        with _settings(spark, _wanted(spark, graph, ends=self.ends)):
            rows = translation.read(splits, restored_state(session, spark, checkpoint, flow))
            return self._query(rows, checkpoint, trigger, "append")

    @property
    def clocks(self) -> Mapping[str, ToldClock]:
        """Of the operators that go by event time, by their uids, after the last epoch."""
        return self._writing.told.clocks if isinstance(self._writing, Translation) else {}

    @property
    def traffic(self) -> list[tuple[int, int] | None]:
        """The rows and bytes that have passed by each edge of the graph, by the nodes that they lead to, as far as
        epochs were written; what one processes that is written again counts again. None where nobody counts them:
        before an operator that Spark runs. Empty before the first start."""
        is_counted, passed = self.graph.querying() is None, self._passed
        return [
            (passed[2 * stream], passed[2 * stream + 1]) if is_counted or isinstance(node.operator, Writing) else None
            for node, stream in (() if self._plan is None else self._plan.edges)
        ]

    def check_journals(self) -> None:
        """Raise the error of a source whose journal does not have what the ledgers name."""
        session, sources = self._session(), [reading.source for _, reading in self.graph.readings()]
        session.patience.retry(lambda: check_journals(sources, session.ledgers(), session.journal), "reading the store")

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

    @property
    def drains(self) -> bool:
        """Whether its query ends, or has ended, after an epoch, as it was asked to: by a signal, too."""
        return self._gate.is_ending

    def moves(self) -> list[EpochRecord]:
        """Every epoch of this flow that moved its positions, oldest first (docs/positions.md)."""
        return self._session().store.moves(self.name)

    def beginning(self) -> Beginning | None:
        """Where this flow began, if that was with another one's savepoint (docs/savepoints.md)."""
        return beginning(self._session().store, self.name)

    def held(self) -> AbstractContextManager[Hold]:
        """A block that its driver, where it runs, is between two epochs in, until `go_on` (docs/verify.md)."""
        return held(self._session().store, self.name)

    def sources(self) -> dict[int, Source]:
        """Its sources by the numbers of their nodes, with the schemas that its first start found."""
        pin = self._session().pin
        return {node.number: self.graph.resolved(node, pin) for node, _ in self.graph.readings()}

    def _splits(self, spark: SparkSession, sources: Mapping[int, Source]) -> DataFrame:
        """The stream of all sources, whose begins this start settles."""
        self._check_access(spark)
        session = self._session()
        session.prepare_workers(spark, *sources.values())
        session.refuse_second_query(spark)
        if (named := next((query for query in spark.streams.active if query.name == self.name), None)) is not None:
            raise session.second_query(named.id)  # of another writer: Spark would start none of that name
        facts = session.facts()
        refuse_query(facts, self.name)
        check_same_mechanism(facts, "barriers")  # whose epochs those on Spark go on from
        refuse_in_flight(self.name, handles_of(facts.last), "Nothing was written")
        check_covered(self.name, sources.values(), facts)
        check = partial(check_replayable, self.name, sources.values(), self.sinks)
        session.patience.retry(check, "asking the sinks what they guarantee")
        session.before_drain = partial(check_read_once, self.name, sources.values())
        with closing(Planners(sources, facts.frozen, session.journal)) as planners:
            begin = facts.frozen
            if begin is None:
                begin = session.patience.retry(planners.initial, "asking where the sources begin")
            with in_words_of(self._remedies):
                initial = initial_of(self.name, sources.values(), facts, begin)
            started = session.start(initial, goes_on=True)
            begin = present(started.start, "a start finds where a first epoch begins").of_records()
            facts = session.facts()
            at = begin if facts.last is None else facts.last.range.end.of_records()
            added = partial(planners.begin_added, self.name, at, session.pin)
            session.patience.retry(added, "asking where the sources begin")
        wanted = RangesPlan(
            self.name,
            sources,
            begin,
            started.until and started.until.of_records(),
            planners.added,
            self._url,
            started.store_id,
            session.patience.patience_s,
            _timed(self.graph),
        )
        register_format(spark, OnefoldRanges)
        reader = spark.readStream.format(OnefoldRanges.name()).options(**wanted.options())
        return session.patience.retry(partial(_loaded, reader), "planning the sources", OutOfResources)

    def _query(self, rows: DataFrame, root: str, trigger: Mapping[str, Any] | None, mode: str) -> StreamingQuery:
        session, spark = self._session(), rows.sparkSession
        session.check_store_reaches(elsewhere(spark, root))
        session.check_targets()
        writer = rows.writeStream.queryName(self.name).foreachBatch(self)
        writer = writer.option("checkpointLocation", root).outputMode(mode)
        writer = writer.trigger(**trigger) if trigger else writer
        try:
            return session.patience.retry(
                partial(self._begin, spark, root, writer), "starting the query", OutOfResources
            )
        except AnalysisException as error:
            raise refused_query(error, mode) from error

    def _begin(self, spark: SparkSession, root: str, writer: DataStreamWriter) -> StreamingQuery:
        """Each start is one of its own: the checkpoint may have the plan of a batch that the last one did not run."""
        session = self._session()
        session.check_checkpoint(spark, root)
        self.error, self._has_batch = None, False
        self._gate.begin()
        query = writer.start()
        check_start(query, lambda: self._has_batch, session.patience.patience_s)
        return query


def _loaded(reader: DataStreamReader) -> DataFrame:
    """The reader's DataFrame, for which Spark starts a worker that plans. Raises the worker's error as onefold's."""
    try:
        return reader.load()
    except (PySparkException, Py4JJavaError) as error:
        raise from_spark(error) from error


def _wanted(spark: SparkSession, graph: Graph, *, ends: bool) -> dict[str, str]:
    """Settings of the query. Spark makes batches without records for its timers, without end: so only for a processor
    that has some of processing time, or where silence moves a watermark, and in a query that goes on."""
    processors = [
        node.operator.processor
        for node in graph.nodes
        if isinstance(node.operator, Processing) and node.operator.timers == "processing"
    ]
    has_timers = any(idle_ms is not None for _, idle_ms in _timed(graph).values())
    has_timers |= any(node.expires for node in graph.nodes)
    has_timers |= any(type(each).handleExpiredTimer is not StatefulProcessor.handleExpiredTimer for each in processors)
    return {
        **_READ_ALIKE,
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.noDataMicroBatches.enabled": str(has_timers and not ends).lower(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_PACKED_ROWS_MAX),
        _PARTITIONS: str(min(int(str(spark.conf.get(_PARTITIONS))), graph.max_parallelism)),
    }


def _timed(graph: Graph) -> dict[int, tuple[str, int | None]]:
    """The sources whose event time operators go by, by their nodes: their uids, and after how many ms one is idle."""
    clocks = [clocks_of(graph.nodes, node.inputs) for node in graph.nodes if node.keeps_event_time]
    idle_ms = {uid: watermarks.idle_ms for of in clocks for uid, watermarks in of.items()}
    return {node.number: (node.uid, idle_ms[node.uid]) for node, _ in graph.readings() if node.uid in idle_ms}


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Has a query that starts meanwhile run with these settings: it takes a copy of the session's."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _check_pickles(translation: Translation) -> None:
    """Functions, expressions and processors go to Spark's workers."""
    try:
        cloudpickle.dumps(translation)  # type: ignore[no-untyped-call]  # it has no types
    except Exception as error:
        raise ConfigError(
            "flow-not-on-spark",
            f"flow {translation.plan.graph.flow!r} cannot run on Spark: a function or processor of it does not pickle"
            f" ({type(error).__name__}: {error}). Keep connections, locks and files out of it, and open them in init",
        ) from error


@dataclass(frozen=True)
class FlowQuery:
    """A flow that runs on Spark: its writer, and the query that the writer has started."""

    writer: FlowWriter
    query: StreamingQuery

    def await_termination(self, timeout_s: int | None = None) -> bool:
        """Wait for the flow's end, and raise the error that ended it, if one did. False on a timeout."""
        return self.writer.await_termination(self.query, timeout_s)

    def drain(self, within_s: float) -> bool:
        """End the flow with its epoch complete in every sink; False if that took longer."""
        return self.writer.drain(self.query, within_s)

    def close(self) -> None:
        """Let go of all connections, once it has ended."""
        self.writer.close()


def start(
    graph: Graph,
    spark: SparkSession,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    on_outcome: Callable[[Outcome], None] | None = None,
    require_tls: bool = False,
    trust_machine: bool = False,
) -> FlowQuery:
    """Start a flow as a query of Spark.

    checkpoint  the query's checkpoint, a folder or URL: where Spark keeps the flow's state
    trigger     what DataStreamWriter.trigger takes: {"availableNow": True} ends the flow with what there is now, as by
                itself one ends whose sources all have an end
    store       URL of the checkpoint store: by default the first sink's own database, else SQLite under `.onefold/`
    patience_s  how long a server that is down is waited for
    on_outcome  a function that is called with the outcome of every epoch
    require_tls    refuse every connection that leaves this machine without verified TLS
    trust_machine  nobody else uses this machine: start also where any user of it could run code as this process

    Raises ConfigError for what Spark cannot run of it.
    """
    writer = FlowWriter(
        graph,
        store,
        patience_s=patience_s,
        on_outcome=on_outcome,
        require_tls=require_tls,
        trust_machine=trust_machine,
    )
    return FlowQuery(writer, writer.start(spark, checkpoint, trigger))


def recover(
    graph: Graph,
    *,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    adopt_ledger: bool = False,
    accept_damage: int | None = None,
    accept_targets: bool = False,
) -> Started:
    """As `EpochWriter.recover`, of a flow that Spark runs: without starting it. It asks neither Spark nor its
    checkpoint."""
    with closing(FlowWriter(graph, store, patience_s=patience_s)) as writer:
        if adopt_ledger:
            writer.check_journals()
        return writer.recover(adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets)
