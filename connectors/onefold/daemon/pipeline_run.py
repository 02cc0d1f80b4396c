"""One pipeline of a daemon: started, started again, paused, and ended after a complete epoch."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from onefold.core import Fenced, InDoubt, OnefoldError, Retriable
from onefold.core.restart import Restart, Restarts
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.messages import LogLine, Status, Totals
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.daemon.hosting.works import meaning
from onefold.pipeline import Pipeline
from onefold.store.job.logs import logged_as, note

_SIGNALLED = "host-stopped"

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


class Runs(Protocol):
    """What runs a pipeline: in another process, as `Hosted` does, or in this one, which `listen=` shows."""

    traffic: TrafficRates
    epochs: EpochTimes

    @property
    def status(self) -> Status: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def memory_bytes(self) -> int | None: ...

    @property
    def lines(self) -> Sequence[LogLine]: ...

    def run(self, on_start: Callable[[], None], is_paused: bool) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


class Run:
    """A thread that has the pipeline run until it is stopped, has finished, or failed for good: see `error` then."""

    def __init__(self, pipeline: Pipeline, hosted: Runs) -> None:
        self.pipeline = pipeline
        self.state = RunState.STARTING
        self.error: OnefoldError | None = None
        self.error_at_s: float | None = None  # this and the next one: seconds since 1970
        self.next_start_at_s: float | None = None
        self.ended_s: float | None = None  # by the monotonic clock
        self._restarts = 0
        self.hosted = hosted
        self._is_paused = False
        self._is_stopping = threading.Event()
        self._has_ended = threading.Event()
        self._moving = threading.Lock()  # from state to state
        self._ran_from_s: float | None = None  # None: the last start failed
        self._thread = threading.Thread(target=self._run, name=f"onefold-{pipeline.name}", daemon=True)

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def generation(self) -> int | None:
        """Under which it works, or worked; None before its first start has succeeded."""
        recovered = self.hosted.status.recovered
        return None if recovered is None else recovered.generation

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy, while it is waited out."""
        waited = self.hosted.status.waiting_for
        return None if waited is None else waited.error()

    @property
    def totals(self) -> Totals:
        return self.hosted.totals + Totals(restarts=self._restarts)

    def start(self) -> None:
        self._thread.start()

    def join(self, within_s: float | None = None) -> bool:
        """Wait for its end. False on a timeout."""
        return self._has_ended.wait(within_s)

    def pause(self) -> None:
        self._is_paused = True
        self.hosted.pause()
        self._move(RunState.PAUSED, RunState.RUNNING)

    def resume(self) -> None:
        self._is_paused = False
        self.hosted.resume()
        self._move(RunState.RUNNING, RunState.PAUSED)

    def stop(self, within_s: float) -> bool:
        """End it with its epoch complete. False if that takes longer: what it has begun, its next start resolves."""
        self.announce_stop()
        self.hosted.drain()
        return self.join(within_s)

    def announce_stop(self) -> None:
        """It is not started again, and `stop` is about to end it."""
        self._is_stopping.set()
        self._move(RunState.STOPPING)

    def live(self, *, is_told: bool = False) -> None:
        """Run it in this thread, to its end. Raises the error that ended it, which is logged before where it
        `is_told`: who waits for the end may be the end of the process."""
        ended = RunState.FAILED
        try:
            ended = self._live()
        except Exception as error:
            self._fail(found := meaning(self.name, error))
            ended = RunState.FENCED if isinstance(found, Fenced) else RunState.FAILED
            if is_told:
                log.error("pipeline %r has ended: %s", self.name, found)
            raise found from error.__cause__
        finally:
            self.hosted.close()
            self.ended_s = time.monotonic()
            self._move(ended)
            self._has_ended.set()

    def _run(self) -> None:
        with logged_as(pipeline=self.name), suppress(OnefoldError):
            self.live(is_told=True)

    def _live(self) -> RunState:
        """Start it, and again after failures that may pass. Returns how it ended; raises the error that ended it."""
        restarts = Restarts(self.pipeline.restart or Restart())
        while True:
            error = self._once()
            if self.generation is not None:
                note(generation=self.generation)
            if error is None:
                return RunState.STOPPED if self._is_stopping.is_set() else RunState.FINISHED
            failed_s = time.monotonic()
            if not isinstance(error, Retriable | InDoubt):
                raise error
            if self._is_stopping.is_set():  # as one that waits: its next start resolves what it has begun
                self._fail(error)
                log.warning("pipeline %r is stopped, and failed meanwhile: %s", self.name, error)
                return RunState.STOPPED
            delay_s = restarts.delay_s(failed_s - (self._ran_from_s or failed_s), failed_s)
            if delay_s is None:
                raise error
            self._fail(error)
            self.next_start_at_s = time.time() + delay_s
            self._move(RunState.WAITING)
            log.warning("pipeline %r failed and is started again in %.1f s: %s", self.name, delay_s, error)
            if self._is_stopping.wait(delay_s):
                if error.code == _SIGNALLED:  # which came to this process a little later
                    self.error = None
                return RunState.STOPPED
            self.next_start_at_s = None
            self._restarts += 1
            self._move(RunState.STARTING)

    def _once(self) -> OnefoldError | None:
        """One start, to its end. The error that ended it, if one did."""
        self._ran_from_s = None
        if self._is_stopping.is_set():
            return None
        try:
            self.hosted.run(self._started, self._is_paused)
        except Exception as raised:
            error = meaning(self.name, raised)
            return None if error.code == _SIGNALLED and self._is_stopping.is_set() else error
        return None

    def _started(self) -> None:
        self.error, self._ran_from_s = None, time.monotonic()
        self._move(RunState.PAUSED if self._is_paused else RunState.RUNNING, RunState.STARTING)

    def _move(self, to: RunState, *only_from: RunState) -> None:
        """Into another state, unless it is over; with `only_from` out of these alone."""
        with self._moving:
            if not self.state.is_over and (not only_from or self.state in only_from):
                self.state = to

    def _fail(self, error: OnefoldError) -> None:
        self.error, self.error_at_s = error, time.time()
