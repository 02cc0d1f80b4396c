"""Strikes a world at every point, and after some faults at every later point again, until it rests; then judges it.

Exhaustive within its bound and without chance: the same configuration gives the same schedules. One schedule is a
`SimulationPlan`, which is text that can be kept and run again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from onefold.core.contract import EpochState, SinkKind
from onefold.core.invariants import violations
from onefold.core.testing.proof.bounds import Bound, Window
from onefold.core.testing.proof.subject import Subject
from onefold.core.testing.simulator.faults import AT_ONCE, MOVES, Fault, applies, can_follow
from onefold.core.testing.simulator.world import World

FAILURES_MAX = 5
TP, LR, WT = SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE, SinkKind.WRITE_THROUGH


@dataclass(frozen=True)
class SimulationPlan:
    """Which sinks, and what strikes at which point (the first is 1).

    `patience` is how often the driver asks again before its query fails.
    """

    sinks: tuple[SinkKind, ...]
    faults: tuple[tuple[int, Fault], ...] = ()
    patience: int = 3
    freezes: bool = True  # off: another source than ours
    late: bool = False  # the last sink is for dead letters, which may come late
    idles: bool = False  # its process completes each epoch by itself, after its batch
    long_tasks: bool = False  # it does so beside the tasks of the next

    def to_json(self) -> str:
        faults = [[point, fault.name] for point, fault in self.faults]
        sinks = [kind.value for kind in self.sinks]
        settings = {
            "patience": self.patience,
            "freezes": self.freezes,
            "late": self.late,
            "idles": self.idles,
            "long_tasks": self.long_tasks,
        }
        return json.dumps({"sinks": sinks, "faults": faults, **settings})

    @classmethod
    def from_json(cls, text: str) -> SimulationPlan:
        value = json.loads(text)
        faults = tuple((int(point), Fault[name]) for point, name in value["faults"])
        sinks = tuple(SinkKind(kind) for kind in value["sinks"])
        flags = (bool(value[name]) for name in ("freezes", "late", "idles", "long_tasks"))
        return cls(sinks, faults, int(value["patience"]), *flags)

    @property
    def size(self) -> int:
        """How much there is to it: its sinks, and one more for a source of somebody else's."""
        return len(self.sinks) + (not self.freezes)

    def and_then(self, point: int, fault: Fault) -> SimulationPlan:
        return replace(self, faults=(*self.faults, (point, fault)))


CONFIGURATIONS: dict[str, SimulationPlan] = {
    " + ".join(kind.value for kind in kinds): SimulationPlan(kinds)
    for kinds in ((TP,), (LR,), (WT,), (TP, TP), (TP, LR), (TP, WT), (WT, LR), (WT, WT), (TP, LR, WT))
} | {
    "two-phase, another source": SimulationPlan((TP,), freezes=False),
    "two-phase, late dead letters": SimulationPlan((TP, TP), late=True),
    "two-phase, late dead letters that merge": SimulationPlan((TP, LR), late=True),
    "last-resource, late dead letters": SimulationPlan((LR, TP), late=True),
    "write-through, late dead letters": SimulationPlan((WT, WT), late=True),
    "two-phase, idle": SimulationPlan((TP,), idles=True),
    "last-resource, idle": SimulationPlan((LR,), idles=True),
    "write-through, idle": SimulationPlan((WT,), idles=True),
    "two-phase, long tasks": SimulationPlan((TP,), long_tasks=True),
    "write-through, long tasks": SimulationPlan((WT,), long_tasks=True),
    "two-phase + last-resource, idle": SimulationPlan((TP, LR), idles=True),
    "two-phase, another source, idle": SimulationPlan((TP,), freezes=False, idles=True),
    # Dead letters are turned off only beside an epoch that is complete.
    "two-phase, late dead letters, idle": SimulationPlan((TP, TP), late=True, idles=True),
}
# What strikes first in a pipeline whose dead letters are off: all else is the same as in one that never has them.
BEFORE_LETTERS = frozenset({Fault.DEAD_LETTERS, Fault.BACKUP, Fault.SLEEP, Fault.ORPHAN, Fault.LATE})


@dataclass
class SimulatedRun:
    """What became of one schedule: what went wrong, the points it passed, and what struck where."""

    violations: list[str]
    steps: list[str]
    struck: Counter[tuple[Fault, str]]
    refusals: Counter[tuple[str, str]]


def simulate(plan: SimulationPlan, subject: Subject) -> SimulatedRun:
    """Run one schedule to rest and judge it."""
    flags = plan.freezes, plan.late, plan.idles, plan.long_tasks
    world = World(plan.sinks, dict(plan.faults), subject, plan.patience, *flags)
    return judge(world)


def judge(world: World) -> SimulatedRun:
    """Let a world come to rest: nothing sleeps any more, and one recovery with its sweep has run after that."""
    world.rest()
    if AT_ONCE.issuperset(world.plan.values()):
        held = [handle for sink in world.sinks.values() for handle in sink.prepared]
        world.complaints += [f"{handle} outlives the sweep of its own generation" for handle in held]
    world.wake()
    if world.plan:
        world.rest()  # what a zombie left is the next recovery's to remove
    # What strikes at the very end is seen by the next life, and what strikes that by one more. Nobody recovers a
    # pipeline that freezes nothing before its next batch: let there be one.
    for _ in range(2 + len(world.plan) if world.plan else 0):
        struck = world.struck.total()
        if not world.freezes:
            world.grow()
        elif not world.store_is_behind:
            break
        world.rest()
        if not world.store_is_behind and world.struck.total() == struck:
            break
    left = [r.epoch for r in world.store.epochs.values() if r.state is EpochState.DECIDED]
    if left and not world.complaints:
        world.complaints.append(f"the pipeline rests beside epoch {left[0]}, which was decided and is not complete")
    found = [f"comes-to-rest: {complaint}" for complaint in world.complaints]
    if world.store_is_behind:
        found.append("comes-to-rest: the pipeline rests before the end of its source")
    if world.first_start is not None:
        found += violations(world.evidence())
    return SimulatedRun(found, world.steps, world.struck, world.refusals)


@dataclass(frozen=True)
class Failure:
    """A schedule that broke something: the plan runs it again, the points are for people."""

    plan: SimulationPlan
    points: tuple[str, ...]
    violations: tuple[str, ...]

    @property
    def invariants(self) -> tuple[str, ...]:
        return tuple(sorted({text.partition(":")[0] for text in self.violations}))


@dataclass
class Report:
    """How many schedules ran, how often each fault struck at each point, who was refused why, and what failed."""

    schedules: int = 0
    struck: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def count(self, plan: SimulationPlan, run: SimulatedRun) -> None:
        self.schedules += 1
        self.struck.update(run.struck)
        self.refusals.update(run.refusals)
        if run.violations:
            failure = Failure(plan, _places(plan, run), tuple(run.violations))
            self.violated.update(failure.invariants)
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(failure)

    def add(self, other: Report) -> None:
        self.schedules += other.schedules
        self.struck.update(other.struck)
        self.refusals.update(other.refusals)
        self.violated.update(other.violated)
        self.failures = [*self.failures, *other.failures][:FAILURES_MAX]


def explore(
    start: SimulationPlan,
    bound: Bound,
    subject: Subject,
    shard: tuple[int, int] = (0, 1),
    only: Collection[Fault] = frozenset(Fault),
    is_enough: Callable[[Report], bool] = lambda _report: False,
) -> Report:
    """Every schedule that begins as `start` does, within the bound; with `shard` (k, n), every n-th first fault's from
    k on; with `only`, those that begin with one of these faults. `is_enough` may end it early."""
    report = Report()

    def run(plan: SimulationPlan) -> SimulatedRun:
        outcome = simulate(plan, subject)
        report.count(plan, outcome)
        return outcome

    undisturbed = simulate(start, subject)
    if shard[0] == 0:
        report.count(start, undisturbed)
    for number, plan in enumerate(_first_faults(start, undisturbed)):
        if number % shard[1] != shard[0] or plan.faults[0][1] not in only:
            continue
        _follow(plan, run(plan), bound, run, lambda: is_enough(report))
        if is_enough(report):
            break
    return report


def _first_faults(start: SimulationPlan, undisturbed: SimulatedRun) -> Iterator[SimulationPlan]:
    idle = _idle_points(undisturbed.steps) if start.idles or start.long_tasks else range(len(undisturbed.steps))
    for point, name in enumerate(undisturbed.steps, start=1):
        passed = undisturbed.steps[:point]
        for fault in Fault:
            if point - 1 not in idle and (fault is not Fault.BACKUP or point > idle[-1]):
                continue  # what differs there is struck, and copies are from before it
            if (start.late and fault not in BEFORE_LETTERS) or (fault is Fault.DEAD_LETTERS and not start.late):
                continue
            if fault in MOVES and (not start.freezes or "after:Freeze" not in passed):
                continue  # it was never started, or begins where its user says each time
            if fault is Fault.BACKUP and start.freezes and "after:Freeze" not in passed:
                continue  # a store from before the first start is a new store
            if fault in (Fault.NEW_STORE, Fault.NEW_STORE_ADOPTED) and passed.count("after:WriteLedger") < len(
                start.sinks
            ):
                continue  # nothing but the old one knows of the first start yet
            if applies(fault, name, start.sinks):
                for patience in _patiences(fault):
                    yield replace(start.and_then(point, fault), patience=patience)


def _idle_points(steps: list[str]) -> list[int]:
    """Where a process that completes an epoch by itself differs from one that does not: from there to the next one's
    opening, or to the tasks beside which it did. All else is struck in the other pipelines."""
    ends = [n for n, step in enumerate(steps) if step in ("after:OpenEpoch", "after:ReadClock", "before:RunAttempt")]
    completes = [n for n, step in enumerate(steps) if step == "before:Complete" and n < ends[-1]]
    return [point for n in completes for point in range(n, next(end for end in ends if end > n) + 1)]


def _patiences(fault: Fault) -> tuple[int, ...]:
    """Of one who gives up at once, and, where a request may still land, of one who asks once more."""
    if fault is Fault.LATE:
        return (3, 1, 0)
    return (3, 0) if fault.is_error else (3,)


def _follow(
    plan: SimulationPlan,
    outcome: SimulatedRun,
    bound: Bound,
    run: Callable[[SimulationPlan], SimulatedRun],
    is_over: Callable[[], bool],
) -> None:
    """Strike again at the later points, as the bound says for what has struck so far."""
    faults = tuple(fault for _, fault in plan.faults)
    tried: set[tuple[int, Fault]] = set()
    done = outcome.steps[: plan.faults[0][0]].count("after:CommitBatch")
    for rule in bound.after(faults):
        if plan.late != rule.late or plan.size > rule.size_max or done >= rule.batches_max:
            continue
        if rule.first_at and outcome.steps[plan.faults[0][0] - 1] not in rule.first_at:
            continue
        for point in _window(outcome.steps, plan.faults[-1][0], rule.window):
            name = outcome.steps[point - 1]
            if (rule.at and name not in rule.at) or (rule.sparse and name.startswith("after:")):
                continue
            if is_over():
                return
            for fault in rule.faults:
                if (point, fault) not in tried and can_follow(fault, name, plan.sinks):
                    tried.add((point, fault))
                    then = plan.and_then(point, fault)
                    _follow(then, run(then), bound, run, is_over)


def _window(steps: list[str], after: int, window: Window) -> Iterator[int]:
    for number, name in enumerate(steps[after:], start=after + 1):
        yield number
        if window is Window.RECOVERY and name == "after:CommitBatch":
            return


def _places(plan: SimulationPlan, run: SimulatedRun) -> tuple[str, ...]:
    return tuple(f"{n} {run.steps[n - 1] if n <= len(run.steps) else '-'}: {fault.value}" for n, fault in plan.faults)
