"""The proof: every schedule within a bound on every configuration, every counter above zero, every mutant caught.

The work is spread over processes. What comes back is counted, never listed: memory stays flat.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import get_args

from onefold.core.protocol.effects import Effect
from onefold.core.testing.proof.bounds import BOUNDS, DEFAULT, ONE_FAULT, Bound
from onefold.core.testing.proof.model_mutants import MODEL_MUTANTS
from onefold.core.testing.proof.mutants import MUTANTS, Mutant
from onefold.core.testing.proof.subject import Branch, Subject, load
from onefold.core.testing.simulator.faults import Fault
from onefold.core.testing.simulator.simulator import CONFIGURATIONS, Report, explore

__all__ = ["Caught", "Proof", "catch_mutants", "figures", "prove"]

SHARDS = 8
# `RunWriters` is Spark's job, of which each attempt is a step; `Pause` is the driver's own.
STEPS = frozenset(each.__name__ for each in get_args(Effect)) - {"RunWriters", "Pause"}
STEPS |= {"RunAttempt", "PlanBatch", "CommitBatch"}
INSIDE = frozenset({"RunAttempt", "Merge", "Commit", "Abort"})
Progress = Callable[[int, int, str], None]
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
        """Every crash point, branch and fault that was not reached once: then the proof shows less than it says."""
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

    @property
    def holds(self) -> bool:
        return not self.violated and not self.never()


@dataclass(frozen=True)
class Caught:
    """What became of a mutant: which invariants it broke, after how many schedules. None: it survived."""

    mutant: str
    schedules: int
    invariants: tuple[str, ...]
    points: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        return not self.invariants


def prove(bound: Bound = DEFAULT, processes: int | None = None, progress: Progress = lambda *_: None) -> Proof:
    """Run everything within the bound. `progress` is told how many of how many parts are done, and what was struck."""
    proof = Proof(bound.name, {name: Report() for name in CONFIGURATIONS})
    proof.branches.update(dict.fromkeys(_counted_subject().branches, 0))
    parts = [(name, bound.name, shard) for shard in range(SHARDS) for name in CONFIGURATIONS]
    with _pool(processes) as pool:
        waiting = [pool.submit(_explore_part, *part) for part in parts]
        for done, future in enumerate(as_completed(waiting), start=1):
            name, report, counts = future.result()
            proof.reports[name].add(report)
            for branch, count in zip(_counted_subject().branches, counts, strict=True):
                proof.branches[branch] += count
            progress(done, len(parts), f"{proof.schedules:,} schedules, the last of {name}")
    return proof


def catch_mutants(
    mutants: Sequence[Mutant] = (*MUTANTS, *MODEL_MUTANTS),
    processes: int | None = None,
    progress: Progress = lambda *_: None,
) -> list[Caught]:
    """Try each mutant until something breaks, at most to the end of the default bound."""
    with _pool(processes) as pool:
        waiting = [pool.submit(_try_mutant, mutant) for mutant in mutants]
        for done, future in enumerate(as_completed(waiting), start=1):
            progress(done, len(mutants), f"mutants, the last {future.result().mutant}")
        return [future.result() for future in waiting]


def figures(proof: Proof, caught: Sequence[Caught]) -> str:
    """What a proof shows, as the table of docs/guarantee.md."""
    of_models = {mutant.name for mutant in MODEL_MUTANTS}
    production = [mutant for mutant in caught if mutant.mutant not in of_models]
    models = [mutant for mutant in caught if mutant.mutant in of_models]
    rows = {
        "pipelines": len(proof.reports),
        "schedules": f"{proof.schedules:,}",
        "violations of any invariant": proof.violated.total(),
        "branches of protocol and recovery": len(proof.branches),
        "of these reached by unit tests alone": sum(map(_is_unit_tested, proof.unvisited())),
        "crash points, faults and branches never reached": len(proof.never()),
        "mutants of protocol and recovery caught": _caught(production),
        "mutants of the models caught": _caught(models),
    }
    return "\n".join(
        ["| counted | in the last run |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _is_unit_tested(branch: Branch) -> bool:
    return any(branch.function == function and branch.text.startswith(text) for function, text in BY_UNIT_TESTS)


def _caught(mutants: Sequence[Caught]) -> str:
    return f"{sum(not mutant.survived for mutant in mutants)} of {len(mutants)}"


@contextmanager
def _pool(processes: int | None) -> Iterator[ProcessPoolExecutor]:
    """One that is left with what it is at: a run that is interrupted does not go on with all the rest."""
    pool = ProcessPoolExecutor(processes or os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _counted_subject() -> Subject:
    return load(counted=True)


def _explore_part(name: str, bound: str, shard: int) -> tuple[str, Report, list[int]]:
    subject = _counted_subject()
    before = list(subject.counts)
    gc.set_threshold(20_000, 20, 20)  # worlds are many and small
    report = explore(CONFIGURATIONS[name], BOUNDS[bound], subject, (shard, SHARDS))
    return name, report, [now - then for now, then in zip(subject.counts, before, strict=True)]


def _try_mutant(mutant: Mutant) -> Caught:
    subject, schedules = load(*mutant.patches), 0
    for bound, only in ((ONE_FAULT, frozenset(Fault)), (DEFAULT, mutant.first)):
        for name in mutant.configurations:
            start = CONFIGURATIONS[name]
            report = explore(start, bound, subject, only=only, is_enough=lambda report: bool(report.violated))
            schedules += report.schedules
            if report.failures:
                failure = report.failures[0]
                return Caught(mutant.name, schedules, failure.invariants, failure.points)
    return Caught(mutant.name, schedules, ())
