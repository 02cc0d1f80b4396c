"""Checks that kill real processes in the calls that every transactional sink has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from onefold.core.errors import WorkLost
from onefold.core.testing.conformance.call_processes import Call
from onefold.core.testing.conformance.calls import (
    Abandon,
    AbortCall,
    CommitCall,
    OpenCall,
    Prepare,
    RecordCall,
    Recover,
    Write,
)
from onefold.core.testing.conformance.checks.binding import bind_can_be_cut_anywhere
from onefold.core.testing.conformance.checks.every_sink import expect_listed
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, finish
from onefold.core.testing.conformance.workbench import Work, Workbench, entry_of, positions


def opening_can_be_cut_anywhere(subject: SinkSubject) -> None:
    cut_opening(subject, _prepare_and_abort)


def _prepare_and_abort(held: CheckedPromise, after: Workbench) -> None:
    work = after.prepare(after.task(1))
    expect_listed(held, after, [work])
    after.committer.abort([work.committable])


def cut_opening(subject: SinkSubject, use: Callable[[CheckedPromise, Workbench], None]) -> None:
    """Kill processes in what a driver does first; then the next one must find nothing, and `use` what it opened."""
    bench = Workbench(subject)
    calls: dict[str, Callable[[str], Call]] = {
        "open": lambda name: OpenCall(subject.make_sink, name, bench.schema),
        "recover": lambda name: Recover(subject.make_sink, name),
    }
    for call, make in calls.items():
        for number, strike in enumerate(subject.striker.each(call)):
            name = f"{bench.pipeline}.{call}{number}"
            with subject.book.holding(Promise.OPEN_AGAIN, call) as held:
                strike.run(make(name))
            with subject.book.holding(Promise.OPEN_AGAIN, call, strike.crash) as held:
                after = bench.retry(partial(bench.another_pipeline, name))
                there = after.committer.ledger()
                held.expect(there is None, "an empty ledger", there)
                use(held, after)
                after.close()
    bench.close()


def a_writer_killed_before_prepare_leaves_nothing(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    record = subject.kind.epochs(bench, 1).open()
    bench.mark()
    for call, kind_of_call in (("write", Write), ("writer's abort", Abandon)):
        for strike in subject.striker.each(call):
            batches = tuple(bench.batch(300)[1] for _ in range(2))
            with subject.book.holding(Promise.SWEPT, call) as held:
                strike.run(kind_of_call(bench.sink, bench.task(record.epoch), batches))
            with subject.book.holding(Promise.SWEPT, call, strike.crash) as held:
                bench.look(held)
            bench.sweep(call, strike.crash)
            with subject.book.holding(Promise.SWEPT, "abort", strike.crash) as held:
                bench.look(held)
    bench.close()


def what_is_prepared_outlives_its_process(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    epochs = subject.kind.epochs(bench, 1)
    record = epochs.open()
    bench.mark()
    for strike in subject.striker.each("prepare"):
        ids, batch = bench.batch()
        task = bench.task(record.epoch)
        with subject.book.holding(Promise.PREPARE_DURABLE, "prepare") as held:
            answer = strike.run(Prepare(bench.sink, task, (batch,))).answer
        with subject.book.holding(Promise.LEFTOVERS_EXACT, "leftovers", strike.crash) as held:
            named = {(c.generation, c.epoch) for c in bench.elsewhere().leftovers(bench.generation)}
            asked = (task.generation, task.epoch)
            held.expect(named <= {asked}, f"work of generation and epoch {asked} at most", named)
        with subject.book.holding(Promise.PREPARE_DURABLE, "prepare", strike.crash) as held:
            bench.look(held)
            if strike.is_answered:
                held.expect(answer is not None, "a committable", answer)
                bench.elsewhere().verify([answer])
                finish(bench, epochs, record, [Work(answer, ids)])
                bench.look(held)
                record = epochs.open()
        bench.sweep("prepare", strike.crash)
    with subject.book.holding(Promise.PREPARE_DURABLE, "abort") as held:
        bench.look(held)
    bench.close()


def abort_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    record = subject.kind.epochs(bench, 1).open()
    others = [
        bench.prepare(bench.task(record.epoch + later, bench.generation + newer)) for later, newer in ((0, 0), (1, 1))
    ]
    newest = bench.generation + 1
    bench.mark()
    for strike in subject.striker.each("abort"):
        mine = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
        named = [w.committable for w in mine]
        with subject.book.holding(Promise.ABORT_IDEMPOTENT, "abort") as held:
            strike.run(AbortCall(subject.make_sink, bench.pipeline, named))
        with subject.book.holding(Promise.ABORT_IDEMPOTENT, "abort", strike.crash) as held:
            bench.look(held)
            if strike.is_answered:
                expect_listed(held, bench, others, newest)
            bench.retry(partial(bench.elsewhere().abort, named))
            lost = [bench.lose(work) for work in mine]
            held.expect_raises(WorkLost, partial(bench.committer.verify, lost), "WorkLost from verify")
        with subject.book.holding(Promise.ABORT_ONLY_NAMED, "abort", strike.crash) as held:
            bench.look(held)
            expect_listed(held, bench, others, newest)
            bench.elsewhere().verify([w.committable for w in others])
        bench.sweep("abort", strike.crash, generation=newest, keep=others)
    bench.committer.abort([w.committable for w in others])
    bench.close()


def commit_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    epochs = subject.kind.epochs(bench, 1)
    is_atomic = bench.sink.guarantee().atomic_epoch
    bench.mark()
    for strike in subject.striker.each("commit"):
        record = epochs.open()
        works = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
        ids, named = [i for work in works for i in work.ids], [work.committable for work in works]
        decided = epochs.decide(record, works)
        with subject.book.holding(Promise.COMMIT_ONCE, "commit") as held:
            strike.run(CommitCall(subject.make_sink, bench.pipeline, decided, named))
        must = strike.is_answered or subject.kind.shows_on_decide
        with subject.book.holding(Promise.COMMIT_ONCE, "commit", strike.crash) as held:
            shown = bench.look(held, visible=ids if must else (), possible=ids).keys() & set(ids)
        with subject.book.holding(Promise.ATOMIC_EPOCH, "commit", strike.crash) as held:
            seen = f"{len(shown)} of {len(ids)} rows"
            held.expect(not is_atomic or len(shown) in (0, len(ids)), "all of an epoch's rows or none", seen)
        there = bench.retry(bench.elsewhere().ledger)
        with subject.book.holding(Promise.COMMIT_ONCE, "commit, again", strike.crash) as held:
            bench.retry(partial(bench.elsewhere().commit, decided, named))
            bench.look(held, visible=ids)
            bench.committer.commit(decided, named)
            bench.elsewhere().write_ledger(epochs.entry(record))
            bench.elsewhere().commit(decided, named[:1])
            bench.elsewhere().commit(decided, named)
            bench.wanted.update(ids)
            bench.look(held)
        with subject.book.holding(Promise.MEMBERS, "ledger", strike.crash) as held:
            members = [(m.epoch, m.generation, m.timestamp_ms) for m in there.members] if there else []
            mine = (record.epoch, record.generation, record.timestamp_ms)
            holds = not shown or (there is not None and (there.epoch >= record.epoch or mine in members))
            held.expect(holds, f"epoch, generation, time {mine}, of which {len(shown)} rows are visible", there)
        epochs.complete(decided)
        bench.sweep("commit", strike.crash)
    bench.close()


def record_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    before = None
    entry = entry_of(subject.kind.epochs(bench, 1).open(), "store")
    for strike in subject.striker.each("write_ledger"):
        entry = replace(entry, epoch=entry.epoch + 1, timestamp_ms=entry.timestamp_ms + 1)
        entry = replace(entry, positions=positions(entry.epoch))
        with subject.book.holding(Promise.LEDGER_DURABLE, "write_ledger") as held:
            strike.run(RecordCall(subject.make_sink, bench.pipeline, entry))
        with subject.book.holding(Promise.LEDGER_DURABLE, "write_ledger", strike.crash) as held:
            there = bench.committer.ledger()
            possible = (entry,) if strike.is_answered else (before, entry)
            held.expect(there in possible, " or ".join(map(str, possible)), there)
            bench.retry(partial(bench.elsewhere().write_ledger, entry))
            there = bench.committer.ledger()
            held.expect(there == entry, str(entry), there)
        before = entry
    bench.close()


WRITER_CRASHES = (a_writer_killed_before_prepare_leaves_nothing, what_is_prepared_outlives_its_process)
DRIVER_CRASHES = (
    abort_can_be_cut_anywhere,
    commit_can_be_cut_anywhere,
    record_can_be_cut_anywhere,
    bind_can_be_cut_anywhere,
    opening_can_be_cut_anywhere,
)
