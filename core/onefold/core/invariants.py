"""The named invariants of exactly-once, each a small class over plain evidence.

The simulator, the audits of real servers and `onefold verify` use the same ones: they differ in where the evidence
comes from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol

from onefold.core.contract import Committable, EpochRecord, EpochState, LedgerEntry, SinkKind
from onefold.core.positions import Positions, Relation

SAMPLES_MAX = 5
ADOPTED = "adopted"  # the query id of an epoch that a store took over from a destination's ledger: a chain starts anew
DECIDED = (EpochState.DECIDED, EpochState.COMPLETE)
UNRESOLVED = (EpochState.OPEN, EpochState.DECIDED)


@dataclass(frozen=True, slots=True)
class Transition:
    """An epoch entered a state."""

    epoch: int
    state: EpochState


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the generation that made it, and the newest generation at that moment."""

    epoch: int
    generation: int
    newest_generation: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What a reader saw of one epoch at one moment: some of its rows, all, or none."""

    sink: str
    epoch: int
    rows: int
    rows_whole: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of one destination, counted by what is wrong with them, with a few keys of each kind.

    `expected` counts the records at or below the completed position, or the rows that they leave in a table of
    versions; `unexpected` counts rows that come from none of them. `dead` counts dead letters; in an append each stands
    for one row. `untold` counts rows that can no longer be judged, and `notes` say why. `partitions` has the same by
    partition, where the destination has partitions.
    """

    expected: int
    actual: int
    lost: int
    duplicated: int
    changed: int
    unexpected: int
    dead: int = 0
    untold: int = 0
    notes: tuple[str, ...] = ()
    samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a pipeline that is at rest. A field that was not observed is empty, and is not judged.

    `due` are the source records at or below the completed position; `decided` those at or below the decided one
    (None if unknown). `shown` tells how many times each record is reflected in each sink. Where source and destination
    are too big for that, `compared` has the outcome of comparing them. `committed` are the parts that the sinks show
    as committed, of the epochs from `committed_from` on.
    """

    due: frozenset[Hashable] = frozenset()
    shown: Mapping[str, Mapping[Hashable, int]] = field(default_factory=dict)
    decided: frozenset[Hashable] | None = None
    compared: Mapping[str, Comparison] = field(default_factory=dict)
    initial: Positions | None = None
    epochs: tuple[EpochRecord, ...] = ()
    leftovers: tuple[Committable, ...] = ()
    committed: tuple[Committable, ...] | None = None
    committed_from: int = 0
    ledgers: Mapping[str, LedgerEntry] = field(default_factory=dict)
    store_id: str | None = None
    transitions: tuple[Transition, ...] = ()
    decisions: tuple[Decision, ...] = ()
    observations: tuple[Observation, ...] = ()
    write_through: frozenset[str] = frozenset()  # the sinks whose rows show before they are decided


class Invariant(Protocol):
    name: ClassVar[str]

    def violations(self, evidence: Evidence) -> list[str]:
        """The contradictions to the invariant, one sentence each; none if it holds."""
        ...


class NoLoss:
    """Every record at or below the completed position is reflected in the destination."""

    name: ClassVar[str] = "no-loss"

    def violations(self, evidence: Evidence) -> list[str]:
        compared = _compared(evidence).items()
        found = [f"{sink} lacks {c.lost} records{_samples(c, 'lost')}" for sink, c in compared if c.lost]
        return found + [
            f"{sink} shows {c.changed} records with other values{_samples(c, 'changed')}"
            for sink, c in compared
            if c.changed
        ]


class NoDuplicate:
    """No record is reflected twice."""

    name: ClassVar[str] = "no-duplicate"

    def violations(self, evidence: Evidence) -> list[str]:
        return [
            f"{sink} shows {c.duplicated} records more than once{_samples(c, 'duplicated')}"
            for sink, c in _compared(evidence).items()
            if c.duplicated
        ]


class UnbrokenChain:
    """The start of every epoch is the end of the one before; completed epochs cover the source without gap.

    An adopted epoch stands for all that a destination had of another store's epochs: the chain starts anew there. The
    ledgers stand where the last completed epoch ends.
    """

    name: ClassVar[str] = "chain"

    def violations(self, evidence: Evidence) -> list[str]:
        links = sorted((r for r in evidence.epochs if r.state in DECIDED), key=lambda r: r.epoch)
        found = [
            f"epoch {after.epoch} does not start where epoch {before.epoch} ended:"
            f" {after.range.start.differences(before.range.end)}"
            for before, after in pairwise(links)
            if after.range.start.relation_to(before.range.end) is not Relation.SAME and after.query_id != ADOPTED
        ]
        if links and evidence.initial is not None:
            first = links[0].range.start
            if first.relation_to(evidence.initial) is not Relation.SAME:
                found.append(f"the first epoch starts elsewhere: {first.differences(evidence.initial)}")
        found += [
            f"the epochs' times do not grow: {before.timestamp_ms} of epoch {before.epoch}, then {after.timestamp_ms}"
            for before, after in pairwise(links)
            if before.timestamp_ms >= after.timestamp_ms and after.query_id != ADOPTED
        ]
        return found + [
            text for sink, ledger in evidence.ledgers.items() for text in self._ledger(evidence, sink, ledger)
        ]

    def _ledger(self, evidence: Evidence, sink: str, ledger: LedgerEntry) -> list[str]:
        if evidence.store_id is not None and ledger.store_id not in ("", evidence.store_id):
            return [f"{sink}'s ledger belongs to checkpoint store {ledger.store_id}, this store is {evidence.store_id}"]
        complete = [r for r in evidence.epochs if r.state is EpochState.COMPLETE]
        last = max(complete, key=lambda r: r.epoch, default=None)
        if last is None and ledger.epoch == 0:
            return []
        if last is None or ledger.epoch != last.epoch:
            stands = f"stands at epoch {ledger.epoch}" if ledger.epoch else "is gone, or has no epoch"
            return [f"{sink}'s ledger {stands}, the store at {last.epoch if last else 'none'}"]
        if ledger.positions.relation_to(last.range.end) is not Relation.SAME:
            differences = ledger.positions.differences(last.range.end)
            return [f"the positions in {sink}'s ledger are not epoch {last.epoch}'s end: {differences}"]
        return []


class ResolveOnce:
    """An epoch is decided once; a decided one is committed in every sink, never partly for good."""

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
        found += [f"epoch {r.epoch} was left {r.state.value}" for r in evidence.epochs if r.state in UNRESOLVED]
        found += [
            f"epoch {r.epoch} is damaged: decided, and a part of it can no longer be committed"
            for r in evidence.epochs
            if r.state is EpochState.DAMAGED
        ]
        return found + self._partly(evidence)

    def _partly(self, evidence: Evidence) -> list[str]:
        if evidence.committed is None or not evidence.epochs:
            return []
        oldest = max(min(r.epoch for r in evidence.epochs), evidence.committed_from)
        decided = [r for r in evidence.epochs if r.state in DECIDED and r.epoch >= oldest]
        named = {(c.sink, c.handle) for r in decided for c in r.manifest if c.kind is not SinkKind.WRITE_THROUGH}
        there = {(c.sink, c.handle) for c in evidence.committed}
        stray = {(c.sink, c.handle) for c in evidence.committed if c.epoch >= oldest} - named
        found = [f"{sink} committed {handle}, which no decided manifest names" for sink, handle in sorted(stray)]
        return found + [f"{sink} never committed {handle}, which was decided" for sink, handle in sorted(named - there)]


class FencedNeverDecides:
    """Once a newer generation exists no older one decides, and nothing undecided is visible in a transactional sink.

    An epoch has the generation that opened it, and only that one can decide it.
    """

    name: ClassVar[str] = "fenced-never-decides"

    def violations(self, evidence: Evidence) -> list[str]:
        found = [
            f"generation {d.generation} decided epoch {d.epoch} beside generation {d.newest_generation}"
            for d in evidence.decisions
            if d.generation != d.newest_generation
        ]
        newest = 0
        for record in sorted(evidence.epochs, key=lambda r: r.epoch):
            if record.state in DECIDED and record.generation < newest:
                found.append(f"generation {record.generation} decided epoch {record.epoch} after generation {newest}")
            newest = max(newest, record.generation)
        return found + [
            f"{sink} shows {c.unexpected} records that were never decided{_samples(c, 'unexpected')}"
            for sink, c in _compared(evidence).items()
            if c.unexpected and sink not in evidence.write_through
        ]


class NothingInDoubt:
    """No prepared or open transaction and no stage row outlives recovery plus one sweep."""

    name: ClassVar[str] = "nothing-in-doubt"

    def violations(self, evidence: Evidence) -> list[str]:
        return [f"{c.sink} still holds {c.handle} of epoch {c.epoch}" for c in evidence.leftovers]


class AtomicEpoch:
    """A reader never sees part of an epoch. Only for observations of sinks that promise it."""

    name: ClassVar[str] = "atomic-epoch"

    def violations(self, evidence: Evidence) -> list[str]:
        return [
            f"a reader of {g.sink} saw {g.rows} of {g.rows_whole} rows of epoch {g.epoch}"
            for g in evidence.observations
            if 0 < g.rows < g.rows_whole
        ]


INVARIANTS: tuple[Invariant, ...] = (
    NoLoss(),
    NoDuplicate(),
    UnbrokenChain(),
    ResolveOnce(),
    FencedNeverDecides(),
    NothingInDoubt(),
    AtomicEpoch(),
)


def verdicts(evidence: Evidence, invariants: Iterable[Invariant] = INVARIANTS) -> dict[str, tuple[str, ...]]:
    """What contradicts each invariant, by its name; nothing where it holds."""
    return {invariant.name: tuple(invariant.violations(evidence)) for invariant in invariants}


def violations(evidence: Evidence, invariants: Iterable[Invariant] = INVARIANTS) -> list[str]:
    """Everything that contradicts the invariants, each led by its name."""
    return [f"{name}: {text}" for name, texts in verdicts(evidence, invariants).items() for text in texts]


def _compared(evidence: Evidence) -> dict[str, Comparison]:
    return {sink: _compare(evidence, shown) for sink, shown in evidence.shown.items()} | dict(evidence.compared)


def _compare(evidence: Evidence, shown: Mapping[Hashable, int]) -> Comparison:
    lost = evidence.due - shown.keys()
    twice = [record for record, times in shown.items() if times > 1]
    unexpected = shown.keys() - evidence.decided if evidence.decided is not None else frozenset()
    samples = {"lost": lost, "duplicated": twice, "unexpected": unexpected}
    return Comparison(
        expected=len(evidence.due),
        actual=sum(shown.values()),
        lost=len(lost),
        duplicated=len(twice),
        changed=0,
        unexpected=len(unexpected),
        samples={kind: sorted(map(str, records)) for kind, records in samples.items()},
    )


def _samples(comparison: Comparison, kind: str) -> str:
    names = comparison.samples.get(kind, ())
    some = "; ".join(names[:SAMPLES_MAX]) + ("; ..." if getattr(comparison, kind) > SAMPLES_MAX else "")
    return f": {some}" if names else ""
