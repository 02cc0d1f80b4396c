"""Resolves work in doubt beside all that can go on: whole at every point of a simulated pipeline, or cut in two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from onefold.core import Committable, OnefoldError, SinkKind
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import ListLeftovers, ReadLedger, ReadStore
from onefold.core.protocol.epoch import Protocol
from onefold.core.protocol.in_doubt import EVERY_GENERATION, Fate, Survey, fates, resolve, survey
from onefold.core.testing import Fault, Subject, load
from onefold.core.testing.simulator.simulator import SimulatedRun, SimulationPlan, judge, simulate
from onefold.core.testing.simulator.world import PIPELINE, World

TP, LR, WT = SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE, SinkKind.WRITE_THROUGH
Look = Callable[[tuple[str, ...]], Protocol[Survey]]
DISTANCE_MAX = 25  # points between the two parts: more than an epoch's effects after its writers


@dataclass(frozen=True)
class Visit:
    """Somebody resolves: so many effects at the point `begins`, the rest at the point `ends`."""

    begins: int
    ends: int
    effects_first: int


class Visited(World):
    """A world in which somebody resolves meanwhile, over connections of their own."""

    def __init__(self, plan: SimulationPlan, subject: Subject, visit: Visit, look: Look, done: Counter[Fate]) -> None:
        super().__init__(plan.sinks, dict(plan.faults), subject, plan.patience, plan.freezes)
        self._visit, self._done, self._is_visiting = visit, done, False
        self._work = self._resolving(look)
        self._effect = next(self._work)

    def reached(self, name: str) -> None:
        if self._is_visiting:
            return  # the visitor's own calls
        point = len(self.steps) + 1
        if name != "inside:Merge":  # which holds the pipeline's row: whoever reads the store waits
            if point == self._visit.begins:
                self._go(self._visit.effects_first)
            if point >= self._visit.ends:
                self._go(1000)
        super().reached(name)

    def _go(self, effects: int) -> None:
        self._is_visiting = True
        driver = Coordinator(PIPELINE, self.store, self.sinks, self._pause)
        for _ in range(effects):
            if self._effect is None:
                break
            try:
                answer = driver.perform(self._effect)
                self._effect = self._work.send(answer)
            except (StopIteration, OnefoldError):
                self._effect = None
        self._is_visiting = False

    def _resolving(self, look: Look) -> Iterator[Any]:
        found = yield from look(tuple(self.sinks))
        done = yield from resolve(found, lambda _: True)
        self._done.update(done.values())


def visits(plan: SimulationPlan, run: SimulatedRun) -> Iterator[Visit]:
    """Resolving whole at every point; and cut after the listing, and after the survey, at every two."""
    sinks = len(plan.sinks)
    first = max((point for point, _ in plan.faults), default=0) + 1
    for begins in range(max(first - 5, 1) if plan.faults else 1, len(run.steps) + 1):
        yield Visit(begins, begins, 1000)
        for ends in range(begins + 1, min(begins + DISTANCE_MAX, len(run.steps)) + 1):
            yield Visit(begins, ends, sinks)
            yield Visit(begins, ends, 2 * sinks + 2)


def violations(
    plan: SimulationPlan, subject: Subject, look: Look, done: Counter[Fate], every: int = 1, first: int = 0
) -> list[str]:
    """Of every so many schedules, from the first on."""
    undisturbed = simulate(plan, subject)
    found = []
    for number, visit in enumerate(visits(plan, undisturbed)):
        if (number + first) % every == 0:
            run = judge(Visited(plan, subject, visit, look, done))
            found += [f"{plan.to_json()} {visit}: {violation}" for violation in run.violations]
    return found


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load()


@pytest.mark.proof
@pytest.mark.parametrize("sinks", [(TP,), (LR,), (TP, LR), (TP, WT)], ids=lambda s: " + ".join(k.value for k in s))
def test_resolving_at_any_two_points_of_a_pipeline_that_lives_breaks_nothing(
    subject: Subject, sinks: tuple[SinkKind, ...]
) -> None:
    every = 13 if len(sinks) == 1 else 59
    assert violations(SimulationPlan(sinks), subject, survey, Counter(), every) == []


@pytest.mark.proof
@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.SLEEP, Fault.ORPHAN, Fault.RETRIED_STAGE, Fault.JOB_FAILS])
def test_resolving_after_a_fault_at_any_point_breaks_nothing(subject: Subject, fault: Fault) -> None:
    done: Counter[Fate] = Counter()
    for sinks in ((TP,), (LR,), (TP, LR)):
        undisturbed = simulate(SimulationPlan(sinks), subject)
        for point, name in enumerate(undisturbed.steps, start=1):
            plan = SimulationPlan(sinks, ((point, fault),))
            if name.startswith("before:") or fault is Fault.RETRIED_STAGE:
                assert violations(plan, subject, survey, done, 3989, 89 * point) == []
    assert done[Fate.ROLL_BACK] > 0


def test_a_visitor_who_takes_what_runs_for_a_leftover_is_found_out(subject: Subject) -> None:
    def careless(sinks: tuple[str, ...]) -> Protocol[Survey]:
        found = yield from survey(sinks)
        rolled_back = {c: Fate.ROLL_BACK if f is Fate.LEAVE else f for c, f in found.fates.items()}
        return Survey(found.facts, found.ledgers, rolled_back)

    broken = violations(SimulationPlan((TP,)), subject, careless, Counter(), 17)
    assert any("Damaged" in text for text in broken)


@pytest.mark.slow
def test_a_visitor_who_reads_the_store_before_the_listing_breaks_nothing_either(subject: Subject) -> None:
    """What was decided in between is above the last epoch that this visitor knows, and so left alone."""

    def hasty(sinks: tuple[str, ...]) -> Protocol[Survey]:
        facts = yield ReadStore()
        listed: list[Committable] = []
        ledgers = {}
        for sink in sinks:
            listed += yield ListLeftovers(sink, EVERY_GENERATION)
            ledgers[sink] = yield ReadLedger(sink)
        return Survey(facts, ledgers, fates(facts, listed))

    done: Counter[Fate] = Counter()
    assert violations(SimulationPlan((TP,)), subject, hasty, done, 3) == []
    assert done[Fate.COMMIT] > 0
