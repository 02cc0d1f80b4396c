"""Checks that kill real processes in the calls of sinks that write through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from onefold.core.contract import Announcement, Decided, EpochRecord, EpochState
from onefold.core.protocol.committer_kinds import write_through
from onefold.core.testing.conformance.call_processes import Call
from onefold.core.testing.conformance.calls import Abandon, AnnounceCall, CommitCall, Prepare, Seal, Write
from onefold.core.testing.conformance.checks.crashes import cut_opening
from onefold.core.testing.conformance.checks.write_through_steps import (
    announced,
    begun,
    epochs,
    expect_told,
    rewritten,
    told,
)
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, finish
from onefold.core.testing.conformance.workbench import Workbench


def announce_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    before: Announcement | None = None
    for strike in subject.striker.each("announce"):
        record = mine.open()
        with subject.book.holding(Promise.ANNOUNCE_DURABLE, "announce") as held:
            strike.run(AnnounceCall(subject.make_sink, bench.pipeline, record))
        with subject.book.holding(Promise.ANNOUNCE_DURABLE, "announce", strike.crash) as held:
            there = bench.retry(lambda: told(bench.elsewhere()))
            possible = (announced(record),) if strike.is_answered else (before, announced(record))
            held.expect(there in possible, " or ".join(map(str, possible)), there)
            bench.retry(partial(_announce, bench, record))
            expect_told(held, bench, record)
        before = announced(record)
    bench.close()


def writers_can_be_cut_anywhere(subject: SinkSubject) -> None:
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


def seal_and_commit_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    mine = epochs(bench, 1)
    for call in ("seal", "commit"):
        for strike in subject.striker.each(call):
            record = begun(bench, mine)
            work = bench.prepare(bench.task(record.epoch))
            named = [work.committable]
            decided = Decided(replace(record, state=EpochState.DECIDED, manifest=tuple(named)))
            if call == "commit":
                write_through(bench.committer).seal(named)
            with subject.book.holding(Promise.NOTED_WHOLE, call) as held:
                made: dict[str, Call] = {
                    "seal": Seal(subject.make_sink, bench.pipeline, named),
                    "commit": CommitCall(subject.make_sink, bench.pipeline, decided, named),
                }
                strike.run(made[call])
            with subject.book.holding(Promise.NOTED_WHOLE, call, strike.crash) as held:
                there = bench.retry(lambda: told(bench.elsewhere()))
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


def _announce(bench: Workbench, record: EpochRecord) -> None:
    write_through(bench.elsewhere()).announce(record)


def opening_can_be_cut_anywhere(subject: SinkSubject) -> None:
    cut_opening(subject, _write_an_epoch)


def _write_an_epoch(held: CheckedPromise, after: Workbench) -> None:
    mine = epochs(after, 1)
    record = begun(after, mine)
    finish(after, mine, record, [after.prepare(after.task(record.epoch))])
    after.look(held)
