"""What a flow's driver does between epochs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.errors import raises

from onefold.core.checks import present
from onefold.core.errors import Fenced, InDoubt, OutOfResources, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.protocol.patience import Patience
from onefold.core.restart import Restart
from onefold.core.waiting import hold
from onefold.engine.dataflow.alignment import Alignment
from onefold.engine.driver import flow_run
from onefold.engine.driver.flow_run import FlowRun, RunSettings
from onefold.engine.driver.opening import _draining
from onefold.engine.driver.restarts import NeedsStart
from onefold.engine.driver.resume_point import ResumePoint
from onefold.flow.graph.nodes import Graph
from onefold.flow.time.clocks import ClockStatus

RESTS = 3
WAIT_S = 20.0
HOLDS = SimpleNamespace(let_go=lambda: None, is_asked=False, is_at_rest=True, is_waited_for=False, times=0)
SETTINGS = RunSettings(1, "memory", 0.0, Restart(), None)
NO_MARK = cast(Any, None)


class Resting:
    """Planners that have nothing new a few times, and are done then."""

    rests = 0

    def end(self, at: Positions) -> Positions:
        return at

    def is_done(self, at: Positions) -> bool:
        del at
        self.rests += 1
        return self.rests > RESTS


@pytest.mark.parametrize(("every_s", "sweeps"), [(0.0, RESTS + 1), (60.0, 0)])
def test_a_flow_without_new_records_sweeps_on_its_timer(
    monkeypatch: pytest.MonkeyPatch, every_s: float, sweeps: int
) -> None:
    monkeypatch.setattr(flow_run, "SWEEP_EVERY_S", every_s)
    driven: list[str] = []
    session = SimpleNamespace(
        drive=driven.append,
        lifecycle=SimpleNamespace(sweep=lambda: "sweep"),
        patience=SimpleNamespace(retry=lambda ask, _: ask()),
        taken_over=lambda: None,
        holds=HOLDS,
    )
    rest(session)
    assert driven == ["sweep"] * sweeps


def rest(session: Any) -> None:
    """Runs a flow without new records."""
    plan: Any = SimpleNamespace(graph=Graph("shop", ()))
    flow = FlowRun(plan, session, cast(Any, SimpleNamespace()), SETTINGS, None, NO_MARK)
    writers: Any = SimpleNamespace(
        ahead=None, timer_ms=None, clocks={}, has_open_clocks=False, waits_to_know=False, look=lambda: None
    )
    flow._epochs(cast(Any, Resting()), writers, ResumePoint(Positions.of({"t/0": 1})), "job")


def test_a_flow_without_new_records_notices_with_its_sweep_that_another_process_took_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_run, "SWEEP_EVERY_S", 0.0)
    session = SimpleNamespace(
        drive=lambda _: None,
        lifecycle=SimpleNamespace(sweep=lambda: None),
        taken_over=lambda: Fenced("taken-over", "another process has taken over"),
        holds=HOLDS,
    )
    with pytest.raises(Fenced):
        rest(session)


@pytest.mark.parametrize("fenced", [Fenced("taken-over", "another process has taken over"), None])
def test_a_flow_that_has_come_to_its_end_is_fenced_where_another_process_took_over_meanwhile(
    monkeypatch: pytest.MonkeyPatch, fenced: Fenced | None
) -> None:
    monkeypatch.setattr(FlowRun, "_live", lambda *_: None)
    session: Any = SimpleNamespace(name="shop", pin=None, taken_over=lambda: fenced)
    plan: Any = SimpleNamespace(graph=Graph("shop", ()))
    flow = FlowRun(plan, session, cast(Any, SimpleNamespace(stop=lambda: None)), SETTINGS, None, NO_MARK)
    with nullcontext() if fenced is None else pytest.raises(Fenced):
        assert flow.run().epochs == 0


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_flow_whose_sinks_must_be_opened_anew_starts_again_as_often_as_restarts_allows(
    monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    altered = [NeedsStart("table-altered", "column n is of another type")] * 2
    goes_on: list[bool] = []

    def live(_: FlowRun, has_started: bool) -> None:
        goes_on.append(has_started)
        if altered:
            raise altered.pop()

    monkeypatch.setattr(FlowRun, "_live", live)
    session: Any = SimpleNamespace(name="shop", pin=None, taken_over=lambda _=None: None)
    fleet: Any = SimpleNamespace(stop=lambda: None, end=lambda: None)
    plan: Any = SimpleNamespace(graph=Graph("shop", ()))
    settings = RunSettings(1, "memory", 0.0, Restart(delay_s=1e-9, attempts=attempts), None)
    flow = FlowRun(plan, session, fleet, settings, None, NO_MARK)
    with nullcontext() if attempts == 2 else raises(Retriable, "table-altered"):  # exit code 75
        flow.run()
    assert goes_on == [False, True, True][: attempts + 1]


@pytest.mark.parametrize("asked", ["in a wait for a server", "in a try", "before a restart", "before the first epoch"])
def test_a_flow_that_is_asked_to_end_waits_no_more_and_ends_with_the_error_that_it_waits_after(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    down = OutOfResources("kafka-unreachable", "no broker answers")
    session: Any = SimpleNamespace(
        name="shop", pin=None, taken_over=lambda _: None, patience=Patience(WAIT_S), holds=HOLDS
    )
    fleet: Any = SimpleNamespace(end=lambda: None, drain=lambda: None)
    plan: Any = SimpleNamespace(graph=Graph("shop", ()))
    flow = FlowRun(plan, session, fleet, RunSettings(1, "memory", 0.0, Restart(delay_s=WAIT_S), None), None, NO_MARK)

    def fail() -> None:
        if asked == "in a try":
            os.kill(os.getpid(), signal.SIGTERM)
        raise down

    def live(*_: Any) -> None:
        if asked == "before a restart":
            raise down.retyped(NeedsStart)
        session.patience.retry(fail, "asking")

    def resolve(*_: Any) -> dict[int, Any]:
        if asked == "before the first epoch":
            live()
        return {}

    monkeypatch.setattr(FlowRun, "_live", live)
    monkeypatch.setattr(FlowRun, "_resolved", resolve)
    began_s = time.monotonic()
    alarm = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with _draining(flow.drain):
        alarm.start()
        with raises(Retriable, "kafka-unreachable"):
            flow.run()
        alarm.join()
    assert time.monotonic() - began_s < WAIT_S / 2


def test_a_flow_that_is_asked_to_end_keeps_what_is_in_doubt_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(flow: FlowRun, _: bool) -> None:
        flow.drain()
        raise InDoubt("decision-unanswered", "it is not known whether it was decided")

    monkeypatch.setattr(FlowRun, "_live", live)
    session: Any = SimpleNamespace(
        name="shop", pin=None, taken_over=lambda _: None, patience=Patience(WAIT_S), holds=HOLDS
    )
    plan: Any = SimpleNamespace(graph=Graph("shop", ()))
    fleet: Any = SimpleNamespace(end=lambda: None, drain=lambda: None)
    flow = FlowRun(plan, session, fleet, SETTINGS, None, NO_MARK)
    with pytest.raises(InDoubt):
        flow.run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_flow_that_rests_when_it_is_asked_to_end_does_so_in_good_order(number: signal.Signals) -> None:
    session: Any = SimpleNamespace(patience=Patience(WAIT_S), holds=HOLDS)
    fleet: Any = SimpleNamespace(drain=lambda: None)
    flow = FlowRun(cast(Any, SimpleNamespace(graph=Graph("shop", ()))), session, fleet, SETTINGS, None, NO_MARK)
    before = signal.getsignal(number)
    with _draining(flow.drain):
        alarm = threading.Timer(0.1, os.kill, (os.getpid(), number))
        alarm.start()
        hold(0.3)
        alarm.join()
    assert flow._drains
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_does_what_it_did_before() -> None:
    asked: list[int] = []
    with _draining(lambda: asked.append(1)):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert asked == [1]


def test_ctrl_c_stays_ignored_where_it_is() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _draining(lambda: pytest.fail("nobody asked")):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("drains", "is_done"), [(True, False), (False, True)])
def test_what_is_in_flight_is_processed_by_an_aligned_epoch_before_the_flow_ends(drains: bool, is_done: bool) -> None:
    fleet: Any = SimpleNamespace(aligned=False, drain=lambda: None)
    flow = FlowRun(cast(Any, PLAN), session_at_rest(), fleet, SETTINGS, None, NO_MARK)
    ran: list[tuple[Range, bool]] = []

    def epoch(planners: Any, writers: Any, at: ResumePoint, span: Range, fingerprint: str) -> ResumePoint:
        del planners, writers, fingerprint
        ran.append((span, fleet.aligned))
        return replace(at, handles=())

    flow._epoch = epoch  # type: ignore[method-assign]
    flow._drains = drains
    at = ResumePoint(Positions.of({"t/0": 1}), 3, ("1/3-a.flight",))
    left: list[Positions] = []
    planners: Any = SimpleNamespace(end=lambda at: at, is_done=lambda _: is_done, leave=left.append)
    flow._epochs(planners, nothing_due(), at, "job")
    assert ran == [(Range(at.at, at.at), True)]
    begun = replace(at, until=Positions.of({"t/0": 7}))
    flow._drains = True
    flow._epochs(planners, nothing_due(), begun, "job")
    assert ran[1:] == [(Range(at.at, present(begun.until, "it was begun")), True)]
    assert left == [at.at] * drains, "who looks for no records takes no partition for silent"


@pytest.mark.parametrize(("kind", "runs"), [("aligned", False), ("at_least_once", True)])
def test_what_was_read_ahead_is_in_snapshots_that_are_not_aligned_and_comes_before_the_flow_ends(
    kind: str, runs: bool
) -> None:
    settings = replace(SETTINGS, alignment=Alignment(kind))
    flow = FlowRun(cast(Any, PLAN), session_at_rest(), cast(Any, SimpleNamespace(drain=list)), settings, None, NO_MARK)
    ran: list[Range] = []
    flow._epoch = lambda *of: ran.append(of[3])  # type: ignore[method-assign, assignment, func-returns-value]
    flow._drains = True
    at, writers = ResumePoint(Positions.of({"t/0": 1}), 3), nothing_due()
    writers.ahead = Range(at.at, Positions.of({"t/0": 9}))
    flow._epochs(cast(Any, SimpleNamespace(leave=lambda _: None)), writers, at, "job")
    assert ran == ([writers.ahead] if runs else [])


def test_while_there_is_nothing_to_read_what_is_in_flight_comes_with_an_epoch_of_its_own() -> None:
    fleet: Any = SimpleNamespace(aligned=False)
    flow = FlowRun(cast(Any, PLAN), session_at_rest(), fleet, SETTINGS, None, NO_MARK)
    at = ResumePoint(Positions.of({"t/0": 1}), 3, ("1/3-a.flight",))
    planners: Any = SimpleNamespace(end=lambda at: at, is_done=lambda _: False)
    assert flow._next(planners, nothing_due(), at) == Range(at.at, at.at) and not fleet.aligned
    assert planners.held == {}, "from here on all partitions are looked for again"
    writers = nothing_due()
    writers.clocks, planners.cut = {"totals": ClockStatus(None)}, lambda: {"t/0": 9}
    assert flow._next(planners, writers, at) is None, "what a limit keeps from being read is no silence"
    planners.is_done = lambda _: True
    assert flow._next(planners, nothing_due(), at) == Range(at.at, at.at) and fleet.aligned, "sources have ended"
    assert flow._next(planners, nothing_due(), replace(at, handles=("1/3-a",))) is None


def test_who_would_hold_the_flow_has_it_make_an_aligned_epoch_without_waiting_for_the_interval() -> None:
    session, fleet = session_at_rest(), cast(Any, SimpleNamespace(aligned=False))
    session.holds.is_asked = True
    settings = replace(SETTINGS, epoch_interval_s=WAIT_S)
    flow = FlowRun(cast(Any, PLAN), session, fleet, settings, None, NO_MARK)
    at = ResumePoint(Positions.of({"t/0": 1}), 3, ("1/3-a.flight",))
    planners: Any = SimpleNamespace(end=lambda at: at, is_done=lambda _: False)
    assert flow._next(planners, nothing_due(), at) == Range(at.at, at.at) and fleet.aligned

    began_s = time.monotonic()
    threading.Timer(0.1, lambda: setattr(session.holds, "is_waited_for", True)).start()
    flow._pace(began_s)
    assert 0.1 <= time.monotonic() - began_s < WAIT_S / 2


@pytest.mark.parametrize("ahead", [None, Range(Positions.of({"t/0": 1}), Positions.of({"t/0": 9}))])
def test_a_flow_that_is_paused_reads_nothing_more_for_who_would_hold_it(ahead: Range | None) -> None:
    session, fleet = session_at_rest(), cast(Any, SimpleNamespace(aligned=False))
    settings = replace(SETTINGS, alignment=Alignment("at_least_once"))
    flow = FlowRun(cast(Any, PLAN), session, fleet, settings, None, NO_MARK)
    ran: list[tuple[Range, bool, bool]] = []

    def epoch(planners: Any, writers: Any, at: ResumePoint, span: Range, fingerprint: str) -> ResumePoint:
        del planners, fingerprint
        ran.append((span, fleet.aligned, flow._drains))
        assert left == [at.at], "who looks for no records takes no partition for silent"
        session.holds.is_waited_for, writers.ahead = False, None
        threading.Timer(0.2, lambda: setattr(flow, "_drains", True)).start()
        return ResumePoint(span.end, at.epoch + 1)

    flow._epoch = epoch  # type: ignore[method-assign]
    flow.is_paused = True
    at, writers = ResumePoint(Positions.of({"t/0": 1}), 3, ("1/3-a.flight",)), nothing_due()
    writers.ahead, session.holds.is_asked = ahead, True
    threading.Timer(0.1, lambda: setattr(session.holds, "is_waited_for", True)).start()
    too_late = threading.Timer(WAIT_S, lambda: setattr(flow, "_drains", True))
    too_late.start()
    left: list[Positions] = []
    flow._epochs(cast(Any, SimpleNamespace(leave=left.append)), writers, at, "job")
    too_late.cancel()
    assert ran == [(ahead or Range(at.at, at.at), True, False)]


@pytest.mark.parametrize("nothing_more_for", [None, "_drains", "is_paused", "is_asked"])
def test_nothing_is_read_ahead_of_an_end_a_pause_or_a_hold(nothing_more_for: str | None) -> None:
    session = session_at_rest()
    flow = FlowRun(cast(Any, PLAN), session, cast(Any, SimpleNamespace()), SETTINGS, None, NO_MARK)
    if nothing_more_for is not None:
        setattr(session.holds if nothing_more_for == "is_asked" else flow, nothing_more_for, True)
    much, more = (Positions.of({"t/0": flow_run.AHEAD_RECORDS_MIN * n}) for n in (1, 2))
    ahead = flow._ahead(cast(Any, SimpleNamespace(end=lambda _: more)))
    assert ahead(Range(Positions.of({"t/0": 0}), much)) == (Range(much, more) if nothing_more_for is None else None)


def test_nobody_has_a_turn_between_an_epoch_and_what_is_known_of_it() -> None:
    session, at_rest = session_at_rest(), list[bool]()

    @contextmanager
    def turn() -> Iterator[None]:
        yield
        at_rest.append(session.holds.is_at_rest)

    where = Positions.of({"t/0": 1})
    record: Any = SimpleNamespace(range=Range(where, where), epoch=4, manifest=(), timestamp_ms=0)
    session.lock, session.names, session.write_through, session.name = turn(), ("rows",), (), "shop"
    session.check_counted = session.drive = lambda *_: SimpleNamespace(record=record)
    session.lifecycle = SimpleNamespace(run_epoch=lambda *_, **__: None)
    session.clock = SimpleNamespace(last=SimpleNamespace(with_prepare=lambda _: None))
    fleet: Any = SimpleNamespace(traffic=SimpleNamespace(acknowledged=lambda _: ()))
    flow = FlowRun(cast(Any, PLAN), session, fleet, SETTINGS, None, cast(Any, SimpleNamespace(is_there=True)))
    planners: Any = SimpleNamespace(completed=lambda _: None, behind=lambda _: Counter[str]())
    writers = nothing_due()
    writers.observing, writers.prepared_s, writers.bad = (lambda of: of), 0.0, Counter[str]()
    writers.decided = lambda _: setattr(writers, "ahead", None)  # who reads with care reads nothing ahead
    writers.ahead, flow._settings = record.range, replace(SETTINGS, alignment=Alignment("at_least_once"))
    session.holds.is_at_rest = False
    flow._epoch(planners, writers, ResumePoint(where, 3), record.range, "job")
    assert at_rest == [True]


def test_an_epoch_that_was_planned_before_a_hold_is_planned_again_with_what_came_meanwhile() -> None:
    session, begun = session_at_rest(), list[Range]()
    where = [Positions.of({"t/0": at}) for at in range(4)]
    ends = iter(where[1:])

    @contextmanager
    def turn() -> Iterator[None]:
        session.holds.times, session.lock = 1, nullcontext()
        yield

    def run_epoch(request: Any, **_: Any) -> None:
        begun.append(request.range)
        raise Fenced("taken-over", "another process has taken over")

    session.lock, session.names, session.write_through, session.name = turn(), ("rows",), (), "shop"
    session.check_counted, session.lifecycle = lambda _: None, SimpleNamespace(run_epoch=run_epoch)
    settings = replace(SETTINGS, epoch_interval_s=WAIT_S)
    flow = FlowRun(cast(Any, PLAN), session, cast(Any, SimpleNamespace()), settings, None, NO_MARK)
    planners: Any = SimpleNamespace(end=lambda _: next(ends), is_done=lambda _: False)
    began_s = time.monotonic()
    with pytest.raises(Fenced):
        flow._epochs(planners, nothing_due(), ResumePoint(where[0]), "job")
    assert begun == [Range(where[0], where[2])] and time.monotonic() - began_s < WAIT_S / 2


def test_a_flow_that_starts_is_not_at_rest_before_it_knows_what_was_left_on_its_way() -> None:
    session = session_at_rest()
    at_rest: list[bool] = []

    def facts() -> None:
        at_rest.append(session.holds.is_at_rest)
        raise Fenced("taken-over", "another process has taken over")

    session.facts = facts
    flow = FlowRun(cast(Any, PLAN), session, cast(Any, SimpleNamespace()), SETTINGS, None, NO_MARK)
    with pytest.raises(Fenced):
        flow._live(False)
    assert at_rest == [False]


PLAN = SimpleNamespace(graph=Graph("shop", ()))


def session_at_rest() -> Any:
    patience = SimpleNamespace(retry=lambda ask, _: ask())
    return SimpleNamespace(patience=patience, taken_over=lambda: None, holds=copy(HOLDS))


def nothing_due() -> Any:
    return SimpleNamespace(
        ahead=None, timer_ms=None, clocks={}, has_open_clocks=False, waits_to_know=False, look=lambda: None
    )
