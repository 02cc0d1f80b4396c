"""How pipelines of one process end: fenced, stopped by a signal, failed, or started again. The queries are stubs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from harness.daemon_stubs import DOWN, NEVER, Query, hosted, run_of

from onefold.core import Fenced, OnefoldError, Retriable, Terminal
from onefold.daemon import service
from onefold.daemon.control import Controls
from onefold.daemon.pipeline_run import Run, RunState
from onefold.daemon.service import StopSignals, serve, stop_signals
from onefold.pipeline import Restart


def ended(run: Run) -> Run:
    run.start()
    assert run.join(10)
    return run


def controls_of(*runs: Run) -> Controls:
    """Their first runs are these."""
    controls = Controls([run.pipeline for run in runs], hosted)
    for control, run in zip(controls, runs, strict=True):
        control.run = run
    return controls


def served(*runs: Run, after_s: float | None = None, kill: Callable[[], None] = lambda: None) -> int:
    """The process's exit code; asked to stop after a while."""
    timer = threading.Timer(after_s or 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with stop_signals(kill) as asked:
        if after_s is not None:
            timer.start()
        try:
            return serve(controls_of(*runs), asked)
        finally:
            timer.cancel()


class Ended(BaseException):
    pass


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(service.os, "_exit", end)
    return codes


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_that_was_taken_over_says_so_whatever_the_others_end_with(order: Sequence[int]) -> None:
    runs = [
        run_of(Query(DOWN), NEVER, name="a"),
        run_of(Query(Fenced("taken-over", "another process runs it")), name="b"),
    ]
    assert served(*(runs[at] for at in order)) == Fenced.exit_code
    assert (runs[0].state, runs[1].state) == (RunState.FAILED, RunState.FENCED)


def test_a_pipeline_that_cannot_start_has_not_been_healthy_however_long_it_waited() -> None:
    class Slow(Query):
        def begin(self) -> None:
            time.sleep(0.05)
            raise DOWN

    restart = Restart(strategy="fixed_delay", delay_s=0.01, attempts=2, healthy_s=0.02)
    run = ended(run_of(query := Slow(), restart))
    assert (run.state, query.starts) == (RunState.FAILED, 3)


def test_one_that_ran_well_between_its_failures_is_started_on() -> None:
    class Well(Query):
        def wait(self) -> None:
            time.sleep(0.05 if self.raises else 0)
            super().wait()

    query = Well(*[DOWN] * 4, Terminal("test", "no more"))
    run = ended(run_of(query, Restart(strategy="fixed_delay", delay_s=0.01, attempts=1, healthy_s=0.02)))
    assert (query.starts, run.error and run.error.code) == (5, "test")


def test_one_whose_query_ends_by_itself_has_finished_then() -> None:
    query = Query()
    query.over.set()
    assert served(run := run_of(query)) == 0
    assert (run.state, query.starts) == (RunState.FINISHED, 1)


def test_one_that_is_stopped_while_it_waits_to_be_started_again_ends_with_its_failures_code() -> None:
    query = Query(DOWN)
    run = run_of(query, Restart(delay_s=60))
    assert served(run, after_s=0.3) == DOWN.exit_code
    assert (run.state, query.starts) == (RunState.STOPPED, 1)


def test_one_that_fails_while_it_is_stopped_has_stopped_if_that_may_pass() -> None:
    class Away(Query):
        def wait(self) -> None:
            assert self.over.wait(60)
            super().wait()

    for error, state in ((DOWN, RunState.STOPPED), (Terminal("test", "wrong"), RunState.FAILED)):
        run = run_of(Away(error), Restart(delay_s=60))
        run.start()
        assert run.stop(10) and (run.state, run.error) == (state, error)


def test_nothing_changes_the_state_of_one_that_is_over() -> None:
    run = ended(run_of(Query(Terminal("test", "wrong")), NEVER))
    run.pause()
    run.resume()
    run.stop(1)
    assert run.state is RunState.FAILED


def test_a_pause_that_comes_while_it_fails_does_not_hide_that() -> None:
    class Slow(Query):
        def pause(self) -> None:
            super().pause()
            self.over.set()
            assert run.join(10)

    query = Slow()
    run = run_of(query)
    run.start()
    while run.state is not RunState.RUNNING:
        time.sleep(0.001)
    run.pause()
    assert run.state is RunState.FINISHED


def test_a_stop_that_takes_too_long_kills_what_runs_and_ends_the_process(exits: list[int]) -> None:
    class Busy(Query):
        def drain(self) -> None:
            pass

    killed: list[bool] = []
    run = run_of(query := Busy(), stop_within_s=0.2)
    with pytest.raises(Ended):
        served(run, after_s=0.3, kill=lambda: killed.append(True))
    assert (exits, killed) == ([75], [True])
    query.over.set()
    assert run.join(10)


@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "a-little-later"])
def test_a_host_that_got_the_same_signal_has_ended_well(is_late: bool) -> None:
    """systemd sends SIGTERM to every process of a service."""
    signalled = Retriable("host-stopped", "asked to end, by a signal")

    class Signalled(Query):
        def wait(self) -> None:
            if not is_late:
                super().wait()
            raise signalled

    run = run_of(Signalled(), Restart(delay_s=60))
    assert served(run, after_s=0.3) == 0
    assert (run.state, run.error) == (RunState.STOPPED, None)


def test_a_signal_that_comes_before_the_start_is_obeyed_and_nothing_is_started() -> None:
    query = Query()
    with stop_signals(lambda: None) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert serve(controls_of(run_of(query)), asked) == 0
    assert query.starts == 0


def test_a_second_signal_ends_the_process_at_once(exits: list[int]) -> None:
    killed: list[bool] = []
    with stop_signals(lambda: killed.append(True)) as asked:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (asked.by, exits, killed) == ([signal.SIGINT], [75], [True])


def test_a_handler_takes_no_lock_that_the_interrupted_thread_may_hold() -> None:
    assert not [value for value in vars(StopSignals(print)).values() if hasattr(value, "acquire")]


def test_an_address_of_systemds_that_does_not_answer_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("/nowhere/at/all.sock", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert served(run_of(Query()), after_s=0.5) == 0
        assert "systemd was not told READY=1" in caplog.text
        caplog.clear()


_FULL = """
import logging, os, sys
os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(4096))
except BlockingIOError:
    os.set_blocking(2, True)
logging.basicConfig()
"""


@pytest.mark.parametrize(
    "end",
    [
        "from onefold.daemon.service import StopSignals\nStopSignals(lambda: None).end_at_once('late')",
        "from onefold.daemon.hosting.process import _exit\n_exit('late')",
    ],
    ids=["daemon", "host"],
)
def test_an_end_at_once_waits_for_no_reader_of_its_log(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _FULL + end], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(20) == 75
        finally:
            process.kill()


def test_an_error_that_is_none_of_onefolds_is_the_end_too() -> None:
    run = ended(run_of(Query(ValueError("bug"))))
    assert run.state is RunState.FAILED and run.error is not None and run.error.code == "unexpected-error"


def test_errors_that_are_onefolds_stay_what_they_are() -> None:
    for error in (Fenced("a", "b"), Terminal("c", "d")):
        found: OnefoldError | None = ended(run_of(Query(error))).error
        assert found is error
