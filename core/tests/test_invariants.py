"""Each invariant holds on good evidence and names what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold.core import Committable, EpochRecord, EpochState, LedgerEntry, Positions, Range, SinkKind
from onefold.core.invariants import (
    ADOPTED,
    INVARIANTS,
    Comparison,
    Decision,
    Evidence,
    Observation,
    Transition,
    verdicts,
    violations,
)


def work(handle: str, epoch: int) -> Committable:
    return Committable("s", SinkKind.TWO_PHASE, handle, 1, epoch, 1)


def epoch(number: int, start: int, end: int, state: EpochState = EpochState.COMPLETE) -> EpochRecord:
    span = Range(Positions.of({"t/0": start}), Positions.of({"t/0": end}))
    manifest = (work(f"w{number}", number),)
    return EpochRecord("p", number, 1, state, span, number, "q", number, "job", manifest, ("s",))


def ledger(number: int, end: int, store: str = "store") -> LedgerEntry:
    return LedgerEntry(number, 1, number, Positions.of({"t/0": end}), store)


SAME = Comparison(expected=4, actual=4, lost=0, duplicated=0, changed=0, unexpected=0)
GOOD = Evidence(
    due=frozenset("abcd"),
    decided=frozenset("abcd"),
    shown={"s": dict.fromkeys("abcd", 1)},
    compared={"big": SAME},
    ledgers={"s": ledger(3, 4)},
    store_id="store",
    initial=Positions(),
    epochs=(epoch(1, 0, 2), epoch(2, 0, 0, EpochState.GIVEN_UP), epoch(3, 2, 4)),
    committed=(work("w1", 1), work("w3", 3)),
    transitions=(
        Transition(1, EpochState.DECIDED),
        Transition(2, EpochState.GIVEN_UP),
        Transition(3, EpochState.DECIDED),
    ),
    decisions=(Decision(1, 1, 1), Decision(3, 2, 2)),
    observations=(Observation("s", 1, 0, 2), Observation("s", 1, 2, 2)),
)
BROKEN = {
    "no-loss": replace(GOOD, shown={"s": dict.fromkeys("abc", 1)}),
    "no-loss compared": replace(GOOD, compared={"big": replace(SAME, lost=1, samples={"lost": ["id=7"]})}),
    "no-loss changed": replace(GOOD, compared={"big": replace(SAME, changed=1)}),
    "no-duplicate compared": replace(GOOD, compared={"big": replace(SAME, duplicated=1)}),
    "no-duplicate": replace(GOOD, shown={"s": {**dict.fromkeys("abcd", 1), "b": 2}}),
    "chain gap": replace(GOOD, epochs=(epoch(1, 0, 2), epoch(3, 3, 4))),
    "chain store": replace(GOOD, ledgers={"s": ledger(3, 4, "another")}),
    "chain ledger behind": replace(GOOD, ledgers={"s": ledger(1, 2)}),
    "chain ledger elsewhere": replace(GOOD, ledgers={"s": ledger(3, 3)}),
    "chain start": replace(GOOD, initial=Positions.of({"t/0": 1})),
    "chain time": replace(GOOD, epochs=(epoch(1, 0, 2), replace(epoch(3, 2, 4), timestamp_ms=1))),
    "resolve-once both": replace(GOOD, transitions=(*GOOD.transitions, Transition(1, EpochState.GIVEN_UP))),
    "resolve-once twice": replace(GOOD, transitions=(*GOOD.transitions, Transition(1, EpochState.DECIDED))),
    "resolve-once unresolved": replace(GOOD, epochs=(*GOOD.epochs, epoch(4, 4, 5, EpochState.OPEN))),
    "resolve-once damaged": replace(GOOD, epochs=(*GOOD.epochs, epoch(4, 4, 5, EpochState.DAMAGED))),
    "resolve-once partly": replace(GOOD, committed=(work("w1", 1),)),
    "resolve-once stray": replace(GOOD, committed=(work("w1", 1), work("w2", 2), work("w3", 3))),
    "fenced-never-decides": replace(GOOD, decisions=(Decision(1, 1, 2),)),
    "fenced-never-decides epochs": replace(GOOD, epochs=(replace(GOOD.epochs[0], generation=2), *GOOD.epochs[1:])),
    "fenced-never-decides compared": replace(GOOD, compared={"big": replace(SAME, unexpected=1)}),
    "fenced-never-decides shown": replace(GOOD, shown={"s": dict.fromkeys("abcde", 1)}),
    "nothing-in-doubt": replace(GOOD, leftovers=(work("w4", 4),)),
    "atomic-epoch": replace(GOOD, observations=(Observation("s", 1, 1, 2),)),
}


def test_good_evidence_has_no_violation() -> None:
    assert violations(GOOD) == []


def test_what_nobody_watched_is_not_judged() -> None:
    assert violations(Evidence(due=frozenset("a"), shown={"s": {"a": 1, "later": 1}})) == []


@pytest.mark.parametrize("what", BROKEN)
def test_broken_evidence_is_found_by_its_own_invariant_alone(what: str) -> None:
    assert {text.split(":")[0] for text in violations(BROKEN[what])} == {what.split(" ")[0]}


def test_every_invariant_is_broken_once_above() -> None:
    assert {invariant.name for invariant in INVARIANTS} == {what.split(" ")[0] for what in BROKEN}


def test_an_adopted_epoch_starts_the_chain_anew() -> None:
    adopted = replace(epoch(9, 7, 7), query_id=ADOPTED, timestamp_ms=2)
    after = replace(GOOD, epochs=(*GOOD.epochs, adopted, epoch(10, 7, 8)), ledgers={"s": ledger(10, 8)}, committed=None)
    assert violations(after) == []
    assert violations(replace(after, epochs=(*after.epochs, epoch(11, 9, 9))))


def test_committed_parts_are_judged_from_the_epoch_on_that_they_are_known_of() -> None:
    pruned = replace(GOOD, committed=(work("w3", 3),))
    assert violations(pruned)
    assert violations(replace(pruned, committed_from=3)) == []
    assert violations(replace(pruned, committed=(), committed_from=3))


def test_every_invariant_has_its_verdict_and_a_comparisons_samples_stand_in_it() -> None:
    assert verdicts(GOOD) == {invariant.name: () for invariant in INVARIANTS}
    assert verdicts(BROKEN["no-loss compared"])["no-loss"] == ("big lacks 1 records: id=7",)


def test_a_write_through_sink_may_show_what_is_not_decided_yet_and_its_work_is_committed_by_nobody() -> None:
    early = replace(GOOD, shown={"s": dict.fromkeys("abcde", 1)})
    assert violations(early)
    assert violations(replace(early, write_through=frozenset("s"))) == []
    written = replace(work("w4", 4), kind=SinkKind.WRITE_THROUGH)
    last = replace(epoch(4, 4, 5), manifest=(written,))
    assert violations(replace(GOOD, epochs=(*GOOD.epochs, last), ledgers={"s": ledger(4, 5)})) == []


def test_a_damaged_epoch_that_is_accepted_is_decided_once_more_and_that_is_no_violation() -> None:
    passed = (EpochState.DAMAGED, EpochState.DECIDED)
    accepted = replace(GOOD, transitions=(*GOOD.transitions, *(Transition(3, state) for state in passed)))
    assert violations(accepted) == []
