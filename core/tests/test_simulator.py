"""The protocol, driver and recovery, struck at every step over model sinks; and the tests of that test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from harness.renewing import assert_renewed

import onefold.core.testing
from onefold.core import InternalError, SinkKind
from onefold.core.testing import (
    CONFIGURATIONS,
    DEFAULT,
    MUTANTS,
    Fault,
    Proof,
    SimulationPlan,
    Subject,
    catch_mutants,
    explore,
    load,
    prove,
    simulate,
)
from onefold.core.testing.proof.bounds import DEEP, SHORT
from onefold.core.testing.proof.model_mutants import MODEL_MUTANTS
from onefold.core.testing.proof.mutants import UNIT_MUTANTS, Mutant
from onefold.core.testing.proof.patching import Patch
from onefold.core.testing.proof.prove import INSIDE, STEPS, catch, tries
from onefold.core.testing.simulator.simulator import Report
from onefold.core.testing.simulator.world import World
from onefold.engine.testing.proof import figures, mutants_of_subtasks, prove_flows

TESTS = Path(__file__).parent
PAGE = TESTS.parents[1] / "docs/guarantee.md"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load(counted=True)


@pytest.fixture(scope="module")
def proof(subject: Subject) -> Proof:
    """The short bound: a single fault everywhere, and what it takes to reach the rest."""
    proof = Proof(SHORT.name, {name: explore(start, SHORT, subject) for name, start in CONFIGURATIONS.items()})
    proof.branches.update(dict(zip(subject.branches, subject.counts, strict=True)))
    return proof


@pytest.mark.parametrize("point", [72, 73, 78, 79])
def test_the_operator_begins_from_the_ledger_where_the_errors_words_say_so(point: int) -> None:
    """Another host adopts, and dies as it does: its next life must be told what a flow on Spark is told."""
    faults = ((53, Fault.RIVAL_ADOPTED), (point, Fault.CRASH))
    run = simulate(SimulationPlan((SinkKind.TWO_PHASE,), faults), load())
    assert run.violations == [] and run.steps[52] == "before:CommitBatch"


def test_every_point_that_faults_and_bounds_name_is_one_of_a_step() -> None:
    named = re.compile(r'"(?:before|after|inside):(\w+)"')
    folder = Path(onefold.core.testing.__file__).parent
    found = {step for path in folder.rglob("*.py") for step in named.findall(path.read_text())}
    assert "RunAttempt" in found and found <= STEPS | INSIDE


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.xdist_group("proof")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_fault_at_any_step_breaks_an_invariant(name: str, proof: Proof) -> None:
    assert proof.reports[name].failures == []
    # A pipeline that completes epochs by itself is struck only where it differs from one that does not.
    plan = CONFIGURATIONS[name]
    assert proof.reports[name].schedules > (200 if plan.idles or plan.long_tasks else 700)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.xdist_group("proof")
def test_every_crash_point_every_branch_and_every_fault_is_reached(proof: Proof) -> None:
    assert proof.never() == []
    assert proof.holds


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.xdist_group("proof")
def test_a_proof_that_never_reached_something_does_not_hold(proof: Proof) -> None:
    less = Proof("default", {name: proof.reports[name] for name in ("write-through",)})
    assert any("no crash inside:Merge" in line for line in less.never())
    less = Proof(SHORT.name, proof.reports, proof.branches.copy())
    branch = next(branch for branch, visits in reversed(less.branches.most_common()) if visits)
    less.branches[branch] = 0
    assert less.never() == [f"no visit of {branch}"]
    assert not less.holds


def test_a_sample_of_the_deep_bound_holds_by_what_it_has_not_broken() -> None:
    assert Proof(DEEP.name).holds and not Proof(SHORT.name).holds
    assert not Proof(DEEP.name, {"staged": Report(violated=Counter({"no-duplicate": 1}))}).holds


@pytest.mark.slow
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
    plan = SimulationPlan((SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE), ((30, Fault.CRASH), (41, Fault.CRASH)))
    first, second = simulate(plan, subject), simulate(SimulationPlan.from_json(plan.to_json()), subject)
    assert (first.steps, first.struck) == (second.steps, second.struck)
    assert first.struck.total() == 2


def test_an_undisturbed_run_completes_without_a_fault(subject: Subject) -> None:
    run = simulate(SimulationPlan((SinkKind.TWO_PHASE,)), subject)
    assert run.violations == []
    assert run.struck.total() == 0
    assert "after:Decide" in run.steps
    assert "after:Abort" not in run.steps, "nothing to sweep where no attempt was duplicated"


def test_a_check_that_fails_in_a_sleeper_is_a_complaint(subject: Subject) -> None:
    world = World((SinkKind.TWO_PHASE,), {}, subject)

    def failing() -> None:
        raise InternalError("internal-check-failed", "a check failed")

    world.asleep.append(failing)
    world.wake()
    assert ["a check failed" in complaint for complaint in world.complaints] == [True]


def test_the_simulated_protocol_is_the_production_source_and_a_patch_must_fit_it() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        load(Patch("onefold.core.protocol.epoch", "names_that_are_not_there", "1"))


@pytest.mark.slow
@pytest.mark.proof
def test_a_sample_of_the_mutants_is_caught() -> None:
    sample = [mutant for mutant in (*MUTANTS, *MODEL_MUTANTS) if mutant.first == frozenset(Fault)][::3]
    assert [mutant.mutant for mutant in catch_mutants(sample) if mutant.survived] == []


@pytest.mark.slow
def test_every_mutant_changes_words_that_are_there_and_is_told_apart_by_what_it_changes() -> None:
    for mutant in (*MUTANTS, *UNIT_MUTANTS, *MODEL_MUTANTS):
        load(*mutant.patches)
        assert mutant.is_of_models == (mutant in MODEL_MUTANTS), mutant.name


@pytest.mark.proof
@pytest.mark.soak
@pytest.mark.docs
def test_the_whole_proof_holds_and_the_page_says_what_it_showed() -> None:
    proof = prove()
    assert [failure.violations for report in proof.reports.values() for failure in report.failures] == []
    assert proof.never() == []
    flows = prove_flows()
    assert [failed.wrong for report in flows.reports.values() for failed in report.failed] == []
    assert flows.never() == []
    caught = catch([*tries((*MUTANTS, *MODEL_MUTANTS)), *mutants_of_subtasks()])
    assert [mutant.mutant for mutant in caught if mutant.survived] == []
    assert_renewed(PAGE, "test_simulator.py", figures(proof, flows, caught))


def test_the_page_counts_the_branches_and_mutants_that_there_are(subject: Subject) -> None:
    """The whole proof renews the page, and takes minutes: this says at once that it is due."""
    text = PAGE.read_text()
    assert f"| branches of protocol and recovery | {len(subject.branches)} |" in text
    assert f"| mutants of protocol and recovery caught | {len(MUTANTS)} of {len(MUTANTS)} |" in text
    count = len(mutants_of_subtasks())
    assert f"| mutants of the engine's subtasks caught | {count} of {count} |" in text


@pytest.mark.proof
@pytest.mark.parametrize("mutant", UNIT_MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.slow
def test_a_mutant_that_no_schedule_shows_is_caught_by_its_unit_test(mutant: Mutant) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutated", TESTS / mutant.test]
    environment = os.environ | {"ONEFOLD_MUTANT": mutant.name, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert mutant.test.partition("::")[2] in ended.stdout


@pytest.mark.slow
@pytest.mark.proof
def test_a_mutant_that_is_none_survives() -> None:
    harmless = replace(MUTANTS[0], name="none", patches=(), first=frozenset({Fault.SWEEP_HALTS}))
    (survivor,) = catch_mutants([harmless])
    assert survivor.survived and survivor.schedules > 100
