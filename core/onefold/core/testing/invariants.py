"""The named invariants of exactly-once, each a small class over plain evidence.

The simulator, the audits of real servers and `onefold verify` can use the same ones: they differ in where the evidence
comes from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

from onefold.core.contract import Committable, EpochRecord, EpochState, SinkKind
from onefold.core.positions import Positions, Relation

__all__ = [
    "INVARIANTS",
    "AtomicEpoch",
    "Chain",
    "Decision",
    "Evidence",
    "FencedNeverDecides",
    "Glimpse",
    "Invariant",
    "NoDuplicate",
    "NoLoss",
    "NothingInDoubt",
    "ResolveOnce",
    "Transition",
    "violations",
]

SAMPLES_MAX = 5
DECIDED = (EpochState.DECIDED, EpochState.COMPLETE)


@dataclass(frozen=True, slots=True)
class Transition:
    """An epoch entered a state."""

    epoch: int
    state: EpochState


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that was made: by which generation, and which was the newest one then."""

    epoch: int
    generation: int
    newest_generation: int


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What a reader saw of one epoch at some moment: so many rows of all that it has."""

    sink: str
    epoch: int
    rows: int
    rows_whole: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a pipeline that has come to rest. What nobody watched stays empty, and is then not judged.

    `due` are the source records at or below the completed position; `decided` those at or below the decided one
    (None if unknown). `shown` tells how many times each record is reflected in each sink.
    """

    due: frozenset[Hashable]
    shown: Mapping[str, Mapping[Hashable, int]]
    decided: frozenset[Hashable] | None = None
    initial: Positions | None = None
    epochs: tuple[EpochRecord, ...] = ()
    leftovers: tuple[Committable, ...] = ()
    committed: tuple[Committable, ...] | None = None
    transitions: tuple[Transition, ...] = ()
    decisions: tuple[Decision, ...] = ()
    glimpses: tuple[Glimpse, ...] = ()
    write_through: frozenset[str] = frozenset()  # the sinks whose rows show before they are decided


class Invariant(Protocol):
    name: ClassVar[str]

    def violations(self, evidence: Evidence) -> list[str]:
        """What contradicts the invariant, one sentence each; none if it holds."""
        ...


class NoLoss:
    """Every record at or below the completed position is reflected in the destination."""

    name: ClassVar[str] = "no-loss"

    def violations(self, evidence: Evidence) -> list[str]:
        missing = {sink: evidence.due - shown.keys() for sink, shown in evidence.shown.items()}
        return [f"{sink} lacks {len(lost)} records: {_some(lost)}" for sink, lost in missing.items() if lost]


class NoDuplicate:
    """No record is reflected twice."""

    name: ClassVar[str] = "no-duplicate"

    def violations(self, evidence: Evidence) -> list[str]:
        twice = {sink: [r for r, times in shown.items() if times > 1] for sink, shown in evidence.shown.items()}
        return [
            f"{sink} shows {len(many)} records more than once: {_some(many)}" for sink, many in twice.items() if many
        ]


class Chain:
    """The start of every epoch is the end of the one before; completed epochs cover the source without gap."""

    name: ClassVar[str] = "chain"

    def violations(self, evidence: Evidence) -> list[str]:
        links = sorted((r for r in evidence.epochs if r.state in DECIDED), key=lambda r: r.epoch)
        found = [
            f"epoch {after.epoch} does not start where epoch {before.epoch} ended:"
            f" {after.range.start.differences(before.range.end)}"
            for before, after in pairwise(links)
            if after.range.start.relation_to(before.range.end) is not Relation.SAME
        ]
        if links and evidence.initial is not None:
            first = links[0].range.start
            if first.relation_to(evidence.initial) is not Relation.SAME:
                found.append(f"the first epoch starts elsewhere: {first.differences(evidence.initial)}")
        if any(a.timestamp_ms >= b.timestamp_ms for a, b in pairwise(links)):
            found.append(f"the epochs' times do not grow: {[r.timestamp_ms for r in links]}")
        return found


class ResolveOnce:
    """An epoch is decided or given up, never both; a decided one is committed in every sink, never partly for good."""

    name: ClassVar[str] = "resolve-once"

    def violations(self, evidence: Evidence) -> list[str]:
        entered: dict[EpochState, list[int]] = {}
        damaged: set[int] = set()  # accepting the damage decides once more
        for transition in evidence.transitions:
            if transition.state is EpochState.DAMAGED:
                damaged.add(transition.epoch)
            elif not (transition.state is EpochState.DECIDED and transition.epoch in damaged):
                entered.setdefault(transition.state, []).append(transition.epoch)
        decided, given_up = entered.get(EpochState.DECIDED, []), entered.get(EpochState.GIVEN_UP, [])
        found = [f"epoch {e} was both decided and given up" for e in sorted({*decided} & {*given_up})]
        found += [f"epoch {e} was decided twice" for e in sorted({e for e in decided if decided.count(e) > 1})]
        found += [f"epoch {r.epoch} was left {r.state.value}" for r in evidence.epochs if r.state in _UNRESOLVED]
        return found + self._partly(evidence)

    def _partly(self, evidence: Evidence) -> list[str]:
        if evidence.committed is None or not evidence.epochs:
            return []
        oldest = min(r.epoch for r in evidence.epochs)
        named = {
            (c.sink, c.handle)
            for r in evidence.epochs
            if r.state in DECIDED
            for c in r.manifest
            if c.kind is not SinkKind.WRITE_THROUGH
        }
        there = {(c.sink, c.handle) for c in evidence.committed}
        stray = {(c.sink, c.handle) for c in evidence.committed if c.epoch >= oldest} - named
        found = [f"{sink} committed {handle}, which no decided manifest names" for sink, handle in sorted(stray)]
        return found + [f"{sink} never committed {handle}, which was decided" for sink, handle in sorted(named - there)]


class FencedNeverDecides:
    """Once a newer generation exists no older one decides, and nothing undecided is visible in a transactional sink."""

    name: ClassVar[str] = "fenced-never-decides"

    def violations(self, evidence: Evidence) -> list[str]:
        found = [
            f"generation {d.generation} decided epoch {d.epoch} beside generation {d.newest_generation}"
            for d in evidence.decisions
            if d.generation != d.newest_generation
        ]
        if evidence.decided is not None:
            for sink, shown in evidence.shown.items():
                if sink in evidence.write_through:
                    continue
                undecided = shown.keys() - evidence.decided
                if undecided:
                    found.append(f"{sink} shows {len(undecided)} records that were never decided: {_some(undecided)}")
        return found


class NothingInDoubt:
    """No prepared or open transaction and no stage row outlives recovery plus one sweep."""

    name: ClassVar[str] = "nothing-in-doubt"

    def violations(self, evidence: Evidence) -> list[str]:
        return [f"{c.sink} still holds {c.handle} of epoch {c.epoch}" for c in evidence.leftovers]


class AtomicEpoch:
    """A reader never sees part of an epoch. Only for glimpses of sinks that promise it."""

    name: ClassVar[str] = "atomic-epoch"

    def violations(self, evidence: Evidence) -> list[str]:
        return [
            f"a reader of {g.sink} saw {g.rows} of {g.rows_whole} rows of epoch {g.epoch}"
            for g in evidence.glimpses
            if 0 < g.rows < g.rows_whole
        ]


_UNRESOLVED = (EpochState.OPEN, EpochState.DECIDED)

INVARIANTS: tuple[Invariant, ...] = (
    NoLoss(),
    NoDuplicate(),
    Chain(),
    ResolveOnce(),
    FencedNeverDecides(),
    NothingInDoubt(),
    AtomicEpoch(),
)


def violations(evidence: Evidence, invariants: Iterable[Invariant] = INVARIANTS) -> list[str]:
    """Everything that contradicts the invariants, each led by its name."""
    return [f"{invariant.name}: {text}" for invariant in invariants for text in invariant.violations(evidence)]


def _some(records: Iterable[Hashable]) -> str:
    names = sorted(map(str, records))
    return ", ".join(names[:SAMPLES_MAX]) + (", ..." if len(names) > SAMPLES_MAX else "")
