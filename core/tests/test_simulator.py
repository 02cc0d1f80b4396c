"""The protocol, driver and recovery, struck at every step over model sinks; and the tests of that test."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.core import SinkKind
from onefold.core.testing import (
    CONFIGURATIONS,
    DEFAULT,
    MUTANTS,
    ONE_FAULT,
    Fault,
    Plan,
    Proof,
    Report,
    Subject,
    catch_mutants,
    explore,
    load,
    simulate,
)
from onefold.core.testing.faults import BACKUPS
from onefold.core.testing.mutants import UNIT_MUTANTS, Mutant
from onefold.core.testing.subject import Patch

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load(counted=True)


@pytest.fixture(scope="module")
def reports(subject: Subject) -> dict[str, Report]:
    return {name: explore(start, ONE_FAULT, subject) for name, start in CONFIGURATIONS.items()}


@pytest.mark.proof
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_fault_at_any_step_breaks_an_invariant(name: str, reports: dict[str, Report]) -> None:
    assert reports[name].failures == []
    assert reports[name].schedules > 900


@pytest.mark.proof
def test_every_fault_that_comes_alone_struck_and_every_crash_point_was_crashed_at(reports: dict[str, Report]) -> None:
    in_recovery = ("Abort", "AcceptDamage", "Adopt", "GiveUp", "MarkDamaged")  # crashes there take a fault before
    followers = {fault.value for fault in (*BACKUPS, Fault.STORE_BACK)}
    never = [line for line in Proof("one fault", reports).never() if not line.endswith(in_recovery)]
    assert {line.split("'")[1] for line in never} == followers


@pytest.mark.proof
def test_a_proof_that_never_reached_something_does_not_hold(reports: dict[str, Report], subject: Subject) -> None:
    proof = Proof("one fault", reports)
    proof.branches.update(dict(zip(subject.branches, subject.counts, strict=True)))
    missed = [line for line in proof.never() if line.startswith("no visit of")]
    assert missed, "one fault does not reach every branch of recovery"
    assert not proof.holds
    assert "recovery.py" in missed[0]


@pytest.mark.parametrize(
    ("first", "then"),
    [(Fault.LATE, Fault.WAKE), (Fault.SLEEP, Fault.WAKE), (Fault.CRASH, Fault.CRASH), (Fault.BACKUP, Fault.OLD_STORE)],
    ids=lambda fault: fault.value,
)
def test_what_struck_is_followed_by_what_the_bound_says(first: Fault, then: Fault, subject: Subject) -> None:
    report = explore(CONFIGURATIONS["two-phase"], DEFAULT, subject, shard=(0, 4), only={first})
    assert report.failures == []
    assert sum(count for (fault, _), count in report.struck.items() if fault is then) > 10


def test_the_same_plan_gives_the_same_run_also_from_its_text(subject: Subject) -> None:
    plan = Plan((SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE), ((30, Fault.CRASH), (41, Fault.CRASH)))
    first, second = simulate(plan, subject), simulate(Plan.from_json(plan.to_json()), subject)
    assert (first.steps, first.struck) == (second.steps, second.struck)
    assert first.struck.total() == 2


def test_an_undisturbed_run_completes_without_a_fault(subject: Subject) -> None:
    run = simulate(Plan((SinkKind.TWO_PHASE,)), subject)
    assert run.violations == []
    assert run.struck.total() == 0
    assert "after:Decide" in run.steps
    assert "after:Abort" not in run.steps, "nothing to sweep where no attempt was duplicated"


def test_the_simulated_protocol_is_the_production_source_and_a_patch_must_fit_it() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        load(Patch("onefold.core.protocol", "words that are not there", ""))


@pytest.mark.proof
@pytest.mark.soak
def test_every_mutant_is_caught() -> None:
    caught = catch_mutants()
    assert len(caught) >= 30
    assert [mutant.mutant for mutant in caught if mutant.survived] == []


@pytest.mark.proof
@pytest.mark.parametrize("mutant", UNIT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_that_no_schedule_shows_is_caught_by_its_unit_test(mutant: Mutant) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutated", TESTS / mutant.test]
    environment = os.environ | {"ONEFOLD_MUTANT": mutant.name, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert mutant.test.partition("::")[2] in ended.stdout


@pytest.mark.proof
def test_a_mutant_that_is_none_survives() -> None:
    harmless = replace(MUTANTS[0], name="none", patches=(), first=frozenset({Fault.SWEEP_HALTS}))
    (survivor,) = catch_mutants([harmless])
    assert survivor.survived and survivor.schedules > 1_000
