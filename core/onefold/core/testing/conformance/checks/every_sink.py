"""Checks of what every sink promises, whatever its kind, where nobody crashes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from onefold.core.checks import present
from onefold.core.contract import Committable, SinkWriter
from onefold.core.errors import Fenced, Retriable, WorkLost
from onefold.core.testing.conformance.calls import Describe, ReadLedgerCall
from onefold.core.testing.conformance.checks.binding import a_ledger_row_is_one_stores_and_its_newest_generations
from onefold.core.testing.conformance.checks.sharing import rows_show_however_they_are_shared_out
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, finish
from onefold.core.testing.conformance.workbench import Work, Workbench, entry_of, positions


def it_says_what_it_is(subject: SinkSubject) -> None:
    with subject.book.holding(Promise.GUARANTEE, "guarantee") as held:
        before = subject.make_sink().guarantee()
        bench = Workbench(subject)
        after = bench.sink.guarantee()
        held.expect(before == after, f"the same before and after open: {before}", after)
        held.expect(bool(after.mode), "a mode", repr(after.mode))
        name, again = bench.sink.name, subject.make_sink().name
        held.expect(name == again and bool(name), "the same name of every sink that the factory makes", (name, again))
        bound = bench.sink.writers_max()
        held.expect(bound is None or bound >= 1, "writers_max of at least 1, or None", bound)
        subject.kind.expect_guarantee(held, bench)
    work = bench.prepare(bench.task(1))
    with subject.book.holding(Promise.PICKLES, "pickle") as held:
        values = (bench.task(1), work.committable)
        elsewhere = subject.striker.processes.run(Describe(bench.sink, values)).result()
        expected = (bench.sink.name, bench.sink.guarantee(), values)
        held.expect(elsewhere == expected, f"the same in another process: {expected}", elsewhere)
        named = {name: value for name, value in asdict(work.committable).items() if name != "payload"}
        manifest = json.dumps(named | {"kind": work.committable.kind.value})
        read = Committable(**json.loads(manifest) | {"kind": work.committable.kind})
        held.expect(read == work.committable, f"the same from the store's manifest: {work.committable}", read)
    bench.committer.abort([work.committable])
    bench.close()


def prepare_says_what_it_left(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    with subject.book.holding(Promise.PREPARE_NOTHING, "prepare") as held:
        for batches in ((), (bench.batch(0)[1],)):
            writer = bench.sink.writer(bench.task(1))
            for batch in batches:
                writer.write(batch)
            left = writer.prepare()
            held.expect(left is None, f"None after {len(batches)} batches without a row", left)
        found = bench.committer.leftovers(bench.generation)
        held.expect(not found, "no leftovers", found)
    with subject.book.holding(Promise.PREPARED_AS_ASKED, "prepare") as held:
        task = bench.task(7, generation=3)
        writer = bench.sink.writer(task)
        ids = [i for _ in range(2) for i in _written(bench, writer)]
        left = present(writer.prepare(), "prepare returned None though rows were written")
        named = (left.sink, left.kind, left.generation, left.epoch, left.rows)
        expected = (bench.sink.name, bench.sink.guarantee().kind, 3, 7, len(ids))
        held.expect(named == expected, f"sink, kind, generation, epoch, rows: {expected}", named)
        bench.look(held)
    bench.sweep("prepare", generation=3)
    bench.close()


def a_writer_aborts_only_itself(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    record = subject.kind.epochs(bench, 1).open()
    other = bench.prepare(bench.task(record.epoch))
    with subject.book.holding(Promise.WRITER_ABORT, "writer's abort") as held:
        bench.mark()
        for writes in (False, True):
            writer = bench.sink.writer(bench.task(record.epoch))
            if writes:
                _written(bench, writer)
            writer.abort()
            writer.abort()
            expect_listed(held, bench, [other])
            bench.committer.verify([other.committable])
            bench.look(held)
    bench.sweep("writer's abort", keep=[other])
    bench.committer.abort([other.committable])
    bench.close()


def of_two_attempts_one_counts(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    epochs = subject.kind.epochs(bench, 1)
    record = epochs.open()
    task = bench.task(record.epoch)
    with subject.book.holding(Promise.ATTEMPTS_APART, "prepare") as held:
        loser, winner = bench.prepare(task), bench.prepare(task.another_attempt())
        handles = (loser.committable.handle, winner.committable.handle)
        held.expect(len(set(handles)) == 2, "handles of their own for two attempts", handles)
        bench.committer.verify([loser.committable, winner.committable])
        finish(bench, epochs, record, [winner])
        bench.look(held, stray=Promise.ATTEMPTS_APART)  # the loser may be gone already, or wait for the sweep
    bench.sweep("prepare")
    with subject.book.holding(Promise.ATTEMPTS_APART, "abort") as held:
        bench.look(held)
    bench.close()


def a_commit_leaves_newer_work_alone(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    other = bench.another_pipeline(f"{bench.pipeline}2")
    epochs = subject.kind.epochs(bench, 1)
    record = epochs.open()
    mine, foreign = bench.prepare(bench.task(record.epoch)), other.prepare(other.task(record.epoch))
    newer = [
        bench.prepare(bench.task(record.epoch + later, bench.generation + above)) for later, above in ((1, 0), (1, 1))
    ]
    with subject.book.holding(Promise.COMMIT_ONLY_NAMED, "commit") as held:
        finish(bench, epochs, record, [mine])
        bench.look(held)
        for owner, works in ((bench, newer), (other, [foreign])):
            expect_listed(held, owner, works)
            owner.elsewhere().verify([w.committable for w in works])
    for owner, works in ((bench, newer), (other, [foreign])):
        owner.committer.abort([w.committable for w in works])
        owner.close()


def a_zombies_late_work_stays_unseen(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    bench.mark()
    ids, batch = bench.batch()
    zombie = bench.sink.writer(bench.task(1, generation=1))
    zombie.write(batch)
    epochs = subject.kind.epochs(bench, 2)
    record = epochs.open()
    mine = bench.prepare(bench.task(record.epoch, generation=bench.generation))
    finish(bench, epochs, record, [mine])
    with subject.book.holding(Promise.SWEPT, "prepare, late, of a zombie") as held:
        try:
            late = present(zombie.prepare(), "prepare returned None though rows were written")
            expect_listed(held, bench, [Work(late, ids)])
        except Retriable:
            pass  # its work was ended under it, so it left none
        bench.look(held)
        bench.sweep("prepare, late, of a zombie")
        bench.look(held)
    bench.close()


def leftovers_lists_what_is_prepared_and_no_more(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    names = [f"{bench.pipeline}2", bench.pipeline.replace("_", "x"), f"{bench.pipeline}/1", bench.pipeline.upper()]
    others = [bench.another_pipeline(name) for name in names]
    foreign = [other.prepare(other.task(1)) for other in others]
    bench.mark()
    works = [
        bench.prepare(bench.task(epoch, generation)) for generation, epoch in ((1, 4), (1, 5), (2, 5), (2, 5), (11, 6))
    ]
    with subject.book.holding(Promise.LEFTOVERS_EXACT, "leftovers") as held:
        for generation in (0, 1, 2, 10, 11):
            due = [w for w in works if w.committable.generation <= generation]
            expect_listed(held, bench, due, generation)
        for other, work in zip(others, foreign, strict=True):
            expect_listed(held, other, [work])
        if subject.make_sibling is not None:
            committer = subject.make_sibling().open(bench.pipeline, bench.schema)
            found = committer.leftovers(11)
            held.expect(not found, "nothing of another sink's", found)
            committer.close()
    with subject.book.holding(Promise.ABORT_ONLY_NAMED, "abort") as held:
        for done in range(len(works)):
            bench.committer.abort([works[done].committable])
            expect_listed(held, bench, works[done + 1 :], 11)
            bench.committer.verify([w.committable for w in works[done + 1 :]])
        for other, work in zip(others, foreign, strict=True):
            expect_listed(held, other, [work])
            other.committer.verify([work.committable])
    bench.sweep("abort", generation=11)
    for other, work in zip(others, foreign, strict=True):
        other.committer.abort([work.committable])
        other.close()
    bench.close()


def verify_misses_what_is_gone(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    record = subject.kind.epochs(bench, 1).open()
    works = [bench.prepare(bench.task(record.epoch)) for _ in range(2)]
    both = [w.committable for w in works]
    with subject.book.holding(Promise.VERIFY, "verify") as held:
        for committer in (bench.committer, bench.elsewhere()):
            committer.verify([])
            committer.verify(both)
        lost = [bench.lose(works[0]), both[1]]
        for committer in (bench.committer, bench.elsewhere()):
            held.expect_raises(WorkLost, lambda c=committer: c.verify(lost), "WorkLost: one of the two is gone")
            committer.verify(both[1:])
    with subject.book.holding(Promise.ABORT_IDEMPOTENT, "abort, where one of two is gone"):
        bench.committer.abort(both)
    bench.close()


def the_ledger_only_goes_forward(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    epochs = subject.kind.epochs(bench, 1)
    first = entry_of(epochs.open(), "store-'1'")
    with subject.book.holding(Promise.LEDGER_EQUAL, "ledger") as held:
        there = bench.committer.ledger()
        held.expect(there is None, "None before anything was recorded", there)
        for number in (first.epoch, first.epoch + 1, first.epoch + 5):
            entry = replace(first, epoch=number, timestamp_ms=first.timestamp_ms + number, positions=positions(number))
            bench.committer.write_ledger(entry)
            bench.elsewhere().write_ledger(entry)
            for there in (
                bench.committer.ledger(),
                subject.striker.processes.run(ReadLedgerCall(subject.make_sink, bench.pipeline)).result(),
            ):
                held.expect(there == entry, str(entry), there)
        other = bench.another_pipeline(f"{bench.pipeline}2")
        there = other.committer.ledger()
        held.expect(there is None, "None for another pipeline", there)
        other.close()
    with subject.book.holding(Promise.LEDGER_FORWARD, "write_ledger") as held:
        now = replace(entry, generation=4)
        bench.committer.write_ledger(now)  # the same epoch in a newer generation: forward
        for epoch, generation in ((now.epoch - 1, 9), (now.epoch - 1, 1), (now.epoch, 3), (1, 1), (now.epoch + 1, 3)):
            older = replace(now, epoch=epoch, generation=generation, positions=positions(0))
            expected = f"Fenced: epoch {epoch} of generation {generation} is behind epoch {now.epoch} of generation 4"
            held.expect_raises(Fenced, lambda older=older: bench.elsewhere().write_ledger(older), expected)
            there = bench.committer.ledger()
            held.expect(there == now, f"the row as it was: {now}", there)
        after = replace(now, epoch=now.epoch + 1)
        bench.committer.write_ledger(after)
        there = bench.committer.ledger()
        held.expect(there == after, str(after), there)
    bench.close()


def _written(bench: Workbench, writer: SinkWriter) -> tuple[int, ...]:
    ids, batch = bench.batch()
    writer.write(batch)
    return ids


def expect_listed(held: CheckedPromise, bench: Workbench, works: list[Work], generation: int | None = None) -> None:
    """Exactly these, as they were prepared, but for those whose rows are with the driver; of rows and bytes nothing is
    asked."""
    upto = max([bench.generation, *(w.committable.generation for w in works)]) if generation is None else generation
    found = bench.elsewhere().leftovers(upto)
    seen = sorted(map(_text, found))
    due = sorted(_text(w.committable) for w in works if not w.committable.payload)
    held.expect(seen == due, f"leftovers({upto}) of {bench.pipeline}: {due or 'nothing'}", seen or "nothing")


def _text(work: Committable) -> str:
    return f"{work.handle} of sink {work.sink!r} ({work.kind.value}), generation {work.generation}, epoch {work.epoch}"


SINK_CHECKS = (
    it_says_what_it_is,
    prepare_says_what_it_left,
    a_writer_aborts_only_itself,
    of_two_attempts_one_counts,
    leftovers_lists_what_is_prepared_and_no_more,
    a_commit_leaves_newer_work_alone,
    a_zombies_late_work_stays_unseen,
    verify_misses_what_is_gone,
    the_ledger_only_goes_forward,
    a_ledger_row_is_one_stores_and_its_newest_generations,
    rows_show_however_they_are_shared_out,
)
