"""What becomes of an epoch whose workers fail: which errors are restarts', and which are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from onefold.core.contract import EpochRecord, EpochState
from onefold.core.errors import InDoubt, OnefoldError, OutOfResources, Retriable, Terminal
from onefold.core.positions import Positions, Range
from onefold.engine.driver.restarts import FixedDelay, Tracker, WorkerFailed
from onefold.engine.driver.standing import Standing
from onefold.engine.driver.writers import Writers

SPAN = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 9}))
RECORD = EpochRecord("shop", 1, 1, EpochState.OPEN, SPAN, 0, "shop", 1, "job")
DOWN = [
    Retriable("kafka-unreachable", "no broker answers"),
    OutOfResources("hbase-busy", "no region answers"),
    InDoubt("commit-unanswered", "the connection broke"),
]


class Failing:
    """Workers that fail each time they are launched."""

    def __init__(self, error: OnefoldError) -> None:
        self.error, self.launches, self.is_up = error, list[bool](), False

    def launch(self, at: Standing, guarded: bool) -> None:
        del at
        assert not self.is_up
        self.launches.append(guarded)
        self.is_up = True

    def begin(self, *_: Any) -> int:
        return 1

    def collect(self, run: int) -> Any:
        del run
        raise self.error

    def end(self) -> None:
        self.is_up = False


def writers(workers: Failing, attempts: int) -> Writers:
    plan: Any = SimpleNamespace(chains=())
    planners: Any = SimpleNamespace(splits=lambda _: {})
    tracker = Tracker(FixedDelay(attempts, 0.0))
    return Writers(plan, cast(Any, workers), planners, tracker, Standing(SPAN.start), workers.launch, lambda _: None)


@pytest.mark.parametrize("error", DOWN, ids=lambda error: error.code)
def test_a_server_that_is_down_is_waited_for_and_is_no_restart(error: OnefoldError) -> None:
    workers = Failing(error)
    run = writers(workers, attempts=0)
    for _ in range(5):
        with pytest.raises(OutOfResources) as raised:  # which the protocol waits for
            run(RECORD)
        assert (raised.value.code, raised.value.message) == (error.code, error.message)
        assert not workers.is_up
    assert workers.launches == [False] * 5


@pytest.mark.parametrize(("code", "guarded"), [("worker-lost", True), ("operator-failed", False)])
def test_workers_that_fail_start_again_as_often_as_restarts_allows(code: str, guarded: bool) -> None:
    workers = Failing(WorkerFailed(code, "it has ended"))
    run = writers(workers, attempts=2)
    for _ in range(2):
        with pytest.raises(WorkerFailed):
            run(RECORD)
    with pytest.raises(Terminal, match=r"it has ended.*\[restarts-exhausted\]"):
        run(RECORD)
    assert workers.launches == [False, guarded, guarded]
    assert not workers.is_up


def test_a_record_that_may_have_ended_a_worker_is_read_with_care_also_after_a_server_was_down() -> None:
    workers = Failing(WorkerFailed("worker-lost", "it has ended"))
    run = writers(workers, attempts=2)
    for error in (workers.error, DOWN[0], workers.error):
        workers.error = error
        with pytest.raises(Retriable):
            run(RECORD)
    assert workers.launches == [False, True, True]
