"""What a host does for one pipeline: runs it on its runtime, and says where that stands."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from onefold.core import OnefoldError, Retriable
from onefold.core.errors import InternalError
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.values.plain import plain
from onefold.daemon.hosting.messages import Drawing, Failure, Finished, Flowing, Recovered, Status, Totals
from onefold.flow.explaining import boxes, connectors
from onefold.flow.time.told import ToldClock
from onefold.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onefold.engine.driver.flow_run import FlowRun
    from onefold.flow.graph.nodes import Graph
    from onefold.spark.flows.flow_writer import FlowWriter
    from onefold.store.epoch_figures import EpochSteps, GaveUp, OperatorAcks, RunningEpoch

_ASK_AGAIN_S = 60.0
_SLOW_S = 1.0  # an epoch that runs for longer is told with its operators
_FINISHED_MAX = 1000  # epochs that are told later, where the daemon does not listen

log = logging.getLogger("onefold")


class Work(ABC):
    """One run after the other of a pipeline, as long as they fail for reasons that may pass."""

    def __init__(self, pipeline: Pipeline, is_paused: bool) -> None:
        self.pipeline = pipeline
        self._is_draining = False
        self._is_paused = is_paused
        self._recovered: Recovered | None = None
        self._progress_at_s: float | None = None
        self._replays = 0
        self._finished: deque[Finished] = deque(maxlen=_FINISHED_MAX)

    @abstractmethod
    def run(self) -> None:
        """Until it has ended by itself, or was drained. Raises the error that ended it."""

    @abstractmethod
    def drain(self) -> None:
        """Have it end after its epoch; returns at once."""

    @abstractmethod
    def hold(self, is_paused: bool) -> None:
        """Begin no further epoch, or go on."""

    @property
    def was_drained(self) -> bool:
        return self._is_draining

    @property
    @abstractmethod
    def status(self) -> Status: ...

    @property
    @abstractmethod
    def graph(self) -> Graph | None:
        """What it runs, once that is known."""

    def flowing(self) -> Flowing | None:
        """What has flowed in it; None where that is not counted."""
        return None

    def finished(self) -> tuple[Finished, ...]:
        """The epochs that it has finished since the last call."""
        return tuple(self._finished.popleft() for _ in range(len(self._finished)))

    @property
    @abstractmethod
    def _steps(self) -> EpochSteps | None:
        """Of its last epoch."""

    @property
    def _operators(self) -> tuple[OperatorAcks, ...]:
        """Those of its last epoch; none where nobody measures them."""
        return ()

    def _note(self, outcome: Outcome) -> None:
        self._progress_at_s = time.time()
        self._replays += outcome.replayed
        if not outcome.replayed and (steps := self._steps) is not None:
            self._finished.append(Finished(epoch=outcome.record.epoch, steps=steps, operators=self._operators))

    def _status(
        self,
        at_s: float | None,
        started: Started | None,
        waiting_for: OnefoldError | None,
        totals: Totals,
        running: RunningEpoch | None = None,
        gave_up: GaveUp | None = None,
    ) -> Status:
        """`at_s` is when its run started, `started` what that found."""
        if started is not None:
            self._recovered = Recovered(generation=started.generation.number, finished=started.finished)
        return Status(
            started_at_s=at_s,
            recovered=self._recovered,
            waiting_for=None if waiting_for is None else Failure.of(waiting_for),
            progress_at_s=self._progress_at_s,
            running=running,
            gave_up=gave_up,
            totals=totals,
        )


class SparkWork(Work):
    """A query, and after it another one. Its writer is one for all: once another process took over, the next one is
    Fenced."""

    def __init__(self, pipeline: Pipeline, is_paused: bool, spark: SparkSession) -> None:
        super().__init__(pipeline, is_paused)
        self._spark = spark
        self._writer: FlowWriter | None = None  # made by the first run: a source's server may be asked for that
        self._query: StreamingQuery | None = None
        self._started_at_s: float | None = None
        self._state: tuple[int, int] | None = None
        self._changing = threading.Lock()

    def run(self) -> None:
        self._started_at_s = None
        if self._is_draining:
            return
        if self._writer is None:
            self._writer = self.pipeline.writer(on_outcome=self._note)
        writer = self._writer
        if self._is_paused:
            writer.pause()
        query = self.pipeline.start(self._spark, writer)
        try:
            with self._changing:
                self._query, self._started_at_s = query, time.time()
            if self.was_drained:
                self._end(query)
            writer.await_termination(query)
        except OnefoldError as error:
            if error.code != "query-stopped":
                raise
            raise self._stopped_by_something_else() from error
        finally:
            with self._changing:
                self._query = None
        if not self.was_drained and not writer.ends:
            raise self._stopped_by_something_else()
        self.close()

    def _stopped_by_something_else(self) -> Retriable:
        return Retriable(
            "query-ended",
            f"the query of pipeline {self.pipeline.name!r} was stopped, and not by onefold: by something else in its"
            " process, or with Spark. Start it again: nothing is lost",
        )

    @property
    def was_drained(self) -> bool:
        return self._is_draining or (self._writer is not None and self._writer.drains)  # by a signal

    def drain(self) -> None:
        with self._changing:
            self._is_draining, query = True, self._query
        if query is not None:
            threading.Thread(target=self._end, args=(query,), daemon=True).start()

    def _end(self, query: StreamingQuery) -> None:
        assert self._writer is not None
        try:
            while not self._writer.drain(query, _ASK_AGAIN_S):
                log.warning("pipeline %r is not at rest yet: its epoch goes on", self.pipeline.name)
        except Retriable:
            pass  # the JVM is gone, with the query: who waits for its end is told the same, and says it

    def hold(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self._writer is not None:
            (self._writer.pause if is_paused else self._writer.resume)()

    def close(self) -> None:
        """It is not run again."""
        if self._writer is not None:
            self._writer.close()

    def finished(self) -> tuple[Finished, ...]:
        found, query, graph = super().finished(), self._query, self.graph
        if found and query is not None and graph is not None and any(node.keeps_state for node in graph.nodes):
            with suppress(Exception):  # the query, or its JVM, has ended meanwhile
                progress = query.lastProgress  # of this batch, or of the one before
                of = [] if progress is None else progress.stateOperators
                self._state = sum(each.numRowsTotal for each in of), sum(each.memoryUsedBytes for each in of)
        return found

    @property
    def graph(self) -> Graph | None:
        return None if self._writer is None else self._writer.graph

    def flowing(self) -> Flowing | None:
        if self._writer is None or not (ways := self._writer.traffic):
            return None
        return Flowing(ways=tuple(ways), times=_by_number(self._writer.graph, self._writer.clocks))

    @property
    def _steps(self) -> EpochSteps | None:
        return None if self._writer is None else self._writer.steps

    @property
    def status(self) -> Status:
        writer = self._writer
        if writer is None:
            return self._status(None, None, None, Totals())
        bad = writer.bad_records
        return self._status(
            self._started_at_s,
            writer.started,
            writer.waiting_for,
            Totals(replays=self._replays, dead_letters=bad.dead_letters, skipped=bad.skipped, late=bad.late),
            writer.running,
        ).model_copy(update={"spark_state": self._state})


class EngineWork(Work):
    """A flow's run in the main thread of this process, which forks its workers."""

    def __init__(self, pipeline: Pipeline, is_paused: bool) -> None:
        super().__init__(pipeline, is_paused)
        self._flow: FlowRun | None = None
        self._holding = threading.Lock()

    def run(self) -> None:
        if not self._is_draining:
            self.pipeline.run_here(on_outcome=self._note, on_opened=self._opened)

    def _opened(self, flow: FlowRun) -> None:
        with self._holding:
            flow.is_paused = self._is_paused
            self._flow = flow
        if self._is_draining:
            flow.drain()

    def drain(self) -> None:
        self._is_draining = True
        if self._flow is not None:
            self._flow.drain()

    @property
    def was_drained(self) -> bool:
        return self._is_draining or (self._flow is not None and self._flow.drains)  # by a signal

    def hold(self, is_paused: bool) -> None:
        with self._holding:
            self._is_paused = is_paused
            if self._flow is not None:
                self._flow.is_paused = is_paused

    @property
    def graph(self) -> Graph | None:
        return None if self._flow is None else self._flow.graph

    @property
    def _steps(self) -> EpochSteps | None:
        return None if self._flow is None else self._flow.steps

    @property
    def _operators(self) -> tuple[OperatorAcks, ...]:
        return () if self._flow is None else self._flow.operators

    def look(self) -> None:
        """Note where its workers are; called every now and then."""
        if self._flow is not None:
            self._flow.traffic.look()

    def flowing(self) -> Flowing | None:
        if self._flow is None:
            return None
        traffic = self._flow.traffic
        return Flowing(
            ways=tuple(traffic.edges()),
            busy=dict(traffic.busy),
            backpressured=dict(traffic.backpressured),
            looks=traffic.looks,
            state=traffic.state(),
            times=_by_number(self._flow.graph, self._flow.progress.clocks()),
        )

    @property
    def status(self) -> Status:
        flow = self._flow
        if flow is None:
            return self._status(None, None, None, Totals())
        late, tracker, running = flow.progress.late.total(), flow.tracker, flow.running
        counted = flow.bad["dead_letter"], flow.bad["skip"], late, tracker.given_up
        totals = Totals(tracker.restarts, self._replays, *counted)
        if running is not None and time.time() - running.since_s < _SLOW_S:
            running = replace(running, operators=(), at=())
        return self._status(flow.started_at_s, flow.started, flow.waiting_for, totals, running, tracker.gave_up)


def _by_number(graph: Graph, clocks: Mapping[str, ToldClock]) -> dict[int, ToldClock]:
    return {node.number: clock for node in graph.nodes if (clock := clocks.get(node.uid or "")) is not None}


def drawing_of(graph: Graph) -> Drawing | None:
    """None where it cannot be drawn: it is run all the same."""
    try:
        return Drawing(boxes=tuple(boxes(graph)), ways=tuple(connectors(graph)))
    except Exception:
        log.exception("flow %r could not be drawn", graph.flow)
        return None


def meaning(pipeline: str, error: Exception | SystemExit) -> OnefoldError:
    """What an error says that ended a pipeline's run."""
    if isinstance(error, OnefoldError):
        return error
    if "pyspark" in sys.modules and isinstance(error, Exception):
        from onefold.spark.errors.failures import from_spark, is_of_spark

        if is_of_spark(error):
            return from_spark(error)
    log.error("pipeline %r: an error that is neither onefold's nor Spark's", pipeline, exc_info=error)
    return InternalError(
        "unexpected-error",
        f"pipeline {pipeline!r} failed with {type(error).__name__}: {plain(str(error))}. This is a defect of"
        " onefold or of a connector: please report it with its traceback, which is in the log",
    )
