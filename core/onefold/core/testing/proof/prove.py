"""The proof: every schedule within a bound on every configuration, every counter above zero, every mutant caught.

The work is spread over processes. What comes back is counted, never listed: memory stays flat. The engine's part is in
`onefold.engine.testing.proof`, which has the table of both.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from random import Random
from typing import TypeVar, get_args

from onefold.core.checks import present
from onefold.core.protocol.effects import Effect
from onefold.core.testing.proof.bounds import BOUNDS, DEEP, DEFAULT, ONE_FAULT, Bound
from onefold.core.testing.proof.model_mutants import MODEL_MUTANTS
from onefold.core.testing.proof.mutants import MUTANTS, Mutant
from onefold.core.testing.proof.subject import Branch, Subject, load
from onefold.core.testing.simulator.faults import Fault
from onefold.core.testing.simulator.simulator import CONFIGURATIONS, Report, explore

SHARDS = 8
DEEP_SHARDS, DEEP_SCHEDULES = 1_009, 1_000_000  # all there are within the deep bound would take days
OF_PROTOCOL, OF_MODELS = "the protocol", "the models"  # what mutants are of
# `RunWriters` is Spark's job, of which each attempt is a step; `Pause` is the driver's own.
STEPS = frozenset(each.__name__ for each in get_args(Effect)) - {"RunWriters", "Pause"}
STEPS |= {"RunAttempt", "PlanBatch", "CommitBatch"}
INSIDE = frozenset({"RunAttempt", "Merge", "Commit", "Abort"})
Progress = Callable[[int, int, str], None]
T = TypeVar("T")
# What no schedule brings about so far, by function and first words: unit tests reach it, which UNIT_MUTANTS hold to it.
BY_UNIT_TESTS = (
    ("check_bound", "raise DataLoss"),
    ("_check_left_out", "raise CheckpointMismatch"),
    ("_explains", "continue"),
    # A range that does not follow, in a process that goes on: the store refuses it too. And what only a session asks.
    ("is_followed_by", "return False"),
    ("is_at_rest", "return self._cache"),
    # Of a query whose checkpoint has lost what it committed: what it has committed is looked at first.
    ("place", "raise DataLoss('gap-in-positions'"),
)


@dataclass
class Proof:
    """What was run, and what it says."""

    bound: str
    reports: dict[str, Report] = field(default_factory=dict)
    branches: Counter[Branch] = field(default_factory=Counter)

    @property
    def schedules(self) -> int:
        return sum(report.schedules for report in self.reports.values())

    @property
    def violated(self) -> Counter[str]:
        """How many schedules broke each invariant."""
        return sum((report.violated for report in self.reports.values()), Counter())

    @property
    def struck(self) -> Counter[tuple[Fault, str]]:
        """How often each fault struck at each point."""
        return sum((report.struck for report in self.reports.values()), Counter())

    @property
    def refusals(self) -> Counter[tuple[str, str]]:
        """How often which mishap ended in which error."""
        return sum((report.refusals for report in self.reports.values()), Counter())

    def never(self) -> list[str]:
        """Every crash point, branch and fault that was not reached once: then the proof shows less than it says. A
        sample of the deep bound says nothing of that: the default bound reaches them all."""
        if self.bound == DEEP.name:
            return []
        crashes = {point for fault, point in self.struck if fault is Fault.CRASH}
        points = {f"{when}:{step}" for step in STEPS for when in ("before", "after")}
        points |= {f"inside:{step}" for step in INSIDE}
        missed = [f"no crash {point}" for point in sorted(points - crashes)]
        struck = {fault for fault, _ in self.struck}
        asked = {fault for rule in BOUNDS[self.bound].rules for fault in rule.faults}
        always = frozenset(Fault) - {Fault.WAKE, Fault.WAKE_ONE_STEP}
        missed += [f"no fault '{fault.value}'" for fault in sorted((always | asked) - struck, key=lambda f: f.name)]
        return missed + [f"no visit of {branch}" for branch in self.unvisited() if not _is_unit_tested(branch)]

    def unvisited(self) -> list[Branch]:
        """The branches that no schedule reached."""
        return [branch for branch, count in self.branches.items() if count == 0]

    def by_unit_tests(self) -> list[Branch]:
        """Those of them that unit tests reach."""
        return [branch for branch in self.unvisited() if _is_unit_tested(branch)]

    @property
    def holds(self) -> bool:
        return not self.violated and not self.never()


@dataclass(frozen=True)
class Caught:
    """What became of a mutant of something: which invariants it broke, after how many schedules. None: it survived."""

    of: str
    mutant: str
    schedules: int
    invariants: tuple[str, ...]
    points: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        return not self.invariants


Try = Callable[[], Caught]


def prove(bound: Bound = DEFAULT, processes: int | None = None, progress: Progress = lambda *_: None) -> Proof:
    """Run everything within the bound; of the deep one a sample, the same each time, of `DEEP_SCHEDULES` or a few more.
    `progress` is told how many of how many parts are done, and what was struck."""
    proof = Proof(bound.name, {name: Report() for name in CONFIGURATIONS})
    proof.branches.update(dict.fromkeys(_counted_subject().branches, 0))
    shards = DEEP_SHARDS if bound is DEEP else SHARDS
    each = product(range(shards), CONFIGURATIONS)
    parts = [partial(_explore_part, name, bound.name, (shard, shards)) for shard, name in each]
    if bound is DEEP:
        Random(1).shuffle(parts)
    for done, (name, report, counts) in enumerate(spread(parts, processes), start=1):
        proof.reports[name].add(report)
        for branch, count in zip(_counted_subject().branches, counts, strict=True):
            proof.branches[branch] += count
        progress(done, len(parts), f"{proof.schedules:,} schedules, the last of {name}")
        if bound is DEEP and proof.schedules >= DEEP_SCHEDULES:
            break
    return proof


def catch_mutants(
    mutants: Sequence[Mutant] = (*MUTANTS, *MODEL_MUTANTS),
    processes: int | None = None,
    progress: Progress = lambda *_: None,
) -> list[Caught]:
    """Try each mutant until something breaks, at most to the end of the default bound."""
    return catch(tries(mutants), processes, progress)


def tries(mutants: Sequence[Mutant]) -> list[Try]:
    return [partial(_try_mutant, mutant) for mutant in mutants]


def catch(each: Sequence[Try], processes: int | None = None, progress: Progress = lambda *_: None) -> list[Caught]:
    """What became of each mutant that is tried, by its name within what it is a mutant of."""
    found: list[Caught] = []
    for done, caught in enumerate(spread(each, processes), start=1):
        found.append(caught)
        progress(done, len(each), f"mutants, the last {caught.mutant}")
    return sorted(found, key=lambda each: (each.of, each.mutant))


def spread(parts: Sequence[Callable[[], T]], processes: int | None = None) -> Iterator[T]:
    """What each part gives, as it is done, in so many processes."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawn, initializer=_begin)
    try:
        for future in as_completed([pool.submit(part) for part in parts]):
            yield future.result()
    finally:  # a run that is interrupted does not go on with all the rest
        pool.shutdown(cancel_futures=True)


def _is_unit_tested(branch: Branch) -> bool:
    return any(branch.function == function and branch.text.startswith(text) for function, text in BY_UNIT_TESTS)


def _begin() -> None:
    """Worlds are many and small, and what is imported stays. A process of the pool ends with its parent, however."""
    gc.freeze()
    gc.set_threshold(2_000, 50, 1000)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    present(multiprocessing.parent_process(), "it was spawned").join()
    os._exit(1)


@cache
def _counted_subject() -> Subject:
    return load(counted=True)


def _explore_part(name: str, bound: str, shard: tuple[int, int]) -> tuple[str, Report, list[int]]:
    subject = _counted_subject()
    before = list(subject.counts)
    report = explore(CONFIGURATIONS[name], BOUNDS[bound], subject, shard)
    return name, report, [now - then for now, then in zip(subject.counts, before, strict=True)]


def _try_mutant(mutant: Mutant) -> Caught:
    subject, schedules = load(*mutant.patches), 0
    of = OF_MODELS if mutant.is_of_models else OF_PROTOCOL
    # One that says what strikes first needs more than one fault.
    bounds = (ONE_FAULT, DEFAULT) if mutant.first == frozenset(Fault) else (DEFAULT,)
    # In shards: what reveals it is found sooner where first faults of the whole run take turns.
    for bound, name, shard in product(bounds, mutant.configurations, range(SHARDS)):
        report = explore(
            CONFIGURATIONS[name],
            bound,
            subject,
            (shard, SHARDS),
            only=mutant.first,
            is_enough=lambda report: bool(report.violated),
        )
        schedules += report.schedules
        if report.failures:
            failure = report.failures[0]
            return Caught(of, mutant.name, schedules, failure.invariants, failure.points)
    return Caught(of, mutant.name, schedules, ())
