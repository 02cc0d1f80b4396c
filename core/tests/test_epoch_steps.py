"""How long the steps of an epoch take: the clock stands still but where a test moves it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from onefold.core import Decided, EpochRecord, EpochState, Positions, Range, Retriable
from onefold.core.contract import Generation, LedgerEntry
from onefold.core.protocol.effects import (
    Commit,
    Decide,
    Effect,
    EpochRequest,
    OpenEpoch,
    Pause,
    Protocol,
    RunWriters,
    WriteLedger,
)
from onefold.core.protocol.epoch import Outcome
from onefold.store.epoch_figures import EpochSteps
from onefold.store.epoch_steps import StepClock

SPAN = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 1}))
RECORD = EpochRecord("p", 1, 1, EpochState.OPEN, SPAN, 0, "q", 0, "job")
DOWN = Retriable("test", "down")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at_s = [100.0]
    monkeypatch.setattr("onefold.store.epoch_steps.time.monotonic", lambda: at_s[0])
    return at_s


def drive(protocol: Protocol[Any], now: list[float], took_s: dict[type[Effect], float]) -> Any:
    """Each effect takes as long as `took_s` says; the first Commit is not answered."""
    failed = 0
    try:
        effect = next(protocol)
        while True:
            now[0] += took_s.get(type(effect), 0.0)
            if isinstance(effect, Commit) and not failed:
                failed += 1
                effect = protocol.throw(DOWN)
            else:
                effect = protocol.send(None)
    except StopIteration as stop:
        return stop.value


def epoch() -> Protocol[Outcome]:
    generation, decided = Generation("p", 1, "token"), Decided(replace(RECORD, state=EpochState.DECIDED))
    yield OpenEpoch(generation, EpochRequest(SPAN), 0)
    yield RunWriters(RECORD)
    yield Decide(generation, RECORD, ())
    try:
        yield Commit("rows", decided)
    except Retriable as error:
        yield Pause(1, Commit("rows", decided), error)
        yield Commit("rows", decided)
    yield WriteLedger("rows", LedgerEntry(1, 1, 0, SPAN.end, "store"))
    return Outcome(RECORD, replayed=False)


def test_all_time_between_the_ends_of_two_epochs_is_in_a_step_and_a_pause_is_in_what_it_waits_for(
    now: list[float],
) -> None:
    clock, took_s = StepClock(), {OpenEpoch: 1.0, RunWriters: 10.0, Decide: 2.0, Commit: 3.0, Pause: 20.0}
    assert isinstance(drive(clock.timed(epoch()), now, took_s), Outcome)
    assert clock.last == EpochSteps(wait_s=0, open_s=1, run_s=10, prepare_s=None, decide_s=2, commit_s=26)
    now[0] += 5.0
    assert drive(clock.timed(epoch()), now, {RunWriters: 4.0}) is not None
    assert clock.last == EpochSteps(wait_s=5, open_s=0, run_s=4, prepare_s=None, decide_s=0, commit_s=0)


def test_the_epoch_that_runs_is_told_with_its_step_from_when_it_begins_to_write(now: list[float]) -> None:
    clock, told = StepClock(), []
    effects, protocol = [], clock.timed(epoch())
    effect = next(protocol)
    with suppress(StopIteration):
        while True:
            effects.append(type(effect))
            told.append(clock.running and (clock.running.epoch, clock.running.step))
            now[0] += 1.0
            is_first = isinstance(effect, Commit) and effects.count(Commit) == 1
            effect = protocol.throw(DOWN) if is_first else protocol.send(None)
    assert effects == [OpenEpoch, RunWriters, Decide, Commit, Pause, Commit, WriteLedger]
    steps = ("run", "decide", "commit", "commit", "commit", "commit")
    assert told == [None, *((RECORD.epoch, step) for step in steps)]
    assert clock.running is None


def test_what_was_before_the_start_is_of_no_epoch(now: list[float]) -> None:
    clock = StepClock()
    now[0] += 60.0
    clock.begin()
    drive(clock.timed(epoch()), now, {})
    assert clock.last is not None and clock.last.wait_s == 0


def test_what_is_prepared_is_a_part_of_the_run_and_named_where_it_is_known() -> None:
    steps = EpochSteps(wait_s=1, open_s=0, run_s=10, prepare_s=None, decide_s=2, commit_s=3)
    assert steps.known() == {"wait": 1, "open": 0, "run": 10, "decide": 2, "commit": 3}
    assert steps.with_prepare(4).known() == {"wait": 1, "open": 0, "run": 6, "prepare": 4, "decide": 2, "commit": 3}
    assert steps.with_prepare(11).known() == {**steps.known(), "run": 0, "prepare": 10}
