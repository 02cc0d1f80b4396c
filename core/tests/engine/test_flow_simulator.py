"""Subtasks with the protocol, in every order within a bound, struck everywhere; and that mutants are noticed."""

from __future__ import annotations

from itertools import product

import pytest

from onefold.core import SinkKind
from onefold.engine.testing.ack_world import ACK, DOUBLED, MUTANTS_OF_ACK, ROOTS_FAIL
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, JOBS, OF_ALIGNMENT, STAGES, UNWAITED
from onefold.engine.testing.mutants import EARLY, ELEMENTS, END, MUTANTS, OF_ORDER, OF_TIME, SESSIONS, SILENCE, WINDOWS
from onefold.engine.testing.overtaking_mutants import OF_OVERTAKING
from onefold.engine.testing.proof import HAPPENINGS, FlowProof
from onefold.engine.testing.schedules import Explored, FlowSchedule, explore, explore_to_failure, sample, simulate

TP, LR, WT = SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE, SinkKind.WRITE_THROUGH
OVERTAKEN = [job for job in OF_ALIGNMENT if job != UNWAITED]
FIRST_JOBS = [job for job in JOBS if job not in (EARLY, SESSIONS, ELEMENTS)]  # those take their time


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kinds", [(TP,), (LR,), (WT,), (TP, LR, WT)])
def test_an_undisturbed_flow_is_exact(kinds: tuple[SinkKind, ...], job: str) -> None:
    assert simulate(kinds, {}, job=job).wrong == []


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "job"), [*product(((TP,), (WT,)), JOBS), *product(((LR,), (TP, WT)), FIRST_JOBS)])
def test_whatever_happens_once_every_row_comes_once(kinds: tuple[SinkKind, ...], job: str) -> None:
    report = explore(kinds, 1, job=job)
    assert report.failed == []
    assert report.schedules > 500
    assert min(report.taken[what] for what in ("the driver dies", "workers die", "the workers run on")) > 30


@pytest.mark.parametrize("kinds", [(TP,), (LR,)])
@pytest.mark.parametrize("job", OF_ALIGNMENT)
def test_an_undisturbed_flow_is_exact_however_barriers_are_aligned(kinds: tuple[SinkKind, ...], job: str) -> None:
    assert simulate(kinds, {}, job=job).wrong == []


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("job", OVERTAKEN)
def test_whatever_happens_once_what_barriers_overtake_comes_once(job: str) -> None:
    report = explore((TP,), 1, job=job)
    assert report.failed == [] and report.schedules > 300


@pytest.mark.parametrize("job", OVERTAKEN)
@pytest.mark.parametrize("point", range(0, 300, 30))
def test_two_faults_close_to_each_other_leave_every_row_that_was_overtaken_once(point: int, job: str) -> None:
    for second in (1, 8):
        for option in (1, 99):
            script = {point: option, point + second: 99}
            assert simulate((TP,), script, job=job).wrong == [], script


@pytest.mark.proof
@pytest.mark.parametrize("job", OVERTAKEN)
def test_whatever_the_pace_of_the_workers_what_barriers_overtake_comes_once(job: str) -> None:
    for seed in range(40):
        assert sample((TP,), seed, job=job).wrong == [], seed


@pytest.mark.proof
def test_barriers_that_nobody_waits_for_lose_nothing_and_double_rows() -> None:
    wrong = [text for seed in range(40) for text in sample((TP,), seed, job=UNWAITED).wrong]
    assert {text.partition(":")[0] for text in wrong} == {"no-duplicate"}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("point", range(0, 160, 16))
def test_two_faults_close_to_each_other_leave_every_row_once(point: int, job: str) -> None:
    for second in (1, 3, 8):
        for option in (1, 99):  # the first that is not the usual one, and the last
            script = {point: option, point + second: 99}
            assert simulate((TP,), script, job=job).wrong == [], script


@pytest.mark.proof
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kinds", [(WT,), (TP, WT)], ids=str)
def test_rows_that_show_early_are_the_same_again_whatever_the_pace_of_the_workers(
    kinds: tuple[SinkKind, ...], job: str
) -> None:
    for seed in range(40):
        assert sample(kinds, seed, job=job).wrong == [], seed


@pytest.mark.proof
@pytest.mark.parametrize("name", OF_ORDER)
def test_a_mutant_of_order_is_noticed(name: str) -> None:
    kind, subject, job = OF_ORDER[name]
    assert any(sample((kind,), seed, subject, job).wrong for seed in range(40))


@pytest.mark.proof
def test_a_schedule_that_failed_by_chance_fails_again_from_its_text() -> None:
    _, subject, job = OF_ORDER["channels are taken by arrival"]
    report = Explored()
    for seed in range(40):
        report.count((WT,), sample((WT,), seed, subject, job))
        if report.failed:
            break
    (failed,) = report.failed
    assert failed.invariants == ("no-duplicate",) and report.violated == {"no-duplicate": 1}
    assert failed.points[-1].endswith(" steps in another order")
    again = FlowSchedule.from_json(failed.schedule.to_json())
    assert again == failed.schedule
    assert tuple(simulate(again.kinds, dict(again.script), subject).wrong) == failed.wrong


def test_each_shard_has_its_part_of_the_schedules() -> None:
    usual = simulate((TP,), {})
    others = sum(len(options) - 1 for options in usual.options)
    first, last = (explore((TP,), 1, shard=(number, 100)) for number in (0, 99))
    assert first.schedules == 1 + len(range(0, others, 100)) and last.schedules == len(range(99, others, 100))
    assert first.taken.total() == first.schedules - 1


def test_what_no_flow_had_is_named() -> None:
    proof = FlowProof()
    assert "never in a flow: workers die" in proof.never() and not proof.holds
    proof.reports["two-phase"].taken.update(HAPPENINGS)
    assert proof.holds


@pytest.mark.proof
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str) -> None:
    report = explore_to_failure((TP,), MUTANTS[name])
    assert report.failed, f"{report.schedules} schedules did not notice that {name}"


@pytest.mark.proof
@pytest.mark.parametrize("name", OF_TIME)
def test_a_mutant_of_event_time_is_noticed(name: str) -> None:
    subject, job = OF_TIME[name]
    report = explore_to_failure((TP,), subject, job)
    assert report.failed, f"{report.schedules} schedules did not notice that {name}"


@pytest.mark.proof
@pytest.mark.parametrize("name", OF_OVERTAKING)
def test_a_mutant_of_overtaking_is_noticed(name: str) -> None:
    subject, job = OF_OVERTAKING[name]
    report = explore_to_failure((TP,), subject, job)
    assert report.failed, f"{report.schedules} schedules did not notice that {name}"


def test_a_schedule_has_its_job() -> None:
    assert {SILENCE, END, WINDOWS, EARLY, SESSIONS, ELEMENTS, DEFAULT_JOB} == set(JOBS)
    schedule = FlowSchedule((TP,), ((3, 1),), SILENCE)
    assert FlowSchedule.from_json(schedule.to_json()) == schedule
    assert FlowSchedule.from_json(FlowSchedule((TP,), (), STAGES).to_json()).job == STAGES
    assert FlowSchedule.from_json('{"flow": ["two-phase"], "script": []}') == FlowSchedule((TP,))


@pytest.mark.parametrize("kind", [TP, LR])
def test_under_acknowledgement_an_undisturbed_flow_is_exact(kind: SinkKind) -> None:
    usual = simulate((kind,), {}, job=ACK)
    assert usual.wrong == [] and usual.seen == ()


@pytest.mark.proof
@pytest.mark.slow
def test_under_acknowledgement_no_record_is_ever_lost_and_some_come_twice() -> None:
    report = explore((TP,), 1, job=ACK)
    assert report.failed == []
    assert report.schedules > 500
    assert min(report.taken[what] for what in ("the driver dies", "workers die", ROOTS_FAIL, DOUBLED)) > 30


@pytest.mark.proof
@pytest.mark.parametrize("name", MUTANTS_OF_ACK)
def test_a_mutant_of_acknowledgement_is_noticed(name: str) -> None:
    report = explore_to_failure((TP,), MUTANTS_OF_ACK[name], ACK)
    assert report.violated.keys() == {"no-loss"}, f"{report.schedules} schedules did not notice that {name}"


def test_a_schedule_of_acknowledgement_is_run_again_from_its_text() -> None:
    schedule = FlowSchedule((TP,), ((3, 1),), ACK)
    assert FlowSchedule.from_json(schedule.to_json()) == schedule
