"""Two-phase sinks: a decision is a value, and commit makes what was prepared visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onefold.core.checks import require
from onefold.core.contract import Decided, EpochRecord, EpochState, LedgerEntry, SinkKind
from onefold.core.errors import Damaged
from onefold.core.positions import Range
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, SubjectKind
from onefold.core.testing.conformance.workbench import Work, Workbench, entry_of, positions


@dataclass(slots=True)
class TwoPhaseEpochs:
    """Epochs that this object numbers: a two-phase sink knows nothing of the store."""

    bench: Workbench
    epoch: int = 0

    def open(self) -> EpochRecord:
        self.epoch += 1
        return EpochRecord(
            pipeline=self.bench.pipeline,
            epoch=self.epoch,
            generation=self.bench.generation,
            state=EpochState.OPEN,
            range=Range(positions(10 * self.epoch), positions(10 * self.epoch + 10)),
            timestamp_ms=1_700_000_000_000 + self.epoch,
            query_id="conformance",
            batch_id=self.epoch - 1,
            fingerprint="conformance",
            sinks=(self.bench.sink.name,),
        )

    def entry(self, record: EpochRecord) -> LedgerEntry:
        return entry_of(record, "conformance")

    def decide(self, record: EpochRecord, works: Sequence[Work]) -> Decided:
        manifest = tuple(work.committable for work in works)
        return Decided(replace(record, state=EpochState.DECIDED, manifest=manifest))

    def complete(self, decided: Decided) -> None:
        require(decided.record.epoch == self.epoch, (decided.record.epoch, self.epoch))


def epochs(bench: Workbench, generation: int) -> TwoPhaseEpochs:
    bench.generation = generation
    return TwoPhaseEpochs(bench)


def expect_guarantee(held: CheckedPromise, bench: Workbench) -> None:
    kind = bench.sink.guarantee().kind
    held.expect(kind is SinkKind.TWO_PHASE, "two-phase", kind)


def what_never_can_be_committed_is_damage(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    mine = epochs(bench, 1)
    record = mine.open()
    lost, whole = bench.prepare(bench.task(record.epoch)), bench.prepare(bench.task(record.epoch))
    both = [lost.committable, whole.committable]
    bench.committer.abort(both[:1])
    decided = mine.decide(record, [lost, whole])
    with subject.book.holding(Promise.COMMIT_DAMAGED, "commit") as held:
        for committer in (bench.committer, bench.elsewhere()):
            expected = "Damaged: one of the two was rolled back, and never committed"
            held.expect_raises(Damaged, lambda c=committer: c.commit(decided, both), expected)
            bench.look(held, visible=whole.ids)
        bench.committer.write_ledger(mine.entry(record))
        bench.look(held, visible=whole.ids)
    bench.sweep("commit")
    bench.close()


TWO_PHASE = SubjectKind(
    epochs=epochs,
    expect_guarantee=expect_guarantee,
    shows_on_decide=False,
    checks=(what_never_can_be_committed_is_damage,),
    promises=frozenset({Promise.COMMIT_DAMAGED}),
)
