"""What an operator does with the pipelines of this daemon: pause, resume, stop, restart.

A pipeline is run by one `Run` after the other. The daemon ends when all are over, unless one was stopped by its
operator, who may look at it and start it again. What is asked for once it ends is refused.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from onefold.core import ConfigError
from onefold.daemon.hosting.messages import Totals
from onefold.daemon.pipeline_run import Run, Runs, RunState
from onefold.pipeline import Pipeline
from onefold.store.job.logs import logged_as

log = logging.getLogger("onefold")


class Action(enum.Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RESTART = "restart"


ALLOWED = {
    RunState.STARTING: {Action.STOP},
    RunState.RUNNING: {Action.PAUSE, Action.STOP, Action.RESTART},
    RunState.PAUSED: {Action.RESUME, Action.STOP, Action.RESTART},
    RunState.WAITING: {Action.STOP, Action.RESTART},
    RunState.STOPPING: {Action.STOP, Action.RESTART},  # which it becomes, once it is at rest
    RunState.STOPPED: {Action.RESTART},
    RunState.FINISHED: {Action.RESTART},
    RunState.FAILED: {Action.RESTART},
    RunState.FENCED: set[Action](),  # another process runs it
}


ALREADY = {
    Action.PAUSE: RunState.PAUSED,
    Action.RESUME: RunState.RUNNING,
    Action.STOP: RunState.STOPPED,
}  # then nothing is to be done


class NotNow(ConfigError):
    """The pipeline's state does not allow what was asked."""


class Control:
    """One pipeline of the daemon. `Controls` makes them, and holds `lock` where it reads or changes several. `host` is
    what runs it, made anew for each `Run`; without `can_restart` there is but one."""

    def __init__(self, pipeline: Pipeline, host: Callable[[Pipeline], Runs], can_restart: bool = True) -> None:
        self.pipeline = pipeline
        self.run = Run(pipeline, host(pipeline))
        self.lock = threading.RLock()
        self._host = host
        self._can_restart = can_restart
        self._before = Totals()  # of the runs before this one
        self._starts_again = False  # when its run is over
        self._is_ending = False  # the process is: nothing is started any more

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def state(self) -> RunState:
        with self.lock:
            if self._starts_again and self.run.state.is_over and self.run.state is not RunState.FENCED:
                return RunState.STARTING
            return self.run.state

    @property
    def totals(self) -> Totals:
        """Since the daemon was started."""
        with self.lock:
            return self._before + self.run.totals

    @property
    def actions(self) -> list[Action]:
        if self._is_ending:
            return []
        allowed = ALLOWED[self.state] if self._can_restart else ALLOWED[self.state] - {Action.RESTART}
        return sorted(allowed, key=lambda action: action.value)

    def begin(self) -> None:
        """Start it, unless it was stopped before that."""
        self.run.start()

    def act(self, action: Action) -> None:
        """Returns at once: what takes its time shows as the state. Raises NotNow where the state does not allow it."""
        with self.lock:
            if not self._is_ending and self.state is ALREADY.get(action):
                return
            if action not in self.actions:
                raise self._refusal(action)
            log.info("pipeline %r: %s, as its operator asked", self.name, action.value)
            match action:
                case Action.PAUSE:
                    self.run.pause()
                case Action.RESUME:
                    self.run.resume()
                case Action.STOP:
                    self._starts_again = False
                    self._end()
                case Action.RESTART:
                    self._starts_again = True
                    self._end()
                    self.look()

    def look(self) -> None:
        """Start it again, if it is to be and its last run is over. Called time and again."""
        with self.lock:
            if self._starts_again and self.run.state.is_over and self.run.join(0):
                self._starts_again = False
                if not self._is_ending and self.run.state is not RunState.FENCED:  # for good, whoever asks
                    self._before, self.run = self.totals, Run(self.pipeline, self._host(self.pipeline))
                    self.run.start()

    def close(self) -> None:
        """Nothing is started from here on."""
        with self.lock:
            self._is_ending, self._starts_again = True, False

    def _end(self) -> None:
        """Have its run end with its epoch complete."""
        if not self.run.state.is_over and self.run.state is not RunState.STOPPING:
            self.run.announce_stop()
            threading.Thread(target=self._wait_for_end, args=(self.run,), daemon=True).start()

    def _wait_for_end(self, run: Run) -> None:
        within_s = max(1.0, self.pipeline.stop_within_s)
        with logged_as(pipeline=self.name):
            while not run.stop(within_s):
                log.warning("pipeline %r is not at rest after %.0f s: its epoch goes on", self.name, within_s)

    def _refusal(self, action: Action) -> NotNow:
        if self._is_ending:
            return NotNow("daemon-ending", f"the process ends: pipeline {self.name!r} takes no {action.value} any more")
        if self.state is RunState.FENCED:
            return NotNow(
                "pipeline-fenced",
                f"another process runs pipeline {self.name!r}, and this one must not take it back: operate that one",
            )
        if action is Action.RESTART and not self._can_restart:
            return NotNow(
                "restart-by-program",
                f"pipeline {self.name!r} is run by a program of its own, which alone can start it again: stop it, and"
                " run that program anew",
            )
        allowed = " or ".join(each.value for each in self.actions)
        wait = "wait until it runs, or " if self.state is RunState.STARTING else ""
        return NotNow(
            "action-not-allowed",
            f"pipeline {self.name!r} is {self.state.value}, which allows no {action.value}: {wait}{allowed} it",
        )


class Controls:
    def __init__(self, pipelines: Sequence[Pipeline], host: Callable[[Pipeline], Runs]) -> None:
        self._all = {pipeline.name: Control(pipeline, host) for pipeline in pipelines}

    def __iter__(self) -> Iterator[Control]:
        return iter(self._all.values())

    def end_if_over(self) -> bool:
        """Whether all are over, and none could be started again, where its operator has stopped it. Then nothing is
        started any more."""
        with ExitStack() as locked:
            for control in self:
                locked.enter_context(control.lock)
            states = [control.state for control in self]
            if not all(state.is_over for state in states):
                return False
            if RunState.STOPPED in states:
                return False
            self.close()
            return True

    def close(self) -> list[Run]:
        """Nothing is started from here on. Returns the last run of each."""
        for control in self:
            control.close()
        return [control.run for control in self]
