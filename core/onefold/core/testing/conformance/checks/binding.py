"""Checks of the ledger row as a fence: of every sink, whatever its kind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onefold.core.contract import Binding, Committer, LedgerEntry, WriteThrough
from onefold.core.errors import CheckpointMismatch, Fenced
from onefold.core.positions import Positions
from onefold.core.testing.conformance.calls import BindCall, ReadLedgerCall
from onefold.core.testing.conformance.promises import CheckedPromise, Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject
from onefold.core.testing.conformance.workbench import Workbench, entry_of, positions

STORE, OTHER = "store-'1'", "store-2"


def a_ledger_row_is_one_stores_and_its_newest_generations(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    opened = subject.kind.epochs(bench, 1).open()
    row = LedgerEntry(0, 2, 0, Positions(), STORE)
    with subject.book.holding(Promise.BOUND, "bind") as held:
        for committer in (bench.committer, bench.elsewhere()):
            committer.bind(Binding(STORE, 2))
            _expect(held, bench, row)
        row = replace(entry_of(opened, STORE, generation=2), positions=positions(3))
        bench.committer.write_ledger(row)
        for binding, error in (
            (Binding(STORE, 1), Fenced),
            (Binding(OTHER, 9), CheckpointMismatch),
            (Binding(OTHER, 2, takes_over=True), Fenced),
        ):
            for committer in (bench.committer, bench.elsewhere()):
                expected = f"{error.__name__}: {binding} over generation 2 of {STORE}"
                held.expect_raises(error, partial(committer.bind, binding), expected)
            _expect(held, bench, row)
    for binding in (Binding(STORE, 4), Binding(OTHER, 5, takes_over=True), Binding(STORE, 7, takes_over=True)):
        before, row = row, replace(row, generation=binding.generation, store_id=binding.store_id)
        late = replace(before, epoch=before.epoch + 1)
        with subject.book.holding(Promise.BOUND, "bind") as held:
            bench.elsewhere().bind(binding)
            _expect(held, bench, row)
        with subject.book.holding(Promise.FENCES, "write_ledger") as held:
            foreign = replace(late, generation=9, store_id=STORE if binding.store_id == OTHER else OTHER)
            for committer in (bench.committer, bench.elsewhere()):
                for entry in (late, foreign):
                    expected = f"Fenced: {entry} after {binding}"
                    held.expect_raises(Fenced, partial(committer.write_ledger, entry), expected)
                _expect(held, bench, row)
        with subject.book.holding(Promise.FENCES, "announce") as held:
            for committer in (bench.committer, bench.elsewhere()):
                if isinstance(committer, WriteThrough):
                    begun = replace(opened, epoch=late.epoch, generation=late.generation)
                    expected = f"Fenced: the epoch of generation {late.generation} after {binding}"
                    held.expect_raises(Fenced, partial(committer.announce, begun), expected)
                _expect(held, bench, row)
        with subject.book.holding(Promise.LEDGER_FORWARD, "write_ledger") as held:
            row = replace(row, epoch=row.epoch + 1, timestamp_ms=row.timestamp_ms + 1)
            bench.committer.write_ledger(row)
            _expect(held, bench, row)
    bench.close()


def bind_can_be_cut_anywhere(subject: SinkSubject) -> None:
    bench = Workbench(subject)
    row = replace(entry_of(subject.kind.epochs(bench, 1).open(), STORE), positions=positions(3))
    bench.committer.bind(Binding(STORE, row.generation))
    bench.committer.write_ledger(row)
    for number, strike in enumerate(subject.striker.each("bind")):
        store_id = OTHER if number % 2 == 0 else STORE
        binding = Binding(store_id, row.generation + 1, takes_over=True)
        bound = replace(row, generation=binding.generation, store_id=store_id)
        with subject.book.holding(Promise.BOUND_DURABLE, "bind") as held:
            strike.run(BindCall(subject.make_sink, bench.pipeline, binding))
        with subject.book.holding(Promise.BOUND_DURABLE, "bind", strike.crash) as held:
            there = bench.committer.ledger()
            possible = (bound,) if strike.is_answered else (row, bound)
            held.expect(there in possible, " or ".join(map(str, possible)), there)
            bench.retry(partial(_again, bench.elsewhere(), binding))
            _expect(held, bench, bound)
        row = bound
    bench.close()


def _again(committer: Committer, binding: Binding) -> None:
    """As another start of that generation would, which finds its own row."""
    there = committer.ledger()
    if there is None or there.generation < binding.generation:
        committer.bind(binding)
    committer.bind(replace(binding, takes_over=False))


def _expect(held: CheckedPromise, bench: Workbench, row: LedgerEntry) -> None:
    read = ReadLedgerCall(bench.target.make_sink, bench.pipeline)
    for there in (bench.committer.ledger(), bench.elsewhere().ledger(), read.ready()()):
        held.expect(there == row, str(row), there)
