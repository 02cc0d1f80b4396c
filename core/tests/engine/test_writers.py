"""What becomes of an epoch whose workers fail: which errors are restarts', and which are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.errors import raises

from onefold.core import waiting
from onefold.core.contract import EpochRecord, EpochState, Generation
from onefold.core.errors import DataLoss, InDoubt, OnefoldError, OutOfResources, Retriable, Terminal, WorkLost
from onefold.core.positions import Positions, Range
from onefold.core.protocol import patience as patience_module
from onefold.core.protocol.effects import Decide, Effect, Pause, Protocol, RunWriters, Verify
from onefold.core.protocol.patience import Patience
from onefold.core.restart import Restart
from onefold.engine.driver.restarts import NeedsStart, Tracker, WorkerFailed
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers, _joined
from onefold.engine.workers.messages import Done, Ready
from onefold.flow.time.clocks import ClockStatus

SPAN = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 9}))
MINE = Generation("shop", 1, "mine")
RECORD = EpochRecord("shop", 1, 1, EpochState.OPEN, SPAN, 0, "shop", 1, "job")
DOWN = [
    Retriable("kafka-unreachable", "no broker answers"),
    OutOfResources("hbase-busy", "no region answers"),
    InDoubt("commit-unanswered", "the connection broke"),
]


class Failing:
    """Workers that fail each time they are launched."""

    def __init__(self, error: OnefoldError | None) -> None:
        self.error, self.launches, self.is_up = error, list[bool](), False
        self.worked_s = 0.0
        self.timer_ms: int | None = None
        self.told = list[tuple[int, int]]()

    def launch(self, at: ResumePoint, guarded: bool) -> None:
        del at
        assert not self.is_up
        self.launches.append(guarded)
        self.is_up = True

    def begin(self, *_: Any) -> int:
        return 1

    def collect(self, run: int) -> Any:
        del run
        if self.error is not None:
            raise self.error
        return [Done(1, (), {}, self.timer_ms)]

    def look(self) -> Ready:
        if self.error is not None:
            raise self.error
        return Ready(self.timer_ms)

    def completed(self, epoch: int, timestamp_ms: int) -> None:
        assert self.is_up
        self.told.append((epoch, timestamp_ms))

    def end(self) -> None:
        self.is_up = False


def writers(
    workers: Failing, attempts: int, progressed: Callable[[float], None] = lambda _for_s: None, nodes: Any = ()
) -> Writers:
    plan: Any = SimpleNamespace(chains=(), graph=SimpleNamespace(flow="shop", nodes=nodes))
    planners: Any = SimpleNamespace(splits=lambda _: {})
    tracker = Tracker(Restart(delay_s=1e-9, attempts=attempts) if attempts else Restart(strategy="none"))
    at, fleet = ResumePoint(SPAN.start), cast(Any, workers)
    return Writers(plan, fleet, planners, tracker, at, workers.launch, lambda _: None, progressed)


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


@pytest.mark.parametrize(
    ("kind", "code", "guarded"),
    [
        (WorkerFailed, "worker-lost", True),
        (WorkerFailed, "worker-failed", False),
        (Terminal, "operator-failed", False),
        (Retriable, "parser-died", False),
        (Retriable, "parser-timeout", False),
        (WorkLost, "stage-emptied", False),
    ],
)
def test_workers_that_fail_start_again_as_often_as_restarts_allows(
    kind: type[OnefoldError], code: str, guarded: bool
) -> None:
    workers = Failing(kind(code, "it has ended"))
    run = writers(workers, attempts=2)
    for _ in range(2):
        with pytest.raises(WorkerFailed):
            run(RECORD)
    with raises(Terminal, "restarts-exhausted"):
        run(RECORD)
    assert workers.launches == [False, guarded, guarded]
    assert not workers.is_up
    gave_up = run._tracker.gave_up
    assert gave_up is not None and (gave_up.epoch, gave_up.why) == (RECORD.epoch, f"it has ended ({code})")
    assert (run._tracker.given_up, run._tracker.restarts) == (3, 2), "the third was the last"


def test_a_record_that_may_have_ended_a_worker_is_read_with_care_also_after_a_server_was_down() -> None:
    workers = Failing(WorkerFailed("worker-lost", "it has ended"))
    run = writers(workers, attempts=2)
    died = Retriable("parser-died", "it was ended by SIGKILL")
    for error in (workers.error, DOWN[0], died):
        workers.error = error
        with pytest.raises(Retriable):
            run(RECORD)
    workers.error = None
    run(RECORD)
    assert workers.launches == [False, True, True, True]


@pytest.mark.parametrize("code", ["table-altered", "topic-disappeared"])
def test_a_sink_that_is_not_as_it_was_opened_needs_a_start_which_opens_it_anew(code: str) -> None:
    run = writers(Failing(Retriable(code, "it was another one")), attempts=0)
    with raises(NeedsStart, code) as raised:
        run(RECORD)
    assert not isinstance(raised.value, Retriable), "the protocol would run the epoch again"


def test_the_timers_that_are_due_are_those_restored_until_an_epoch_says_which_are_left() -> None:
    workers = Failing(None)
    run = writers(workers, attempts=0)
    run.launch()
    for restored_ms in (None, 5):
        workers.timer_ms = restored_ms
        run.look()
        assert run.timer_ms == restored_ms
    workers.timer_ms = 9
    run(RECORD)
    workers.timer_ms = 5
    run.look()
    assert run.timer_ms == 9


def test_event_time_is_that_of_the_worker_that_is_furthest_behind() -> None:
    found = [{"t": ClockStatus(us, late=late)} for us, late in ((9, 1), (5, 2), (7, 0))]
    assert _joined(found) == {"t": ClockStatus(5, late=3)}
    assert _joined([*found, {"t": ClockStatus(None)}])["t"].watermark_us is None


@pytest.mark.parametrize("error", [WorkerFailed("worker-lost", "it has ended"), DOWN[0]], ids=lambda error: error.code)
def test_a_worker_that_fails_while_there_is_nothing_to_read_makes_an_epoch_due_that_starts_it_again(
    error: OnefoldError,
) -> None:
    workers = Failing(None)
    run = writers(workers, attempts=1)
    run.launch()
    workers.error = error
    run.look()
    assert run.timer_ms == 0
    assert not workers.is_up
    workers.error, workers.timer_ms = None, 9
    run(RECORD)
    assert (len(workers.launches), run.timer_ms) == (2, 9)


def test_workers_that_cannot_restore_end_a_flow_that_has_nothing_to_read() -> None:
    run = writers(Failing(DataLoss("state-file-missing", "it is gone")), attempts=9)
    run.launch()
    with raises(DataLoss, "state-file-missing"):
        run.look()


def epochs(at: Effect) -> Protocol[int]:
    """Runs the writers again after each of these errors, as the protocol does."""
    runs = 0
    while True:
        yield RunWriters(RECORD)
        runs += 1
        try:
            yield at
        except Retriable:
            continue
        return runs


def drive(run: Writers, protocol: Protocol[int], errors: Sequence[OnefoldError]) -> int:
    """`errors` are what its second kind of effect answers with."""
    left, observed = [*errors], run.observing(protocol)
    try:
        effect = next(observed)
        while True:
            try:
                if isinstance(effect, RunWriters):
                    run(effect.record)
                elif left:
                    raise left.pop(0)
            except Retriable as error:
                effect = observed.throw(error)
            else:
                effect = observed.send(None)
    except StopIteration as stop:
        result: int = stop.value
        return result


def test_work_that_is_lost_before_its_decision_each_time_is_prepared_as_often_as_restarts_allows() -> None:
    lost = WorkLost("transaction-about-to-expire", "it has 2 s left")
    assert drive(writers(Failing(None), 2), epochs(at=Verify("rows", ())), [lost] * 2) == 3
    with raises(Terminal, "restarts-exhausted"):
        drive(writers(Failing(None), 2), epochs(at=Verify("rows", ())), [lost] * 3)
    down = Retriable("postgres-unreachable", "no answer")
    assert drive(writers(Failing(None), 0), epochs(at=Verify("rows", ())), [down] * 3) == 4, "no work was lost"


def test_a_decision_that_no_patience_brought_about_needs_a_start_before_it_is_prepared_again() -> None:
    locked = Retriable("lock-timeout", "waited for a lock")
    with raises(NeedsStart, "lock-timeout"):
        drive(writers(Failing(None), 2), epochs(at=Pause(1, Decide(MINE, RECORD, ()), locked)), [locked])


@pytest.mark.parametrize(("worked_s", "tries_min", "tries_max"), [(100.0, 20, 60), (0.0, 3, 3)], ids=["work", "hang"])
def test_the_time_in_which_workers_come_forward_is_no_wait(
    monkeypatch: pytest.MonkeyPatch, worked_s: float, tries_min: int, tries_max: int
) -> None:
    """Each try takes 100 s, of a long epoch or of a request without an answer."""
    now_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda for_s: now_s.append(now_s.pop() + for_s))
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(patience_module, "time", clock)
    patience, workers = Patience(120.0), Failing(DOWN[0])
    run = writers(workers, 0, patience.progressed)
    workers.worked_s = worked_s
    tries, waited = 0, True
    while waited:
        tries += 1
        now_s[0] += 100.0
        with pytest.raises(OutOfResources) as failed:
            run(RECORD)
        try:
            patience(Pause(tries, RunWriters(RECORD), failed.value), now_s[0])
        except OutOfResources:
            waited = False
    assert tries_min <= tries <= tries_max


@pytest.mark.parametrize("queryable", [True, False])
def test_workers_that_can_be_asked_hear_that_an_epoch_is_complete_and_others_do_not(queryable: bool) -> None:
    workers = Failing(None)
    run = writers(workers, attempts=0, nodes=(SimpleNamespace(queryable=queryable, keeps_event_time=False),))
    run(RECORD)
    assert workers.told == []
    run.decided(ResumePoint.after(RECORD))
    assert workers.told == ([(RECORD.epoch, RECORD.timestamp_ms)] if queryable else [])
