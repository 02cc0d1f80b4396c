"""Write-through sinks: rows show as they are written, and an announced epoch is written again until it is whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onefold.core.checks import present
from onefold.core.contract import Decided, EpochState, SinkKind, WriteThrough
from onefold.core.errors import CheckpointMismatch, Damaged, Fenced, WorkLost
from onefold.core.protocol.committer_kinds import write_through
from onefold.core.testing.conformance.checks.binding import (
    a_ledger_row_is_one_stores_and_its_newest_generations,
    bind_can_be_cut_anywhere,
)
from onefold.core.testing.conformance.checks.crashes import record_can_be_cut_anywhere
from onefold.core.testing.conformance.checks.every_sink import it_says_what_it_is, the_ledger_only_goes_forward
from onefold.core.testing.conformance.checks.sharing import rows_show_however_they_are_shared_out
from onefold.core.testing.conformance.checks.write_through_crashes import (
    announce_can_be_cut_anywhere,
    opening_can_be_cut_anywhere,
    seal_and_commit_can_be_cut_anywhere,
    writers_can_be_cut_anywhere,
)
from onefold.core.testing.conformance.checks.write_through_steps import begun, epochs, expect_told, rewritten
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, SubjectKind, finish
from onefold.core.testing.conformance.workbench import Work, Workbench, entry_of


def expect_guarantee(held: CheckedPromise, bench: Workbench) -> None:
    promise = bench.sink.guarantee()
    held.expect(promise.kind is SinkKind.WRITE_THROUGH, "write-through", promise.kind)
    held.expect(not promise.atomic_epoch, "no atomic epoch: rows show as they are written", promise)
    held.expect(isinstance(bench.committer, WriteThrough), "a committer with announce", type(bench.committer))


def prepare_leaves_nothing_to_undo(subject: SinkSubject) -> None:
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
        left = present(writer.prepare(), "prepare returned None though rows were written")
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


def an_epoch_shows_once_however_often_it_is_written(subject: SinkSubject) -> None:
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


def announcements_only_go_forward(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 4)
    first = mine.open()
    with subject.book.holding(Promise.ANNOUNCED, "announce") as held:
        there = bench.committer.ledger()
        held.expect(there is None, "None before anything was announced", there)
        for committer in (bench.committer, bench.elsewhere()):
            write_through(committer).announce(first)
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
                held.expect_raises(
                    CheckpointMismatch, lambda c=committer, r=other: write_through(c).announce(r), expected
                )
            expected = "Fenced: a newer generation has announced the epoch"
            older = replace(first, generation=3)
            held.expect_raises(Fenced, lambda c=committer, r=older: write_through(c).announce(r), expected)
            expect_told(held, bench, first)
        again = replace(first, generation=6)
        write_through(bench.committer).announce(again)
        expect_told(held, bench, again)
    bench.committer.write_ledger(entry_of(second, "conformance", generation=6))
    with subject.book.holding(Promise.ANNOUNCED, "write_ledger") as held:
        expect_told(held, bench, again)
    with subject.book.holding(Promise.ANNOUNCE_FORWARD, "announce") as held:
        expected = "Fenced: the ledger row is beyond it"
        for committer in (bench.committer, bench.elsewhere()):
            behind = replace(first, generation=7)
            held.expect_raises(Fenced, lambda c=committer, r=behind: write_through(c).announce(r), expected)
        third = replace(mine.open(), generation=7)
        write_through(bench.committer).announce(third)
        expect_told(held, bench, third)
    bench.close()


def a_copy_that_lacks_the_epoch_is_damage(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    record = mine.open()
    work = bench.prepare(bench.task(record.epoch))
    named = [work.committable]
    decided = Decided(replace(record, state=EpochState.DECIDED, manifest=tuple(named)))
    with subject.book.holding(Promise.COPY_DAMAGED, "commit") as held:
        for committer in (bench.committer, bench.elsewhere()):
            expected = "WorkLost: the destination was never told of the epoch"
            held.expect_raises(WorkLost, partial(write_through(committer).seal, named), expected)
            expected = "Damaged: the destination was never told of the epoch"
            held.expect_raises(Damaged, lambda c=committer: c.commit(decided, named), expected)
        write_through(bench.committer).announce(record)
        for committer in (bench.committer, bench.elsewhere()):
            expected = "Damaged: nobody has noted that the epoch was written whole"
            held.expect_raises(Damaged, lambda c=committer: c.commit(decided, named), expected)
            committer.commit(decided, [])
        write_through(bench.committer).seal(named)
        for committer in (bench.committer, bench.elsewhere()):
            committer.commit(decided, named)
    bench.close()


WRITE_THROUGH = SubjectKind(
    epochs=epochs,
    expect_guarantee=expect_guarantee,
    shows_on_decide=False,
    checks=(
        it_says_what_it_is,
        prepare_leaves_nothing_to_undo,
        an_epoch_shows_once_however_often_it_is_written,
        the_ledger_only_goes_forward,
        announcements_only_go_forward,
        a_ledger_row_is_one_stores_and_its_newest_generations,
        a_copy_that_lacks_the_epoch_is_damage,
        announce_can_be_cut_anywhere,
        writers_can_be_cut_anywhere,
        seal_and_commit_can_be_cut_anywhere,
        record_can_be_cut_anywhere,
        bind_can_be_cut_anywhere,
        opening_can_be_cut_anywhere,
        rows_show_however_they_are_shared_out,
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
