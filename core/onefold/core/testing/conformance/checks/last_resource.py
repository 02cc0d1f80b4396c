"""Last-resource sinks: the rows move in the transaction that decides, in the store's and the sink's one database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onefold.core.checks import present
from onefold.core.contract import Committable, Decided, EpochRecord, Generation, LastResource, LedgerEntry, SinkKind
from onefold.core.errors import Fenced, WorkLost
from onefold.core.positions import Range
from onefold.core.protocol.committer_kinds import last_resource
from onefold.core.protocol.effects import EpochRequest
from onefold.core.testing.conformance.calls import DecideCall, decide
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, SubjectKind, finish
from onefold.core.testing.conformance.workbench import Work, Workbench, entry_of, looking, positions
from onefold.store.checkpoint_store import CheckpointStore


@dataclass(slots=True)
class StoreEpochs:
    """Epochs of a real checkpoint store in the sink's own database."""

    bench: Workbench
    store: CheckpointStore
    generation: Generation
    store_id: str = field(init=False)
    offset: int = 0

    def __post_init__(self) -> None:
        self.store_id = self.store.id()
        self.bench.generation = self.generation.number
        self.bench.closing.append(self.store.close)

    def open(self) -> EpochRecord:
        last = self.store.facts(self.bench.pipeline).last
        start = last.range.end if last else positions(0)
        self.offset += 10
        request = EpochRequest(
            Range(start, positions(self.offset)), "conformance", self.offset, "conformance", (self.bench.sink.name,)
        )
        return request.opened(self.generation, (last.epoch if last else 0) + 1, 1_700_000_000_000 + self.offset)

    def entry(self, record: EpochRecord) -> LedgerEntry:
        return entry_of(record, self.store_id)

    def decide(self, record: EpochRecord, works: Sequence[Work]) -> Decided:
        return self.bench.retry(lambda: self.merge(record, [work.committable for work in works]))

    def merge(self, record: EpochRecord, manifest: Sequence[Committable], **changes: Any) -> Decided:
        committer = last_resource(self.bench.committer)
        arguments = {"entry": self.entry(record), "after_merge": None, **changes}
        return decide(self.store, committer, self.generation, record, tuple(manifest), **arguments)

    def complete(self, decided: Decided) -> None:
        self.store.complete(self.generation, decided, decided.record.timestamp_ms)

    def is_decided(self, record: EpochRecord) -> bool:
        last = self.store.facts(record.pipeline).last
        return last is not None and last.epoch == record.epoch

    def expect_nothing_decided(self, held: CheckedPromise, record: EpochRecord, before: LedgerEntry | None) -> None:
        """Store, ledger and destination are as they were before the merge."""
        self.bench.look(held, stray=held.promise)
        there = self.bench.elsewhere().ledger()
        held.expect(there == before, f"the ledger as it was: {before}", there)
        held.expect(not self.is_decided(record), f"epoch {record.epoch} not decided", "its decision")


def epochs(bench: Workbench, generation: int) -> StoreEpochs:
    store = CheckpointStore(store_url(bench))
    return StoreEpochs(bench, store, store.acquire(bench.pipeline, generation - 1))


def store_url(bench: Workbench) -> str:
    return present(
        bench.sink.store_url(), "a last-resource sink names the database where the checkpoint store lives: store_url()"
    )


def expect_guarantee(held: CheckedPromise, bench: Workbench) -> None:
    kind = bench.sink.guarantee().kind
    held.expect(kind is SinkKind.LAST_RESOURCE, "last-resource", kind)
    held.expect(isinstance(bench.committer, LastResource), "a committer with merge and shares_store", bench.committer)
    held.expect(bench.sink.store_url() is not None, "a store_url()", None)


def the_store_is_told_from_others(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    store = CheckpointStore(store_url(bench))
    with subject.book.holding(Promise.SHARES_STORE, "shares_store") as held:
        for committer in map(last_resource, (bench.committer, bench.elsewhere())):
            held.expect(committer.shares_store(store.id()), "True for the store at store_url()", False)
            held.expect(not committer.shares_store(str(uuid.uuid4())), "False for any other store", True)
    store.close()
    bench.close()


def a_merge_counts(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    mine = epochs(bench, 1)
    for half in ("before any row of the ledger", "after one"):
        record, before = mine.open(), bench.committer.ledger()
        works = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
        lost = bench.lose(bench.prepare(bench.task(record.epoch)))
        manifest = [w.committable for w in works]
        more = [manifest[0], replace(manifest[1], rows=manifest[1].rows + 1)]
        for what, wrong in (("one row more", more), ("a part that is gone", [*manifest, lost])):
            with subject.book.holding(Promise.MERGE_COUNTS, "merge") as held:
                expected = f"WorkLost: the manifest names {what} ({half})"
                held.expect_raises(WorkLost, lambda r=record, w=wrong: mine.merge(r, w), expected)
                mine.expect_nothing_decided(held, record, before)
        with subject.book.holding(Promise.MERGE_COUNTS, "merge, of what is there") as held:
            finish(bench, mine, record, works)
            bench.look(held)
        bench.sweep("merge")
    with subject.book.holding(Promise.MERGE_ATOMIC, "merge, of an empty epoch") as held:
        record = mine.open()
        finish(bench, mine, record, [])
        there = bench.elsewhere().ledger()
        held.expect(there == mine.entry(record), f"{mine.entry(record)}", there)
    bench.close()


def a_merge_goes_back_with_its_transaction(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    mine = epochs(bench, 1)
    record = mine.open()
    works = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
    manifest = [w.committable for w in works]

    def fail(_connection: object) -> None:
        raise WorkLost("simulated-loss", "what comes after the merge failed")

    with subject.book.holding(Promise.MERGE_ROLLED_BACK, "merge") as held:
        held.expect_raises(WorkLost, lambda: mine.merge(record, manifest, after_merge=fail), "WorkLost, from the store")
        mine.expect_nothing_decided(held, record, None)
        bench.elsewhere().verify(manifest)
        finish(bench, mine, record, works)
        bench.look(held)
    bench.sweep("merge")
    record = mine.open()
    work = bench.prepare(bench.task(record.epoch))
    beyond = replace(mine.entry(record), epoch=record.epoch + 1, generation=bench.generation + 1)
    bench.committer.write_ledger(beyond)
    with subject.book.holding(Promise.MERGE_FENCED, "merge") as held:
        expected = f"Fenced: the ledger is at epoch {beyond.epoch} of generation {beyond.generation}"
        held.expect_raises(Fenced, lambda: mine.merge(record, [work.committable]), expected)
        mine.expect_nothing_decided(held, record, beyond)
    bench.sweep("merge")
    bench.close()


def a_decision_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    mine = epochs(bench, 1)
    for strike in subject.striker.each("merge"):
        record = mine.open()
        works = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
        manifest, ids = tuple(w.committable for w in works), [i for w in works for i in w.ids]
        entry = mine.entry(record)
        with subject.book.holding(Promise.MERGE_ATOMIC, "merge") as held:
            strike.run(
                DecideCall(
                    make_sink=subject.make_sink,
                    pipeline=bench.pipeline,
                    schema=bench.schema,
                    store_url=store_url(bench),
                    generation=mine.generation,
                    record=record,
                    manifest=manifest,
                    entry=entry,
                )
            )
        with subject.book.holding(Promise.MERGE_ATOMIC, "merge", strike.crash) as held:
            _expect_together(held, mine, record, ids, must=strike.is_answered)
            decided = bench.retry(partial(mine.merge, record, manifest))
            bench.look(held, visible=ids)
            bench.retry(partial(bench.elsewhere().commit, decided, decided.record.manifest))
            there = bench.elsewhere().ledger()
            held.expect(there == entry, str(entry), there)
            bench.wanted.update(ids)
            bench.look(held)
        mine.complete(decided)
        bench.sweep("merge", strike.crash)
    bench.close()


def _expect_together(
    held: CheckedPromise, mine: StoreEpochs, record: EpochRecord, ids: Sequence[int], must: bool
) -> None:
    """The store's decision, the ledger's row and all rows, or none of the three. They are read one after the other,
    while a killed client's server may still commit: so two readings must agree before they are judged."""
    bench, wait = mine.bench, looking(mine.bench.target.patience_s)
    while True:
        ledger = bench.elsewhere().ledger()
        there = (
            mine.is_decided(record),
            ledger is not None and ledger.epoch == record.epoch,
            len(bench.look(held, possible=ids).keys() & set(ids)),
        )
        if there == (True, True, len(ids)) or (not must and there == (False, False, 0)):
            return
        seen = f"decided: {there[0]}, in the ledger: {there[1]}, {there[2]} of {len(ids)} rows visible"
        held.expect(wait.again(), "decision, ledger row and all rows" + ("" if must else ", or none of them"), seen)


LAST_RESOURCE = SubjectKind(
    epochs=epochs,
    expect_guarantee=expect_guarantee,
    shows_on_decide=True,
    checks=(
        the_store_is_told_from_others,
        a_merge_counts,
        a_merge_goes_back_with_its_transaction,
        a_decision_can_be_cut_anywhere,
    ),
    promises=frozenset(
        {
            Promise.SHARES_STORE,
            Promise.MERGE_COUNTS,
            Promise.MERGE_ROLLED_BACK,
            Promise.MERGE_FENCED,
            Promise.MERGE_ATOMIC,
        }
    ),
)
