"""Write-through sinks: rows show as they are written, and an announced epoch is written again until it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.core.contract import (
    Announcement,
    Committer,
    Decided,
    EpochRecord,
    EpochState,
    LedgerEntry,
    SinkKind,
    WriteThrough,
)
from onefold.core.errors import CheckpointMismatch, Damaged, Fenced, WorkLost
from onefold.core.positions import Range
from onefold.core.testing.conformance.calls import (
    Abandon,
    Announce,
    Commit,
    Open,
    Prepare,
    Recover,
    Verify,
    Write,
)
from onefold.core.testing.conformance.crash_checks import record_can_be_cut_anywhere
from onefold.core.testing.conformance.kinds import Kind, finish
from onefold.core.testing.conformance.processes import Call
from onefold.core.testing.conformance.promises import Held, Promise
from onefold.core.testing.conformance.sink_checks import it_says_what_it_is, the_ledger_only_goes_forward
from onefold.core.testing.conformance.workbench import Subject, Work, Workbench, entry_of, positions

__all__ = ["WRITE_THROUGH"]


@dataclass(slots=True)
class WriteThroughEpochs:
    """Epochs that this object numbers, and that the bench's sink is told of."""

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
            write_through=(self.bench.sink.name,),
        )

    def entry(self, record: EpochRecord) -> LedgerEntry:
        return entry_of(record, "conformance")

    def decide(self, record: EpochRecord, works: Sequence[Work]) -> Decided:
        manifest = tuple(work.committable for work in works)
        self.bench.insist(lambda: self.bench.committer.verify(manifest))
        return Decided(replace(record, state=EpochState.DECIDED, manifest=manifest))

    def complete(self, decided: Decided) -> None:
        assert decided.record.epoch == self.epoch, (decided.record.epoch, self.epoch)


def epochs(bench: Workbench, generation: int) -> WriteThroughEpochs:
    bench.generation = generation
    return WriteThroughEpochs(bench)


def expect_guarantee(held: Held, bench: Workbench) -> None:
    promise = bench.sink.guarantee()
    held.expect(promise.kind is SinkKind.WRITE_THROUGH, "write-through", promise.kind)
    held.expect(not promise.atomic_epoch, "no atomic epoch: rows show as they are written", promise)
    held.expect(isinstance(bench.committer, WriteThrough), "a committer with announce", type(bench.committer))


def through(committer: Committer) -> WriteThrough:
    assert isinstance(committer, WriteThrough), committer
    return committer


def begun(bench: Workbench, mine: WriteThroughEpochs) -> EpochRecord:
    """The next epoch, announced."""
    record = mine.open()
    bench.insist(lambda: through(bench.committer).announce(record))
    return record


def told(committer: Committer) -> Announcement | None:
    ledger = committer.ledger()
    return ledger.announced if ledger is not None else None


def prepare_leaves_nothing_to_undo(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    record = begun(bench, mine)
    with subject.book.holding(Promise.PREPARE_NOTHING, "prepare") as held:
        for batches in ((), (bench.batch(0)[1],)):
            writer = bench.sink.writer(bench.task(record.epoch))
            for batch in batches:
                writer.write(batch)
            left = writer.prepare()
            held.expect(left is None, f"None after {len(batches)} batches without a row", left)
    with subject.book.holding(Promise.PREPARED_AS_ASKED, "prepare") as held:
        writer = bench.sink.writer(bench.task(record.epoch))
        ids, batch = bench.batch()
        writer.write(batch)
        left = writer.prepare()
        assert left is not None, "prepare returned None though rows were written"
        named = (left.sink, left.kind, left.generation, left.epoch, left.rows)
        expected = (bench.sink.name, SinkKind.WRITE_THROUGH, bench.generation, record.epoch, len(ids))
        held.expect(named == expected, f"sink, kind, generation, epoch, rows: {expected}", named)
    with subject.book.holding(Promise.PREPARE_DURABLE, "prepare") as held:
        bench.look(held, visible=ids)
    with subject.book.holding(Promise.NOTHING_TO_UNDO, "abort") as held:
        for committer in (bench.committer, bench.elsewhere()):
            found = committer.leftovers(bench.generation)
            held.expect(not found, "no leftovers", found)
            committer.abort([left])
            bench.look(held, visible=ids)
    with subject.book.holding(Promise.NOTED_WHOLE, "commit"):
        finish(bench, mine, record, [Work(left, ids)])
    bench.close()


def an_epoch_shows_once_however_often_it_is_written(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    for generation in (1, 1, 2):
        bench.generation = generation
        record = begun(bench, mine)
        ids, batch = bench.batch()
        with subject.book.holding(Promise.SHOWN_ONCE, "prepare") as held:
            works = [rewritten(bench, record, ids, [batch]) for _ in range(3)]
            bench.look(held, visible=ids)
            handles = {work.committable.handle for work in works}
            held.expect(len(handles) == len(works), "handles of their own for each attempt", handles)
            finish(bench, mine, record, works[-1:])
            bench.look(held)
        late = bench.sink.writer(bench.task(record.epoch))
        late.write(batch)
        following = begun(bench, mine)
        more, other = bench.batch()
        with subject.book.holding(Promise.SHOWN_ONCE, "prepare, late, of a zombie") as held:
            work = rewritten(bench, following, more, [other])
            late.prepare()
            finish(bench, mine, following, [work])
            bench.look(held)
    bench.close()


def announcements_only_go_forward(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 4)
    first = mine.open()
    with subject.book.holding(Promise.ANNOUNCED, "announce") as held:
        there = bench.committer.ledger()
        held.expect(there is None, "None before anything was announced", there)
        for committer in (bench.committer, bench.elsewhere()):
            through(committer).announce(first)
            expect_told(held, bench, first)
        there = bench.committer.ledger()
        held.expect(there is not None and there.epoch == 0, "epoch 0: nothing is complete", there)
    second = mine.open()
    with subject.book.holding(Promise.ANNOUNCE_FORWARD, "announce") as held:
        for committer in (bench.committer, bench.elsewhere()):
            for other in (
                replace(first, timestamp_ms=first.timestamp_ms + 1),
                replace(first, range=second.range),
                replace(first, generation=9, timestamp_ms=first.timestamp_ms + 1),
            ):
                expected = "CheckpointMismatch: the same epoch has another T or range"
                held.expect_raises(CheckpointMismatch, lambda c=committer, r=other: through(c).announce(r), expected)
            expected = "Fenced: a newer generation has announced the epoch"
            older = replace(first, generation=3)
            held.expect_raises(Fenced, lambda c=committer, r=older: through(c).announce(r), expected)
            expect_told(held, bench, first)
        again = replace(first, generation=6)
        through(bench.committer).announce(again)
        expect_told(held, bench, again)
    bench.committer.record(entry_of(second, "conformance", generation=6))
    with subject.book.holding(Promise.ANNOUNCED, "record") as held:
        expect_told(held, bench, again)
    with subject.book.holding(Promise.ANNOUNCE_FORWARD, "announce") as held:
        expected = "Fenced: the ledger row is beyond it"
        for committer in (bench.committer, bench.elsewhere()):
            behind = replace(first, generation=7)
            held.expect_raises(Fenced, lambda c=committer, r=behind: through(c).announce(r), expected)
        third = replace(mine.open(), generation=7)
        through(bench.committer).announce(third)
        expect_told(held, bench, third)
    bench.close()


def a_copy_that_lacks_the_epoch_is_damage(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    record = mine.open()
    work = bench.prepare(bench.task(record.epoch))
    named = [work.committable]
    decided = Decided(replace(record, state=EpochState.DECIDED, manifest=tuple(named)))
    with subject.book.holding(Promise.COPY_DAMAGED, "commit") as held:
        for committer in (bench.committer, bench.elsewhere()):
            expected = "WorkLost: the destination was never told of the epoch"
            held.expect_raises(WorkLost, lambda c=committer: c.verify(named), expected)
            expected = "Damaged: the destination was never told of the epoch"
            held.expect_raises(Damaged, lambda c=committer: c.commit(decided, named), expected)
        through(bench.committer).announce(record)
        for committer in (bench.committer, bench.elsewhere()):
            expected = "Damaged: nobody has noted that the epoch was written whole"
            held.expect_raises(Damaged, lambda c=committer: c.commit(decided, named), expected)
            committer.commit(decided, [])
        bench.committer.verify(named)
        for committer in (bench.committer, bench.elsewhere()):
            committer.commit(decided, named)
    bench.close()


def announce_can_be_cut_anywhere(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    before: Announcement | None = None
    for strike in subject.striker.each("announce"):
        record = mine.open()
        with subject.book.holding(Promise.ANNOUNCE_DURABLE, "announce") as held:
            strike.run(Announce(subject.make_sink, bench.pipeline, record))
        with subject.book.holding(Promise.ANNOUNCE_DURABLE, "announce", strike.crash) as held:
            there = bench.insist(lambda: told(bench.elsewhere()))
            possible = (announced(record),) if strike.is_answered else (before, announced(record))
            held.expect(there in possible, " or ".join(map(str, possible)), there)
            bench.insist(lambda record=record: through(bench.elsewhere()).announce(record))  # type: ignore[misc]
            expect_told(held, bench, record)
        before = announced(record)
    bench.close()


def writers_can_be_cut_anywhere(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    calls: dict[str, Callable[..., Call]] = {"write": Write, "prepare": Prepare, "writer's abort": Abandon}
    for call, make in calls.items():
        for strike in subject.striker.each(call):
            record = begun(bench, mine)
            parts = [bench.batch(300) for _ in range(2)]
            ids, batches = tuple(i for part, _ in parts for i in part), [batch for _, batch in parts]
            with subject.book.holding(Promise.WRITTEN_AGAIN, call) as held:
                strike.run(make(bench.sink, bench.task(record.epoch), tuple(batches)))
            with subject.book.holding(Promise.WRITTEN_AGAIN, call, strike.crash) as held:
                is_whole = call == "prepare" and strike.is_answered
                bench.look(held, visible=ids if is_whole else (), possible=ids)
                work = rewritten(bench, record, ids, batches)
                bench.look(held, visible=ids)
                finish(bench, mine, record, [work])
                bench.look(held)
    bench.close()


def verify_and_commit_can_be_cut_anywhere(subject: Subject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    for call in ("verify", "commit"):
        for strike in subject.striker.each(call):
            record = begun(bench, mine)
            work = bench.prepare(bench.task(record.epoch))
            named = [work.committable]
            decided = Decided(replace(record, state=EpochState.DECIDED, manifest=tuple(named)))
            if call == "commit":
                bench.committer.verify(named)
            with subject.book.holding(Promise.NOTED_WHOLE, call) as held:
                made: dict[str, Call] = {
                    "verify": Verify(subject.make_sink, bench.pipeline, named),
                    "commit": Commit(subject.make_sink, bench.pipeline, decided, named),
                }
                strike.run(made[call])
            with subject.book.holding(Promise.NOTED_WHOLE, call, strike.crash) as held:
                there = bench.insist(lambda: told(bench.elsewhere()))
                whole = replace(announced(record), is_written=True)
                may = (whole,) if strike.is_answered or call == "commit" else (announced(record), whole)
                held.expect(there in may, " or ".join(map(str, may)), there)
                finish(bench, mine, record, [work])
                there = told(bench.elsewhere())
                held.expect(there == whole, str(whole), there)
            with subject.book.holding(Promise.COMMIT_ONCE, call, strike.crash) as held:
                bench.elsewhere().commit(decided, named)
                bench.look(held)
    bench.close()


def opening_can_be_cut_anywhere(subject: Subject) -> None:
    bench = Workbench(subject)
    calls: dict[str, Callable[[str], Call]] = {
        "open": lambda name: Open(subject.make_sink, name, bench.schema),
        "recover": lambda name: Recover(subject.make_sink, name),
    }
    for call, make in calls.items():
        for number, strike in enumerate(subject.striker.each(call)):
            name = f"{bench.pipeline}.{call}{number}"
            with subject.book.holding(Promise.OPEN_AGAIN, call) as held:
                strike.run(make(name))
            with subject.book.holding(Promise.OPEN_AGAIN, call, strike.crash) as held:
                after = bench.insist(lambda name=name: bench.another_pipeline(name))  # type: ignore[misc]
                there = after.committer.ledger()
                held.expect(there is None, "an empty ledger", there)
                mine = epochs(after, 1)
                record = begun(after, mine)
                finish(after, mine, record, [after.prepare(after.task(record.epoch))])
                after.look(held)
                after.close()
    bench.close()


def rewritten(bench: Workbench, record: EpochRecord, ids: Sequence[int], batches: Sequence[pa.RecordBatch]) -> Work:
    """These rows written by one more attempt of the epoch, whole."""
    writer = bench.sink.writer(bench.task(record.epoch))
    for batch in batches:
        writer.write(batch)
    committable = writer.prepare()
    assert committable is not None, "prepare returned None though rows were written"
    return Work(committable, tuple(ids))


def announced(record: EpochRecord) -> Announcement:
    return Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)


def expect_told(held: Held, bench: Workbench, record: EpochRecord) -> None:
    for committer in (bench.committer, bench.elsewhere()):
        there = told(committer)
        held.expect(there == announced(record), str(announced(record)), there)


WRITE_THROUGH = Kind(
    epochs=epochs,
    expect_guarantee=expect_guarantee,
    shows_on_decide=False,
    checks=(
        it_says_what_it_is,
        prepare_leaves_nothing_to_undo,
        an_epoch_shows_once_however_often_it_is_written,
        the_ledger_only_goes_forward,
        announcements_only_go_forward,
        a_copy_that_lacks_the_epoch_is_damage,
        announce_can_be_cut_anywhere,
        writers_can_be_cut_anywhere,
        verify_and_commit_can_be_cut_anywhere,
        record_can_be_cut_anywhere,
        opening_can_be_cut_anywhere,
    ),
    promises=frozenset(
        {
            Promise.SHOWN_ONCE,
            Promise.WRITTEN_AGAIN,
            Promise.ANNOUNCED,
            Promise.ANNOUNCE_FORWARD,
            Promise.ANNOUNCE_DURABLE,
            Promise.NOTED_WHOLE,
            Promise.COPY_DAMAGED,
            Promise.NOTHING_TO_UNDO,
        }
    ),
    besides=frozenset(
        {
            Promise.UNDECIDED_UNSEEN,
            Promise.SWEPT,
            Promise.WRITER_ABORT,
            Promise.ATTEMPTS_APART,
            Promise.LEFTOVERS_EXACT,
            Promise.VERIFY,
            Promise.ABORT_IDEMPOTENT,
            Promise.ABORT_ONLY_NAMED,
            Promise.COMMIT_ONLY_NAMED,
            Promise.ATOMIC_EPOCH,
            Promise.MEMBERS,
        }
    ),
    is_transactional=False,
)
