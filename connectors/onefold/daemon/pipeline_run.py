"""One pipeline in this process: started, started again, paused, and ended after a complete epoch."""

from __future__ import annotations

import enum
import logging
import threading
import time
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.core import Fenced, InDoubt, OnefoldError, Retriable
from onefold.core.errors import InternalError
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.restart import Restart, Restarts
from onefold.core.values.plain import plain
from onefold.core.writing.bad_records import Tally
from onefold.pipeline import Pipeline
from onefold.spark.errors.failures import from_spark, is_of_spark, is_stopped
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.store.job.logs import logged_as

__all__ = ["Run", "RunState", "Totals"]

log = logging.getLogger("onefold")


class RunState(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting"  # to be started again
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"  # all is written that was there at the start, or that there ever is
    FAILED = "failed"
    FENCED = "fenced"

    @property
    def is_over(self) -> bool:
        return self in (RunState.STOPPED, RunState.FINISHED, RunState.FAILED, RunState.FENCED)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a pipeline's runs have counted."""

    restarts: int = 0  # after failures
    replays: int = 0  # batches that were skipped, since they had been written before
    dead_letters: int = 0  # of the source
    skipped: int = 0  # records that could not be read

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.restarts + other.restarts,
            self.replays + other.replays,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
        )


class Run:
    """A thread that runs the pipeline until it is stopped, has finished, or failed for good: see `error` then."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.pipeline = pipeline
        self.state = RunState.STARTING
        self.error: OnefoldError | None = None
        self.has_lost_spark = False  # no query can start in this process any more
        self.error_at_s: float | None = None  # this and the next ones: seconds since 1970
        self.started_at_s: float | None = None  # its query of now, or its last one
        self.progress_at_s: float | None = None
        self.next_start_at_s: float | None = None
        self.ended_s: float | None = None  # by the monotonic clock
        self.restarts = 0
        self.last: Outcome | None = None
        self._spark = spark
        self._writer: FlowWriter | None = None  # made by the first start: a source's server may be asked for that
        self._query: StreamingQuery | None = None
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()  # of what starts and ends queries
        self._moving = threading.Lock()  # from state to state
        self._generation: int | None = None
        self._replays = 0
        self._ran_from_s: float | None = None  # None: the last start failed
        self._thread = threading.Thread(target=self._run, name=f"onefold-{pipeline.name}", daemon=True)

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def recovered(self) -> Started | None:
        """What its last start found; None before the first has succeeded, and once it is closed."""
        return None if self._writer is None else self._writer.started

    @property
    def generation(self) -> int | None:
        """Under which it works, or worked; None before its first start has succeeded."""
        if (started := self.recovered) is not None:
            self._generation = started.generation.number
        return self._generation

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy, while it is waited out."""
        return None if self._writer is None else self._writer.waiting_for

    @property
    def totals(self) -> Totals:
        bad = Tally() if self._writer is None else self._writer.bad_records
        return Totals(self.restarts, self._replays, bad.dead_letters, bad.skipped)

    def start(self) -> None:
        self._thread.start()

    def join(self, within_s: float | None = None) -> bool:
        """Wait for its end. False on a timeout."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def pause(self) -> None:
        self._made().pause()
        self._move(RunState.PAUSED, RunState.RUNNING)

    def resume(self) -> None:
        self._made().resume()
        self._move(RunState.RUNNING, RunState.PAUSED)

    def stop(self, within_s: float) -> bool:
        """End it with its epoch complete. False if that takes longer: what it has begun, its next start resolves."""
        deadline_s = time.monotonic() + within_s
        self.announce_stop()
        if not self._lock.acquire(timeout=within_s):
            return False  # a start takes its time
        try:
            query = self._query
        finally:
            self._lock.release()
        if query is not None and not self._drain(query, max(0, deadline_s - time.monotonic())):
            return False
        return self.join(max(0, deadline_s - time.monotonic()))

    def _drain(self, query: StreamingQuery, within_s: float) -> bool:
        try:
            return self._made().drain(query, within_s)
        except Retriable:  # the JVM is gone, with the query: what waits for its end is told the same, and says it
            return True

    def announce_stop(self) -> None:
        """It is not started again, and `stop` is about to end it."""
        self._is_stopping.set()
        self._move(RunState.STOPPING)

    def _run(self) -> None:
        with logged_as(pipeline=self.name):
            try:
                ended = self._live()
            except Exception as error:
                ended = self._failed(error)
            try:
                if self._writer is not None:
                    self._writer.close()
            except Exception as error:
                if ended in (RunState.FENCED, RunState.FAILED):  # the first error says more
                    log.error("pipeline %r is not closed: %s", self.name, self._meaning(error))
                else:
                    ended = self._failed(error)
            self.ended_s = time.monotonic()
            self._move(ended)

    def _failed(self, error: Exception) -> RunState:
        """It ends with this error."""
        self._fail(self._meaning(error))
        log.error("pipeline %r has ended: %s", self.name, self.error)
        return RunState.FENCED if isinstance(self.error, Fenced) else RunState.FAILED

    def _live(self) -> RunState:
        """Start it, and again after failures that may pass. Returns how it ended; raises the error that ended it."""
        restarts = Restarts(self.pipeline.restart or Restart())
        while True:
            error = self._once()
            if error is None:
                return RunState.STOPPED if self._is_stopping.is_set() else RunState.FINISHED
            failed_s = time.monotonic()
            self.has_lost_spark = error.code == "jvm-gone" or is_stopped(self._spark)
            may_pass = isinstance(error, Retriable | InDoubt) and not self.has_lost_spark
            if not may_pass or self._is_stopping.is_set():
                raise error
            delay_s = restarts.delay_s(failed_s - (self._ran_from_s or failed_s), failed_s)
            if delay_s is None:
                raise error
            self._fail(error)
            self.next_start_at_s = time.time() + delay_s
            self._move(RunState.WAITING)
            log.warning("pipeline %r failed and is started again in %.0f s: %s", self.name, delay_s, error)
            if self._is_stopping.wait(delay_s):
                return RunState.STOPPED
            self.next_start_at_s = None
            self.restarts += 1
            self._move(RunState.STARTING)

    def _once(self) -> OnefoldError | None:
        """One query, to its end. The error that ended it, if one did."""
        self._ran_from_s = None
        try:
            with self._lock:
                if self._is_stopping.is_set():
                    return None
                writer = self._made()
                query = self._query = self.pipeline.start(self._spark, writer)
            self.error, self._ran_from_s, self.started_at_s = None, time.monotonic(), time.time()
            self._move(RunState.PAUSED if writer.is_paused else RunState.RUNNING, RunState.STARTING)
            writer.await_termination(query)
            if self._is_stopping.is_set() or writer.ends:
                return None
        except Exception as error:
            found = self._meaning(error)
            if found.code != "query-stopped":
                return found
        finally:
            self._query = None
        return Retriable(
            "query-ended",
            f"the query of pipeline {self.name!r} was stopped, and not by onefold: by something else in this process,"
            " or with Spark. Start it again: nothing is lost",
        )

    def _made(self) -> FlowWriter:
        if self._writer is None:
            self._writer = self.pipeline.writer(on_outcome=self._note)
        return self._writer

    def _meaning(self, error: Exception) -> OnefoldError:
        if isinstance(error, OnefoldError):
            return error
        if is_of_spark(error):
            return from_spark(error)
        log.error("pipeline %r: an error that is neither onefold's nor Spark's", self.name, exc_info=error)
        return InternalError(
            "unexpected-error",
            f"pipeline {self.name!r} failed with {type(error).__name__}: {plain(str(error))}. This is a defect of"
            " onefold or of a connector: please report it with its traceback, which is in the log",
        )

    def _move(self, to: RunState, *only_from: RunState) -> None:
        """Into another state, unless it is over; with `only_from` out of these alone."""
        with self._moving:
            if not self.state.is_over and (not only_from or self.state in only_from):
                self.state = to

    def _fail(self, error: OnefoldError) -> None:
        self.error, self.error_at_s = error, time.time()

    def _note(self, outcome: Outcome) -> None:
        self.last, self.progress_at_s = outcome, time.time()
        self._replays += outcome.replayed
