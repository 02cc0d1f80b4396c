"""`Flow.start`: from a flow's graph to a query of Spark."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.core import CheckpointMismatch, ConfigError
from onefold.core.checks import present
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.source import BoundedSource, ReadOnce, Source
from onefold.core.values.tuples import form_of
from onefold.core.values.ways import SPARK_FLOW, Ways
from onefold.engine.dataflow.plan import Plan, plan
from onefold.engine.workers.snapshots import kept_by
from onefold.flow.graph import Graph
from onefold.flow.operators import Processing
from onefold.flow.planning.planners import Planners
from onefold.flow.planning.starts import (
    check_apart,
    check_covered,
    check_journals,
    check_read_once,
    check_replayable,
    initial_of,
)
from onefold.flow.processor import StatefulProcessor
from onefold.spark.flows.ranges import OnefoldRanges, Wanted
from onefold.spark.flows.refusals import check_flow, check_reached
from onefold.spark.flows.spark_operator import for_tasks, operator_of
from onefold.spark.flows.stages import levels
from onefold.spark.flows.translation import Translation
from onefold.spark.formats.registration import register_format
from onefold.spark.pipeline import Pipeline
from onefold.spark.runtime.checkpoint import elsewhere
from onefold.spark.runtime.direct import BadFetch

__all__ = ["FlowQuery", "recover", "start"]

log = logging.getLogger("onefold")

_PACKED_ROWS_MAX = 32  # in one batch between Spark and Python: each has some megabytes at most
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
# Where a task that has read is run again, for a part of those that took its rows, and finds others: all of them are.
_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"
_READ_ALIKE = {f"{_CHECKSUM}.enabled": "true", f"{_CHECKSUM}.enableFullRetryOnMismatch": "true"}


@dataclass(frozen=True)
class FlowQuery:
    """A flow that runs on Spark: its pipeline, and the query that the pipeline has started."""

    pipeline: Pipeline
    query: StreamingQuery

    def await_termination(self, timeout_s: int | None = None) -> bool:
        """Wait for the flow's end, and raise the error that ended it, if one did. False on a timeout."""
        return self.pipeline.await_termination(self.query, timeout_s)

    def drain(self, within_s: float) -> bool:
        """End the flow with its epoch complete in every sink; False if that took longer."""
        return self.pipeline.drain(self.query, within_s)


def start(
    graph: Graph,
    spark: SparkSession,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    on_outcome: Callable[[Outcome], None] | None = None,
    trust_machine: bool = False,
) -> FlowQuery:
    """Start a flow as a query of Spark.

    checkpoint  the query's checkpoint, a folder or URL: where Spark keeps the flow's state
    trigger     what DataStreamWriter.trigger takes: {"availableNow": True} ends the flow with what there is now, as by
                itself one ends whose sources all have an end
    store       URL of the checkpoint store: by default the first sink's own database, else SQLite under `.onefold/`
    patience_s  how long a server that is down is waited for
    on_outcome  a function that is called with the outcome of every epoch
    trust_machine  nobody else uses this machine: start also where any user of it could run code as this process

    Raises ConfigError for what Spark cannot run of it.
    """
    pipeline = _pipeline(graph, spark, store, patience_s, on_outcome, trust_machine)
    if trigger is None and all(isinstance(each.source, BoundedSource | ReadOnce) for _, each in graph.readings()):
        trigger = {"availableNow": True}
    return FlowQuery(pipeline, pipeline.start(spark, graph, checkpoint, trigger))


def recover(
    graph: Graph,
    spark: SparkSession,
    *,
    checkpoint: str,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    adopt_ledger: bool = False,
    accept_damage: int | None = None,
    accept_targets: bool = False,
) -> Started:
    """As `Pipeline.recover`, of a flow that Spark runs: without starting it. Its checkpoint is not looked at."""
    del checkpoint
    with closing(_pipeline(graph, spark, store, patience_s)) as pipeline:
        if adopt_ledger:
            pipeline.check_journals(graph)
        return pipeline.recover(adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets)


def _pipeline(
    graph: Graph,
    spark: SparkSession,
    store: str | None,
    patience_s: float,
    on_outcome: Callable[[Outcome], None] | None = None,
    trust_machine: bool = False,
) -> _FlowPipeline:
    check_flow(graph)
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "flow-not-on-spark", f"flow {graph.flow!r} cannot run on Spark Connect: give start a session of Spark's own"
        )
    letters = [writing.sink for _, writing in graph.writings() if writing.is_letters and graph.querying() is not None]
    return _FlowPipeline(
        graph.flow,
        [writing.sink for _, writing in graph.writings() if writing.sink not in letters],
        store,
        dead_letters=next(iter(letters), None),
        patience_s=patience_s,
        on_outcome=on_outcome,
        trust_machine=trust_machine,
    )


class _FlowPipeline(Pipeline):
    WAYS: ClassVar[Ways] = SPARK_FLOW

    def check_journals(self, graph: Graph) -> None:
        """Raise the error of a source whose journal does not have what the ledgers name."""
        session, sources = self._session(), [reading.source for _, reading in graph.readings()]
        session.patience.retry(lambda: check_journals(sources, session.ledgers(), session.journal), "reading the store")

    def start(
        self, spark: SparkSession, graph: Graph, checkpoint: str, trigger: Mapping[str, Any] | None
    ) -> StreamingQuery:
        operator = operator_of(graph)
        if operator is not None:
            operator.check(spark, self.sinks)
        session = self._session()
        groups = int(session.pin("key groups of the flow", lambda: str(graph.max_parallelism)))
        if groups != graph.max_parallelism:
            raise ConfigError(
                "max-parallelism",
                f"flow {graph.flow!r} began with max_parallelism={groups}, and has {graph.max_parallelism} now: that is"
                " for good",
            )
        flow = plan(for_tasks(graph), sinks_apart=True)
        _check_state(session.pin, flow)
        sources = {node.number: graph.resolved(node, session.pin) for node, _ in graph.readings()}
        check_reached(graph, elsewhere(spark))
        check_apart(sources.values(), checkpoint, checkpoint, self._url)
        translation = Translation(flow, sources)
        _check_pickles(translation)
        again = None if operator is None else _read_again(sources)
        splits = self._splits(spark, sources)
        if operator is not None:
            self._reading = again
            rows = operator.rows(translation.given(operator, splits))
            with _settings(spark, _READ_ALIKE):
                return self.write(rows, checkpoint, trigger, operator.output_mode)
        self._reading = translation
        with _settings(spark, _wanted(spark, graph, trigger or {})):
            return self._write(translation.read(splits), checkpoint, trigger, "append")

    def _splits(self, spark: SparkSession, sources: Mapping[int, Source]) -> DataFrame:
        """The stream of all sources, whose begins this start settles."""
        session, facts = self._prepared(spark, *sources.values())
        check_covered(self.name, sources.values(), facts)
        check = partial(check_replayable, self.name, sources.values(), self.sinks)
        session.patience.retry(check, "asking the sinks what they guarantee")
        session.before_drain = partial(check_read_once, self.name, sources.values())
        with closing(Planners(sources, facts.frozen, session.journal)) as planners:
            begin = facts.frozen
            if begin is None:
                begin = session.patience.retry(planners.initial, "asking where the sources begin")
            started = session.start(initial_of(self.name, sources.values(), facts, begin), goes_on=True)
            begin = present(started.start, "a start finds where a first epoch begins").of_records()
            facts = session.facts()
            at = begin if facts.last is None else facts.last.range.end.of_records()
            added = session.patience.retry(
                lambda: [*planners.begin_added(at, session.pin)], "asking where the sources begin"
            )
        for names, setting in added:
            log.info("flow %r: %s, added later: read from starting_offsets=%r on", self.name, names, setting)
        wanted = Wanted(
            self.name,
            sources,
            begin,
            started.until and started.until.of_records(),
            planners.added,
            self._url,
            started.store_id,
            session.patience.patience_s,
        )
        register_format(spark, OnefoldRanges)
        return self._planning(session, spark.readStream.format(OnefoldRanges.name()).options(**wanted.options()))


def _read_again(sources: Mapping[int, Source]) -> BadFetch | None:
    """How bad records are found for their sink: rows that Spark has made have lost where they came from."""
    lettered = [source for source in sources.values() if source.on_error == "dead_letter"]
    if not lettered:
        return None
    from onefold.sources.kafka import KafkaSource

    (source,) = lettered if len(sources) == 1 else (None,)
    if not isinstance(source, KafkaSource):
        raise ConfigError(
            "flow-not-on-spark",
            f"the bad records of {lettered[0].name!r} cannot be dead letters beside an operator that Spark runs: they"
            " are read a second time, which needs one source, a topic. Give it on_error='fail' or 'skip', or make two"
            " flows of it",
        )
    return BadFetch(source, source.arrow_schema())


def _check_state(pin: Callable[[str, Callable[[], str]], str], flow: Plan) -> None:
    """Spark knows the operators with state by their order, and would begin anew with another's uid. To it their state
    is bytes: what these are of is kept beside it."""
    uids = [sorted(chain.uid for chain in level if chain.uid) for level in levels(flow)]
    now = json.dumps([of for of in uids if of])
    if (before := pin("operators with state", lambda: now)) != now:
        raise CheckpointMismatch(
            "state-operators-changed",
            f"flow {flow.graph.flow!r} began on Spark with the operators with state {before}, between exchanges in this"
            f" order, and has {now} now: Spark would lose their state. Nothing was written. Give the operators their"
            " uids and places back; or start under another name, with empty tables",
        )
    for uid, of, keeps in _kept(flow):
        name = f"kept {hashlib.sha256(json.dumps([uid, of]).encode()).hexdigest()[:32]}"  # names of pins have a limit
        if (kept := pin(name, partial(str, keeps))) != keeps:
            raise CheckpointMismatch(
                "state-operators-changed",
                f"the operator {uid!r} of flow {flow.graph.flow!r} keeps {keeps}, and its state is of {kept}. Nothing"
                " was written. Give its columns their earlier names and types before it, as by"
                " select(earlier=pc.field('now').cast(...)); or start under another name, with empty tables",
            )


def _kept(flow: Plan) -> Iterator[tuple[str, str, str]]:
    """What each operator with state keeps, and each of its maps: the uid, the map's name, and words for it."""
    for chain in flow.chains:
        if chain.uid is not None:
            yield chain.uid, "", kept_by(chain)
            operator = chain.head.operator
            for state in operator.states if isinstance(operator, Processing) else ():
                if state.key_schema is not None:
                    yield chain.uid, state.name, f"the map {state.name!r} by {form_of(state.key_schema)}"


def _wanted(spark: SparkSession, graph: Graph, trigger: Mapping[str, Any]) -> dict[str, str]:
    """Settings of the query. Spark makes batches without records for its timers, without end: so only for a processor
    that has some, and in a query that goes on."""
    processors = [node.operator.processor for node in graph.nodes if isinstance(node.operator, Processing)]
    has_timers = any(type(each).handleExpiredTimer is not StatefulProcessor.handleExpiredTimer for each in processors)
    ends = bool(trigger.get("availableNow") or trigger.get("once"))
    return {
        **_READ_ALIKE,
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.noDataMicroBatches.enabled": str(has_timers and not ends).lower(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_PACKED_ROWS_MAX),
        _PARTITIONS: str(min(int(str(spark.conf.get(_PARTITIONS))), graph.max_parallelism)),
    }


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
