"""What differs between the kinds of sinks: how an epoch is decided, and what else is to be checked.

A further kind is one more module with an `StoredEpochs` and a `SubjectKind`, and a line in `KINDS` of sinks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from onefold.core.contract import Decided, EpochRecord, LedgerEntry
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.workbench import SinkTarget, Work, Workbench


class StoredEpochs(Protocol):
    """A pipeline's epochs, as its checkpoint store has them."""

    def open(self) -> EpochRecord:
        """The next one, open."""
        ...

    def entry(self, record: EpochRecord) -> LedgerEntry:
        """Its ledger row."""
        ...

    def decide(self, record: EpochRecord, works: Sequence[Work]) -> Decided:
        """Its commit point, with all that this kind of sink does there."""
        ...

    def complete(self, decided: Decided) -> None:
        """It is over: the next one may open."""
        ...


def finish(bench: Workbench, epochs: StoredEpochs, record: EpochRecord, works: Sequence[Work]) -> None:
    """An epoch from its decision to its end. Its rows are wanted from here on."""
    decided = epochs.decide(record, works)
    bench.retry(lambda: bench.committer.commit(decided, [w.committable for w in works]))
    bench.retry(lambda: bench.committer.write_ledger(epochs.entry(record)))
    epochs.complete(decided)
    bench.wanted.update(i for work in works for i in work.ids)


@dataclass(frozen=True, slots=True)
class SubjectKind:
    """`epochs(bench, generation)` begins a pipeline's life under at least that generation, which the bench then has.

    `shows_on_decide`: the decision itself makes the rows visible, and commit only tidies up. `promises` are this kind's
    own, `besides` those of every other sink that it does not make. Unless `is_transactional`, `checks` are all.
    """

    epochs: Callable[[Workbench, int], StoredEpochs]
    expect_guarantee: Callable[[CheckedPromise, Workbench], None]
    shows_on_decide: bool
    checks: tuple[Callable[[SinkSubject], None], ...]
    promises: frozenset[Promise]
    besides: frozenset[Promise] = frozenset()
    is_transactional: bool = True


@dataclass(frozen=True, slots=True)
class SinkSubject(SinkTarget):
    """The sink under test, by its kind."""

    kind: SubjectKind


Check = Callable[[SinkSubject], None]
