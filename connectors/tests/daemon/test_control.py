"""What an operator may do with a pipeline, and when. The queries are stubs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.daemon_stubs import DOWN, NEVER, Query, hosted, pipeline_of
from harness.errors import raises

from onefold.core import Fenced, Retriable, Terminal
from onefold.daemon.control import Action, Control, Controls, NotNow
from onefold.daemon.hosting.messages import Totals
from onefold.daemon.pipeline_run import RunState
from onefold.daemon.service import serve, stop_signals
from onefold.pipeline import Restart


def until(is_so: Callable[[], bool], control: Control | None = None) -> None:
    for _ in range(12_000):
        if control is not None:
            control.look()
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")


def begun(pipeline: Any) -> Control:
    control = Control(pipeline, hosted)
    control.begin()
    until(lambda: control.state is not RunState.STARTING)
    return control


class Served:
    """`serve` in this thread, and what happens meanwhile in another."""

    def __init__(self, *pipelines: Any) -> None:
        self.controls = Controls(pipelines, hosted)
        self.failed: BaseException | None = None

    def __call__(self, meanwhile: Callable[[dict[str, Control]], None], ends: bool = True) -> int:
        """The exit code. With `ends` SIGTERM comes after `meanwhile`."""

        def do() -> None:
            try:
                meanwhile({control.name: control for control in self.controls})
            except BaseException as error:
                self.failed = error
            if ends or self.failed is not None:
                os.kill(os.getpid(), signal.SIGTERM)

        with stop_signals(lambda: None) as asked:
            thread = threading.Thread(target=do)
            thread.start()
            code = serve(self.controls, asked)
            thread.join(30)
        if self.failed is not None:
            raise self.failed
        return code


def test_one_that_runs_is_paused_resumed_stopped_and_started_again() -> None:
    control = begun(pipeline_of(Query))
    for action, state in (
        (Action.PAUSE, RunState.PAUSED),
        (Action.RESUME, RunState.RUNNING),
        (Action.STOP, RunState.STOPPED),
        (Action.RESTART, RunState.RUNNING),
        (Action.RESTART, RunState.RUNNING),
        (Action.STOP, RunState.STOPPED),
    ):
        control.act(action)
        until(lambda state=state: control.state is state, control)  # type: ignore[misc]
    assert len(control.pipeline.queries) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "state", "refused", "code"),
    [
        (Terminal("test", "wrong"), RunState.FAILED, Action.PAUSE, "action-not-allowed"),
        (Terminal("test", "wrong"), RunState.FAILED, Action.STOP, "action-not-allowed"),
        (Fenced("test", "taken over"), RunState.FENCED, Action.RESTART, "pipeline-fenced"),
    ],
)
def test_what_its_state_does_not_allow_is_refused_and_changes_nothing(
    error: Exception, state: RunState, refused: Action, code: str
) -> None:
    control = begun(pipeline_of(lambda: Query(error), NEVER))
    until(lambda: control.state is state)
    assert refused not in control.actions
    with pytest.raises(NotNow) as raised:
        control.act(refused)
    assert raised.value.code == code
    assert control.state is state


def test_a_stop_before_it_is_started_is_obeyed_and_a_restart_takes_it_back() -> None:
    class Drained(Query):
        drains = 0

        def drain(self) -> None:
            self.drains += 1
            super().drain()

    control = Control(pipeline_of(Drained), hosted)
    assert (control.state, control.actions) == (RunState.STARTING, [Action.STOP])
    with raises(NotNow, "action-not-allowed"):
        control.act(Action.PAUSE)
    control.act(Action.STOP)
    assert control.state is RunState.STOPPING
    time.sleep(0.3)
    control.begin()
    until(lambda: control.state is RunState.STOPPED, control)
    (query,) = control.pipeline.queries  # type: ignore[attr-defined]
    assert (query.starts, query.drains) == (0, 1), "it is asked once, and waited for"
    control.act(Action.RESTART)
    until(lambda: control.state is RunState.RUNNING, control)
    early = Control(pipeline_of(Query), hosted)
    early.act(Action.STOP)
    early.act(Action.RESTART)
    early.begin()
    until(lambda: early.state is RunState.RUNNING, early)
    early.act(Action.STOP)
    until(lambda: early.state is RunState.STOPPED, early)


def test_one_that_was_paused_is_paused_when_it_starts_again() -> None:
    failing = threading.Event()

    class Failing(Query):
        def wait(self) -> None:
            if self.starts == 1:
                assert failing.wait(10)
                raise DOWN
            super().wait()

    control = begun(pipeline_of(query := Failing()))
    control.act(Action.PAUSE)
    failing.set()
    until(lambda: control.totals.restarts == 1 and control.state is RunState.PAUSED)
    assert query.is_paused
    control.act(Action.STOP)
    until(lambda: control.state is RunState.STOPPED)


def test_a_stop_takes_back_a_restart_that_waits_for_the_epoch() -> None:
    go = threading.Event()

    class Busy(Query):
        def drain(self) -> None:
            threading.Thread(target=lambda: go.wait(30) and super(Busy, self).drain()).start()

    control = begun(pipeline_of(Busy))
    control.act(Action.RESTART)
    assert control.state is RunState.STOPPING
    control.act(Action.STOP)
    go.set()
    until(lambda: control.state is RunState.STOPPED, control)
    assert len(control.pipeline.queries) == 1  # type: ignore[attr-defined]


def test_a_stop_that_takes_long_is_asked_for_until_the_pipeline_is_at_rest(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Query):
        drains = 0

        def drain(self) -> None:
            self.drains += 1
            if self.drains == 2:
                super().drain()

    control = begun(pipeline_of(Stubborn, stop_within_s=0.1))
    control.act(Action.STOP)
    until(lambda: control.state is RunState.STOPPED, control)
    assert "is not at rest" in caplog.text


def test_one_that_is_fenced_while_a_restart_waits_stays_fenced() -> None:
    class Overtaken(Query):
        def wait(self) -> None:
            assert self.over.wait(10)
            raise Fenced("test", "taken over")

    control = begun(pipeline_of(Overtaken))
    control.act(Action.RESTART)
    until(lambda: control.state is RunState.FENCED, control)
    control.look()
    assert len(control.pipeline.queries) == 1 and control.actions == []  # type: ignore[attr-defined]


def test_one_that_waits_to_be_started_again_is_started_at_once() -> None:
    tries: list[int] = []

    def query() -> Query:
        tries.append(1)
        return Query(*([DOWN] if len(tries) == 1 else []))

    control = begun(pipeline_of(query, Restart(delay_s=60)))
    until(lambda: control.state is RunState.WAITING)
    control.act(Action.RESTART)
    until(lambda: control.state is RunState.RUNNING, control)
    assert control.run.error is None


def test_counts_go_on_over_a_restart() -> None:
    tries: list[int] = []

    def query() -> Query:
        tries.append(1)
        made = Query(*([DOWN] if len(tries) == 1 else []))
        made.totals = Totals(dead_letters=3)
        return made

    control = begun(pipeline_of(query))
    until(lambda: control.state is RunState.RUNNING and control.totals.restarts == 1)
    control.act(Action.RESTART)
    until(lambda: len(tries) == 2 and control.state is RunState.RUNNING, control)
    assert (control.totals.restarts, control.totals.dead_letters) == (1, 6)


def test_no_count_is_seen_twice_while_a_pipeline_is_started_again() -> None:
    seen: list[int] = []

    def query() -> Query:
        seen.append(0 if control is None else control.totals.dead_letters)
        made = Query()
        made.totals = Totals(dead_letters=3)
        return made

    control: Control | None = None
    control = Control(pipeline_of(query), hosted)
    control.begin()
    until(lambda: control.state is RunState.RUNNING)
    control.act(Action.RESTART)
    until(lambda: len(seen) == 2, control)
    assert seen == [0, 3], "what somebody sees who asks just then"


def test_one_that_its_operator_stopped_while_it_waited_ends_the_process_with_its_failures_code() -> None:
    def meanwhile(controls: dict[str, Control]) -> None:
        control = controls["orders"]
        until(lambda: control.state is RunState.WAITING)
        control.act(Action.STOP)
        until(lambda: control.state is RunState.STOPPED)

    later = Restart(strategy="fixed_delay", delay_s=30)
    assert Served(pipeline_of(lambda: Query(DOWN), later))(meanwhile) == Retriable.exit_code


def test_the_process_stays_with_a_pipeline_that_its_operator_stopped_until_a_signal_comes() -> None:
    def meanwhile(controls: dict[str, Control]) -> None:
        control = controls["orders"]
        until(lambda: control.state is RunState.RUNNING)
        control.act(Action.STOP)
        until(lambda: control.state is RunState.STOPPED)
        time.sleep(0.5)
        assert control.actions == [Action.RESTART], "the process is still there"
        control.act(Action.RESTART)
        until(lambda: control.state is RunState.RUNNING)

    assert Served(pipeline_of(Query))(meanwhile) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(Fenced("test", "taken over"), 73), (Terminal("test", "wrong"), 70), (Retriable("jvm-gone", "gone"), 75)],
)
def test_a_failure_ends_the_process_with_its_code_as_without_an_api(error: Exception, code: int) -> None:
    served = Served(pipeline_of(lambda: Query(error), NEVER))
    assert served(lambda _: None, ends=False) == code
    (control,) = served.controls
    with raises(NotNow, "daemon-ending"):
        control.act(Action.RESTART)


def test_one_that_was_stopped_keeps_the_process_when_another_fails() -> None:
    failing = threading.Event()

    class Later(Query):
        def wait(self) -> None:
            assert failing.wait(10)
            raise Terminal("test", "wrong")

    def meanwhile(controls: dict[str, Control]) -> None:
        until(lambda: all(control.state is RunState.RUNNING for control in controls.values()))
        controls["a"].act(Action.STOP)
        until(lambda: controls["a"].state is RunState.STOPPED)
        failing.set()
        until(lambda: controls["b"].state is RunState.FAILED)
        time.sleep(0.5)
        assert controls["b"].actions == [Action.RESTART]

    assert Served(pipeline_of(Query, name="a"), pipeline_of(Later, NEVER, name="b"))(meanwhile) == 70


def test_a_restart_when_all_are_over_keeps_the_process_or_is_refused_and_nothing_waits_for_it() -> None:
    def done() -> Query:
        query = Query()
        query.over.set()
        return query

    controls = Controls([pipeline_of(done)], hosted)
    (control,) = controls
    control.begin()
    until(lambda: control.state is RunState.FINISHED)
    control.act(Action.RESTART)
    until(lambda: len(control.pipeline.queries) == 2 and control.state is RunState.FINISHED, control)  # type: ignore[attr-defined]
    assert controls.end_if_over()
    with pytest.raises(NotNow) as raised:
        control.act(Action.RESTART)
    assert raised.value.code == "daemon-ending"
    control.look()
    assert all(run.join(10) for run in controls.close())


def test_a_restart_that_is_asked_for_keeps_the_process() -> None:
    control = begun(pipeline_of(lambda: Query(Terminal("test", "wrong")), NEVER))
    until(lambda: control.state is RunState.FAILED)
    controls = Controls([], hosted)
    controls._all = {"orders": control}
    control._starts_again = True  # as between the request and the look that starts it
    assert control.state is RunState.STARTING and not controls.end_if_over()
