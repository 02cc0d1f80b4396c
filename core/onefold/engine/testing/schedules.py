"""Schedules of a model flow: one that is given, all that differ from the usual one at few points, and one by chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onefold.core.contract import SinkKind
from onefold.engine.testing.flow_world import DRIVER_DIES, FlowWorld, WorldOutcome
from onefold.engine.testing.model_fleet import THEIR_WORK_LANDS_LATER, WORKERS_DIE, FleetSubject

__all__ = ["Explored", "explore", "sample", "simulate"]

STRIKES, STRIKE_SHARE = {DRIVER_DIES, WORKERS_DIE, THEIR_WORK_LANDS_LATER}, 0.02
PRODUCTION = FleetSubject()


def simulate(kinds: Sequence[SinkKind], script: Mapping[int, int], subject: FleetSubject = PRODUCTION) -> WorldOutcome:
    return FlowWorld(kinds, script, subject).run()


class _Shuffled(FlowWorld):
    """What happens next is chance, and at few of its points something dies."""

    def __init__(self, kinds: Sequence[SinkKind], seed: int, subject: FleetSubject) -> None:
        super().__init__(kinds, {}, subject)
        self._chance = random.Random(seed)
        self._strikes_left = 2

    def choose(self, options: Sequence[str]) -> str:
        harmless = [each for each in options if each not in STRIKES]
        if self._strikes_left and len(harmless) < len(options) and self._chance.random() < STRIKE_SHARE:
            self._strikes_left -= 1
            return self._chance.choice([each for each in options if each in STRIKES])
        return self._chance.choice(harmless)


def sample(kinds: Sequence[SinkKind], seed: int, subject: FleetSubject = PRODUCTION) -> WorldOutcome:
    """One schedule of all, with workers at any pace."""
    return _Shuffled(kinds, seed, subject).run()


@dataclass
class Explored:
    """How many schedules ran, what failed first, and how often each option was taken."""

    schedules: int = 0
    failed: list[tuple[dict[int, int], list[str]]] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)


def explore(
    kinds: Sequence[SinkKind],
    deviations: int,
    subject: FleetSubject = PRODUCTION,
    failures_max: int = 3,
) -> Explored:
    """Every schedule that takes another option than the first at no more than so many points."""
    report = Explored()

    def follow(script: dict[int, int], left: int) -> None:
        outcome = simulate(kinds, script, subject)
        report.schedules += 1
        if outcome.wrong:
            report.failed.append((script, outcome.wrong))
        first = max(script, default=-1) + 1
        for point in range(first, len(outcome.options) if left else 0):
            for option in range(1, len(outcome.options[point])):
                if len(report.failed) >= failures_max:
                    return
                report.taken[outcome.options[point][option]] += 1
                follow({**script, point: option}, left - 1)

    follow({}, deviations)
    return report
