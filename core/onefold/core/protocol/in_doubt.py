"""Resolves prepared work that is in doubt without taking its pipeline over: after a dead driver, or beside a live one.

    COMMIT     a decided epoch's manifest names it
    ROLL_BACK  no manifest names it, and none ever will: its generation or its epoch is over
    LEAVE      its epoch runs in the newest generation, and may be decided at any moment
    UNKNOWN    this store knows nothing of it

The first two stay true after the survey: a decision is final, and the compare-and-set of Decide refuses a generation
that is over. LEAVE ends with that epoch, or with a new generation, which `protocol.start` acquires. Nothing here
repeats or waits: the caller gets the errors.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onefold.core.contract import Committable, Decided, EpochState, Generation, LedgerEntry
from onefold.core.errors import Retriable
from onefold.core.protocol.binding import is_foreign, of_another_store
from onefold.core.protocol.effects import Abort, Commit, ListLeftovers, Protocol, ReadLedger, ReadStore, StoreFacts
from onefold.core.protocol.recovery import check_ledger, orphans

EVERY_GENERATION = 2**62
LOOKS_MAX = 5


class Fate(enum.Enum):
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    LEAVE = "leave alone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Survey:
    """The prepared work in a pipeline's sinks, the fate of each part, and the facts that decide it."""

    facts: StoreFacts
    ledgers: Mapping[str, LedgerEntry | None]
    fates: Mapping[Committable, Fate]

    def of(self, fate: Fate) -> tuple[Committable, ...]:
        return tuple(committable for committable, its in self.fates.items() if its is fate)

    @property
    def is_proven(self) -> bool:
        """Whether some sink's own ledger says that this store is its store: before a first commit none can."""
        return any(entry is not None for entry in self.ledgers.values())


def fates(facts: StoreFacts, listed: Iterable[Committable]) -> dict[Committable, Fate]:
    """`listed` must have been read before `facts`, as for a sweep; and what a sweep removes is what is rolled back."""
    listed = tuple(listed)
    known = tuple(c for c in listed if c.generation <= facts.generation)
    newest = Generation("", facts.generation, "")  # only its number counts here
    condemned = set(orphans(facts, newest, known))
    decided = {(c.sink, c.handle) for r in facts.unfinished if r.state is EpochState.DECIDED for c in r.manifest}

    def fate(committable: Committable) -> Fate:
        if committable.generation > facts.generation:
            return Fate.UNKNOWN
        if (committable.sink, committable.handle) in decided:
            return Fate.COMMIT
        return Fate.ROLL_BACK if committable in condemned else Fate.LEAVE

    return {committable: fate(committable) for committable in listed}


def survey(sinks: tuple[str, ...]) -> Protocol[Survey]:
    """Look, and change nothing. Raises what a start raises where the store and the sinks' ledgers don't agree."""
    listed: list[Committable] = []
    for sink in sinks:
        listed += yield ListLeftovers(sink, EVERY_GENERATION)
    facts: StoreFacts = yield ReadStore()
    for _ in range(LOOKS_MAX):
        ledgers: dict[str, LedgerEntry | None] = {}
        for sink in sinks:
            ledgers[sink] = yield ReadLedger(sink)
        before, facts = facts, (yield ReadStore())
        if facts == before:
            break
    else:
        raise Retriable(
            "pipeline-at-work",
            "the pipeline is at work: it went on each time that its store and its ledgers were compared",
        )
    for sink, ledger in ledgers.items():
        _check(facts, sink, ledger)
    return Survey(facts, ledgers, fates(facts, listed))


def resolve(found: Survey, chosen: Callable[[Committable], bool]) -> Protocol[dict[Committable, Fate]]:
    """Commit and roll back, of what is chosen, what the survey says; a decided one with all of its epoch in that sink.

    Returns what is resolved, and how. The epoch itself is completed by the pipeline's own next start.
    """
    done: dict[Committable, Fate] = {}
    for record in found.facts.unfinished:
        named = {(c.sink, c.handle) for c in record.manifest}
        theirs = [c for c in found.of(Fate.COMMIT) if (c.sink, c.handle) in named]
        for sink in dict.fromkeys(c.sink for c in theirs if chosen(c)):
            yield Commit(sink, Decided(record))
            done |= {c: Fate.COMMIT for c in theirs if c.sink == sink}
    for sink in found.ledgers:
        condemned = tuple(c for c in found.of(Fate.ROLL_BACK) if c.sink == sink and chosen(c))
        if condemned:
            yield Abort(sink, condemned)
            done |= dict.fromkeys(condemned, Fate.ROLL_BACK)
    return done


def _check(facts: StoreFacts, sink: str, ledger: LedgerEntry | None) -> None:
    if facts.complete is None or sink in facts.complete.sinks:
        check_ledger(facts, sink, ledger)
    elif ledger is not None and is_foreign(ledger, facts.store_id):
        raise of_another_store(sink, ledger, facts.store_id)
