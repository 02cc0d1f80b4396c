"""The protocol, driver and recovery, struck at every step over model sinks."""

from __future__ import annotations

import os
from collections import Counter

import pytest

import onefold.core.effects as effects_module
from onefold.core import SinkKind
from onefold.core.testing import CONFIGURATIONS, Fault, Plan, Report, explore, simulate

EVERY_PAIR = bool(os.environ.get("ONEFOLD_EXHAUST"))
EFFECTS = {name for name in effects_module.__all__ if name not in ("Effect", "EpochRequest", "StoreFacts")}
# No crash or error of ours makes a sink lose decided work, and nobody restored an older store:
# test_protocol.py covers what happens then.
NOT_REACHED = {"AcceptDamage", "Adopt", "MarkDamaged"}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    every = {fault: (Fault.SWEEP,) if fault is Fault.SWEEP_HALTS else (Fault.CRASH, Fault.SWEEP) for fault in Fault}
    some: dict[str, dict[Fault, tuple[Fault, ...]]] = {
        "two-phase": {Fault.CRASH: (Fault.CRASH, Fault.SWEEP), Fault.SWEEP_HALTS: (Fault.SWEEP,)},
        "last-resource": {Fault.CRASH: (Fault.CRASH,)},
        "two-phase + last-resource": {Fault.CRASH: (Fault.CRASH,)},
        "two two-phase": {},
    }
    if EVERY_PAIR:
        return {name: explore(sinks, every, pairs_in_batches=3) for name, sinks in CONFIGURATIONS.items()}
    return {name: explore(sinks, some[name]) for name, sinks in CONFIGURATIONS.items()}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_fault_at_any_step_breaks_an_invariant(name: str, reports: dict[str, Report]) -> None:
    assert reports[name].failures == []


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_exploration_did_run_and_is_bounded(name: str, reports: dict[str, Report]) -> None:
    assert 400 < reports[name].schedules < 1_000_000


def test_a_driver_crashed_before_and_after_every_effect_that_can_be_reached(reports: dict[str, Report]) -> None:
    crashes: Counter[str] = Counter()
    for report in reports.values():
        crashes += Counter({point: n for (fault, point), n in report.struck.items() if fault is Fault.CRASH})
    for effect in EFFECTS - NOT_REACHED - {"Pause"}:
        assert crashes[f"before:{effect}"] > 0, effect
        assert crashes[f"after:{effect}"] > 0, effect
    for inside in ("RunWriters", "Merge", "Commit", "Abort"):
        assert crashes[f"inside:{inside}"] > 0, inside


def test_every_other_fault_struck_every_effect_too(reports: dict[str, Report]) -> None:
    struck: Counter[tuple[Fault, str]] = sum((r.struck for r in reports.values()), Counter())
    in_an_undisturbed_run = EFFECTS - NOT_REACHED - {"Pause", "GiveUp"}
    for effect in in_an_undisturbed_run:
        for fault, when in (
            (Fault.RETRIABLE, "before"),
            (Fault.IN_DOUBT, "before"),
            (Fault.IN_DOUBT, "after"),
            (Fault.TAKEOVER, "before"),
            (Fault.TAKEOVER, "after"),
            (Fault.LOSE_WORK, "before"),
            (Fault.SWEEP, "before"),
            (Fault.SWEEP_HALTS, "after"),
        ):
            assert struck[fault, f"{when}:{effect}"] > 0, (fault, when, effect)


def test_the_same_plan_gives_the_same_run() -> None:
    plan = Plan((SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE), ((30, Fault.CRASH), (41, Fault.CRASH)))
    first, second = simulate(plan), simulate(plan)
    assert (first.steps, first.struck) == (second.steps, second.struck)
    assert first.struck.total() == 2


def test_an_undisturbed_run_completes_without_a_fault() -> None:
    run = simulate(Plan((SinkKind.TWO_PHASE,), duplicate_attempts=False))
    assert run.violations == []
    assert run.struck.total() == 0
    assert "after:Decide" in run.steps
    assert "after:Abort" not in run.steps, "nothing to sweep where no attempt was duplicated"


def test_it_finds_a_sweep_that_ignores_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.core.protocol.doomed", lambda _facts, _generation, listed: tuple(listed))
    failures = explore((SinkKind.TWO_PHASE,)).failures
    assert any("Damaged" in text for failure in failures for text in failure.violations)


def test_it_finds_a_start_that_forgets_the_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.core.protocol.doomed", lambda _facts, _generation, _listed: ())
    failures = explore((SinkKind.LAST_RESOURCE,)).failures
    assert any(text.startswith("nothing-in-doubt") for failure in failures for text in failure.violations)
