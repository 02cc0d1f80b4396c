"""Schedules of a model flow: one that is given, all that differ from the usual one at few points, and one by chance."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from onefold.core.contract import SinkKind
from onefold.engine.testing.ack_world import ACK, ROOTS_FAIL, AckWorld
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, JOBS, OF_ALIGNMENT
from onefold.engine.testing.flow_world import STRIKES, FlowWorld, Pick, WorldOutcome
from onefold.engine.testing.model_fleet import FleetSubject
from onefold.engine.testing.transaction_world import OF_HOPS, TRANSACTION, TransactionWorld

STRIKE_SHARE = 0.02
PRODUCTION = FleetSubject()
FAILURES_MAX = 5
_STRUCK = STRIKES | {ROOTS_FAIL, *OF_HOPS}
_STRIDE = 23  # a prime: points have about as many options each, and not only one of these is to be tried


@dataclass(frozen=True)
class FlowSchedule:
    """The sinks of a flow and its job, and which option is taken at which point (the first is 0) in the place of the
    first one."""

    kinds: tuple[SinkKind, ...]
    script: tuple[tuple[int, int], ...] = ()
    job: str = DEFAULT_JOB

    def to_json(self) -> str:
        return json.dumps({"flow": [kind.value for kind in self.kinds], "script": self.script, "job": self.job})

    @classmethod
    def from_json(cls, text: str) -> FlowSchedule:
        """Raises ValueError, KeyError or TypeError for what `to_json` does not write."""
        value = json.loads(text)
        script = tuple((int(point), int(option)) for point, option in value["script"])
        job = value.get("job", DEFAULT_JOB)
        known = str(job) if job in (*JOBS, *OF_ALIGNMENT, ACK, TRANSACTION) else DEFAULT_JOB
        return cls(tuple(SinkKind(kind) for kind in value["flow"]), script, known)


@dataclass(frozen=True)
class FailedFlow:
    """A schedule that broke something: the schedule runs it again, the points are for people."""

    schedule: FlowSchedule
    points: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def invariants(self) -> tuple[str, ...]:
        return tuple(sorted({text.partition(":")[0] for text in self.wrong}))


def simulate(
    kinds: Sequence[SinkKind],
    script: Mapping[int, int],
    subject: FleetSubject = PRODUCTION,
    job: str = DEFAULT_JOB,
) -> WorldOutcome:
    """By the script: at a point, by its number (the first is 0), it takes that option in the place of the first one, or
    the last one where there are fewer."""
    points = count()
    return _ran(kinds, lambda options: min(script.get(next(points), 0), len(options) - 1), subject, job)


def _ran(kinds: Sequence[SinkKind], pick: Pick, subject: FleetSubject, job: str) -> WorldOutcome:
    if job == TRANSACTION:
        return TransactionWorld(pick, subject.replaced).run()
    return (AckWorld if job == ACK else FlowWorld)(kinds, pick, subject, job).run()


class _Chance:
    """What happens next is chance, and at few points something dies."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._strikes_left = 2

    def pick(self, options: Sequence[str]) -> int:
        strikes = [number for number, each in enumerate(options) if each in _STRUCK]
        if self._strikes_left and strikes and self._chance.random() < STRIKE_SHARE:
            self._strikes_left -= 1
            return self._chance.choice(strikes)
        return self._chance.choice([number for number, each in enumerate(options) if each not in _STRUCK])


def sample(
    kinds: Sequence[SinkKind], seed: int, subject: FleetSubject = PRODUCTION, job: str = DEFAULT_JOB
) -> WorldOutcome:
    """One schedule of all, with workers at any pace."""
    return _ran(kinds, _Chance(seed).pick, subject, job)


@dataclass
class Explored:
    """How many schedules ran, what failed first, how many broke each invariant, and how often each option was taken."""

    schedules: int = 0
    failed: list[FailedFlow] = field(default_factory=list)
    violated: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)

    def count(self, kinds: Sequence[SinkKind], outcome: WorldOutcome) -> None:
        self.schedules += 1
        self.taken.update(outcome.options[point][option] for point, option in outcome.taken.items())
        self.taken.update(outcome.seen)
        if outcome.wrong:
            schedule = FlowSchedule(tuple(kinds), tuple(outcome.taken.items()), outcome.job)
            failed = FailedFlow(schedule, outcome.points(), tuple(outcome.wrong))
            self.violated.update(failed.invariants)
            self.failed = [*self.failed, failed][:FAILURES_MAX]

    def add(self, other: Explored) -> None:
        self.schedules += other.schedules
        self.failed = [*self.failed, *other.failed][:FAILURES_MAX]
        self.violated.update(other.violated)
        self.taken.update(other.taken)


def explore(
    kinds: Sequence[SinkKind],
    deviations: int,
    subject: FleetSubject = PRODUCTION,
    *,
    job: str = DEFAULT_JOB,
    within: int | None = None,
    shard: tuple[int, int] = (0, 1),
    failures_max: int = 3,
) -> Explored:
    """Every schedule that takes another option than the first at no more than so many points, each of them at most
    `within` points after the one before; with `shard` (k, n), every n-th of the first ones from k on."""
    report = Explored()

    def follow(script: dict[int, int], left: int) -> None:
        outcome = simulate(kinds, script, subject, job)
        if script or shard[0] == 0:
            report.count(kinds, outcome)
        if left == 0:
            return
        first = max(script, default=-1) + 1
        end = len(outcome.options) if within is None or not script else min(len(outcome.options), first + within)
        others = [(point, option) for point in range(first, end) for option in range(1, len(outcome.options[point]))]
        for point, option in others if script else others[shard[0] :: shard[1]]:
            if len(report.failed) >= failures_max:
                return
            follow({**script, point: option}, left - 1)

    follow({}, deviations)
    return report


def explore_to_failure(kinds: Sequence[SinkKind], subject: FleetSubject, job: str = DEFAULT_JOB) -> Explored:
    """Every schedule with one deviation, until one breaks something: first some from all parts of the run."""
    report = Explored()
    for number in range(_STRIDE):
        report.add(explore(kinds, 1, subject, job=job, shard=(number, _STRIDE), failures_max=1))
        if report.failed:
            break
    return report
