"""The proof of the engine's subtasks: flows with the protocol, in other orders and struck at every point, and mutants.

It is spread over processes as the protocol's is, whose table has its figures, too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from onefold.core.contract import SinkKind
from onefold.core.testing.proof.prove import OF_MODELS, OF_PROTOCOL, Caught, Progress, Proof, Try, spread
from onefold.engine.testing.ack_world import ACK, DOUBLED, MUTANTS_OF_ACK, ROOTS_FAIL
from onefold.engine.testing.flow_jobs import DEFAULT_JOB, IN_TIME, OVERTAKING, RULES, STAGES, WINDOWS_IN_TIME
from onefold.engine.testing.flow_world import LATE_WORK_LANDS, STRIKES, WORKERS_RUN_ON
from onefold.engine.testing.mutants import EARLY, END, MUTANTS, OF_ORDER, OF_TIME, SESSIONS, SILENCE, WINDOWS
from onefold.engine.testing.overtaking_mutants import OF_OVERTAKING
from onefold.engine.testing.schedules import Explored, explore, explore_to_failure, sample
from onefold.engine.testing.transaction_mutants import MUTANTS_OF_TRANSACTION
from onefold.engine.testing.transaction_world import OF_HOPS, TRANSACTION

SUBTASKS = "the engine's subtasks"
TP, LR, WT = SinkKind.TWO_PHASE, SinkKind.LAST_RESOURCE, SinkKind.WRITE_THROUGH
FLOWS = {" + ".join(kind.value for kind in kinds): (kinds, DEFAULT_JOB) for kinds in ((TP,), (LR,), (WT,), (TP, WT))}
_TIMED = ((TP, END), (WT, SILENCE), (WT, WINDOWS), (WT, EARLY), (TP, SESSIONS))
_ALIGNMENTS = ((TP, OVERTAKING), (TP, RULES), (TP, STAGES), (TP, IN_TIME), (TP, WINDOWS_IN_TIME))
_OTHERS = ((TP, ACK), (LR, ACK), (TP, TRANSACTION))
FLOWS |= {f"{kind.value}, {job}": ((kind,), job) for kind, job in (*_TIMED, *_ALIGNMENTS, *_OTHERS)}
HAPPENINGS = (*sorted(STRIKES), WORKERS_RUN_ON, LATE_WORK_LANDS, ROOTS_FAIL, DOUBLED, *OF_HOPS)
OF_JOBS = {**{name: (subject, DEFAULT_JOB) for name, subject in MUTANTS.items()}, **OF_TIME, **OF_OVERTAKING}
OF_JOBS |= {name: (subject, ACK) for name, subject in MUTANTS_OF_ACK.items()}
OF_JOBS |= {name: (subject, TRANSACTION) for name, subject in MUTANTS_OF_TRANSACTION.items()}
SHARDS, SAMPLES = 4, 40  # of each flow; as many samples in each shard as it takes
DEEP_SAMPLES, DEEP_WITHIN = 400, 4  # a second deviation, so many points after the first


@dataclass
class FlowProof:
    """What was run, and what it says."""

    reports: dict[str, Explored] = field(default_factory=lambda: {name: Explored() for name in FLOWS})

    @property
    def schedules(self) -> int:
        return sum(report.schedules for report in self.reports.values())

    @property
    def violated(self) -> Counter[str]:
        """How many schedules broke each invariant."""
        return sum((report.violated for report in self.reports.values()), Counter())

    @property
    def taken(self) -> Counter[str]:
        """How often each thing happened in the place of what comes first."""
        return sum((report.taken for report in self.reports.values()), Counter())

    def never(self) -> list[str]:
        """What happened in no schedule."""
        return [f"never in a flow: {name}" for name in HAPPENINGS if not self.taken[name]]

    @property
    def holds(self) -> bool:
        return not self.violated and not self.never()


def prove_flows(deep: bool = False, processes: int | None = None, progress: Progress = lambda *_: None) -> FlowProof:
    """Every flow with another order or a strike at each point, and samples with any order; with `deep`, two of them
    near each other, and ten times the samples."""
    proof = FlowProof()
    parts = [partial(_explore_part, name, deep, shard) for shard in range(SHARDS) for name in FLOWS]
    for done, (name, report) in enumerate(spread(parts, processes), start=1):
        proof.reports[name].add(report)
        progress(done, len(parts), f"{proof.schedules:,} schedules of flows, the last of {name}")
    return proof


def mutants_of_subtasks() -> list[Try]:
    """To be tried beside those of the protocol."""
    return [*(partial(_try, name) for name in OF_JOBS), *(partial(_try_sampled, name) for name in OF_ORDER)]


def figures(proof: Proof, flows: FlowProof, caught: Sequence[Caught]) -> str:
    """What both proofs show, as the table of docs/guarantee.md."""
    rows = {
        "pipelines": len(proof.reports),
        "schedules": f"{proof.schedules:,}",
        "flows on the engine": len(flows.reports),
        "schedules of these": f"{flows.schedules:,}",
        "violations of any invariant": proof.violated.total() + flows.violated.total(),
        "branches of protocol and recovery": len(proof.branches),
        "of these reached by unit tests alone": len(proof.by_unit_tests()),
        "crash points, faults and branches never reached": len(proof.never()) + len(flows.never()),
        "mutants of protocol and recovery caught": _caught(caught, OF_PROTOCOL),
        "mutants of the models caught": _caught(caught, OF_MODELS),
        f"mutants of {SUBTASKS} caught": _caught(caught, SUBTASKS),
    }
    return "\n".join(
        ["| counted | in the last run |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _caught(caught: Sequence[Caught], of: str) -> str:
    mutants = [each for each in caught if each.of == of]
    return f"{sum(not mutant.survived for mutant in mutants)} of {len(mutants)}"


def _explore_part(name: str, deep: bool, shard: int) -> tuple[str, Explored]:
    _say_nothing()
    kinds, job = FLOWS[name]
    report = explore(kinds, 2 if deep else 1, job=job, within=DEEP_WITHIN, shard=(shard, SHARDS))
    for seed in range(shard, DEEP_SAMPLES if deep else SAMPLES, SHARDS):
        report.count(kinds, sample(kinds, seed, job=job))
    return name, report


def _try(name: str) -> Caught:
    _say_nothing()
    subject, job = OF_JOBS[name]
    return _as_caught(name, explore_to_failure((TP,), subject, job))


def _try_sampled(name: str) -> Caught:
    _say_nothing()
    report = Explored()
    kind, subject, job = OF_ORDER[name]
    for seed in range(SAMPLES):
        report.count((kind,), sample((kind,), seed, subject, job))
        if report.failed:
            break
    return _as_caught(name, report)


def _as_caught(name: str, report: Explored) -> Caught:
    failed = report.failed[0] if report.failed else None
    return Caught(
        SUBTASKS, name, report.schedules, failed.invariants if failed else (), failed.points if failed else ()
    )


def _say_nothing() -> None:
    """Workers that start again are no news here."""
    logging.getLogger("onefold").setLevel(logging.ERROR)
