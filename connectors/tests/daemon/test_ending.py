"""How pipelines of one process end: fenced, stopped by a signal, failed, or started again. The queries are stubs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from harness.daemon_stubs import DOWN, NEVER, Query, run_of
from py4j.protocol import Py4JNetworkError

from onefold.core import Fenced, InDoubt, OnefoldError, Retriable, Terminal
from onefold.core.errors import InternalError
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
    by_name = {run.name: run for run in runs}
    return Controls([run.pipeline for run in runs], lambda pipeline, _: by_name[pipeline.name])


def served(*runs: Run, after_s: float | None = None) -> int:
    """The process's exit code; asked to stop after a while."""
    timer = threading.Timer(after_s or 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with stop_signals() as asked:
        if after_s is not None:
            timer.start()
        try:
            return serve(controls_of(*runs), None, asked)  # type: ignore[arg-type]
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
    def wait() -> None:
        time.sleep(0.05)
        raise DOWN

    restart = Restart(strategy="fixed_delay", delay_s=0.01, attempts=2, healthy_s=0.02)
    query = Query()
    run = ended(run_of(query, restart, wait))
    assert (run.state, query.starts) == (RunState.FAILED, 3)


def test_one_that_ran_well_between_its_failures_is_started_on() -> None:
    class Well(Query):
        def await_termination(self, _query: object) -> None:
            time.sleep(0.05 if self.raises else 0)
            super().await_termination(_query)

    query = Well(*[DOWN] * 4, Terminal("test", "no more"))
    run = ended(run_of(query, Restart(strategy="fixed_delay", delay_s=0.01, attempts=1, healthy_s=0.02)))
    assert (query.starts, run.error and run.error.code) == (5, "test")


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("f() takes 0"), AssertionError("bug"), OverflowError()])
def test_an_error_of_pythons_own_is_not_tried_again_and_its_traceback_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    run = ended(run_of(Query(error)))
    assert isinstance(run.error, InternalError) and run.error.code == "unexpected-error"
    assert type(error).__name__ in run.error.message
    assert (run.state, run.restarts) == (RunState.FAILED, 0)
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)


@pytest.mark.parametrize("error", [DOWN, InDoubt("test", "no answer"), Py4JNetworkError("gone")])
def test_where_sparks_context_is_stopped_the_process_ends_and_is_to_be_started_again(error: Exception) -> None:
    stopped = SimpleNamespace(_sc=SimpleNamespace(_jsc=None))
    query = Query(error)
    assert served(run_of(query, spark=stopped)) == Retriable.exit_code
    assert query.starts == 1


@pytest.mark.parametrize("error", [None, Terminal("query-stopped", "in the middle of epoch 3")])
def test_an_endless_query_that_something_else_has_stopped_is_started_again(error: Exception | None) -> None:
    class Stopped(Query):
        def await_termination(self, _query: object) -> None:
            if self.starts > 1:
                super().await_termination(_query)
            elif error is not None:
                raise error

    query = Stopped()
    run = run_of(query)
    assert served(run, after_s=0.5) == 0
    assert (query.starts, run.restarts, run.state) == (2, 1, RunState.STOPPED)
    query = Stopped()
    run = ended(run_of(query, NEVER))
    assert run.error is not None and (run.error.code, run.error.exit_code) == ("query-ended", 75)


def test_one_whose_query_ends_by_itself_has_finished_then() -> None:
    query = Query()
    query.over.set()
    assert served(run := run_of(query, ends=True)) == 0
    assert (run.state, query.starts) == (RunState.FINISHED, 1)


@pytest.mark.parametrize("ends", [False, True])
def test_an_error_while_it_is_closed_is_the_end(ends: bool) -> None:
    query = Query(closing=InternalError("test", "a check failed"))
    query.over.set()
    run = run_of(query, ends=ends)
    assert served(run, after_s=0.3) == InternalError.exit_code
    assert run.state is RunState.FAILED


def test_an_error_while_it_is_closed_does_not_hide_that_it_was_fenced() -> None:
    query = Query(Fenced("test", "taken over"), closing=InternalError("test", "a check failed"))
    assert served(run := run_of(query)) == Fenced.exit_code
    assert run.state is RunState.FENCED


def test_one_that_is_stopped_while_it_waits_to_be_started_again_ends_with_its_failures_code() -> None:
    query = Query(DOWN)
    run = run_of(query, Restart(delay_s=60))
    assert served(run, after_s=0.3) == DOWN.exit_code
    assert (run.state, query.starts) == (RunState.STOPPED, 1)


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
    run = run_of(query, ends=True)
    run.start()
    while run.state is not RunState.RUNNING:
        time.sleep(0.001)
    run.pause()
    assert run.state is RunState.FINISHED


@pytest.mark.parametrize("stop_within_s", [-5.0, float("nan"), float("inf"), 1e10, 0.2])
def test_a_stop_that_cannot_wait_or_waits_too_long_ends_the_process(exits: list[int], stop_within_s: float) -> None:
    class Busy(Query):
        def drain(self, _query: object, within_s: float) -> bool:
            time.sleep(within_s)
            return False

    run = run_of(query := Busy(), stop_within_s=stop_within_s)
    with pytest.raises(Ended):
        served(run, after_s=0.3)
    assert exits == [75]
    query.over.set()
    assert run.join(10)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_stop_that_fails_or_hangs_ends_the_process(
    exits: list[int], hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_GRACE_S", 0.1)
    go = threading.Event()

    class Gone(Query):
        def drain(self, _query: object, _within_s: float) -> bool:
            if hangs:
                go.wait(10)
            raise ConnectionRefusedError("the JVM is gone")

    run = run_of(query := Gone(), stop_within_s=0.2)
    with pytest.raises(Ended):
        served(run, after_s=0.3)
    assert exits == [75]
    query.over.set()
    go.set()
    assert run.join(10)


def test_a_stop_whose_jvm_got_the_same_signal_ends_as_the_jvms_end_says(caplog: pytest.LogCaptureFixture) -> None:
    gone = Retriable("jvm-gone", "Spark's JVM does not answer any more")

    class Gone(Query):
        def await_termination(self, _query: object) -> None:
            super().await_termination(_query)
            raise gone

        def drain(self, _query: object, _within_s: float) -> bool:
            self.over.set()
            raise gone

    assert served(run := run_of(Gone(), stop_within_s=60), after_s=0.3) == Retriable.exit_code
    assert run.error is gone and "stop_within_s" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_a_signal_that_comes_while_spark_starts_is_obeyed_and_nothing_is_started() -> None:
    query = Query()
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert serve(controls_of(run_of(query)), None, asked) == 0
    assert query.starts == 0


def test_a_second_signal_ends_the_process_at_once(exits: list[int]) -> None:
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (asked.by, exits) == ([signal.SIGINT], [75])


def test_a_handler_takes_no_lock_that_the_interrupted_thread_may_hold() -> None:
    assert [type(value) for value in vars(StopSignals()).values()] == [list]


def test_an_address_of_systemds_that_does_not_answer_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("/nowhere/at/all.sock", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert served(run_of(Query()), after_s=0.5) == 0
        assert "systemd was not told READY=1" in caplog.text
        caplog.clear()


def test_errors_that_are_onefolds_stay_what_they_are() -> None:
    for error in (Fenced("a", "b"), Terminal("c", "d")):
        found: OnefoldError | None = ended(run_of(Query(error))).error
        assert found is error
