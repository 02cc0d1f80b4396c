"""What any checkpoint store must do, as tests for pytest: subclass, and give the fixture `connect`.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def connect(self, tmp_path): return lambda: MyStore(tmp_path / "store")

`connect()` answers with a store over the same data each time; two of them stand for two processes. `check_store` runs
these without pytest, so none is imported here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from onefold.core.contract import (
    MOVED,
    Committable,
    Decided,
    EpochRecord,
    EpochState,
    Generation,
    LedgerEntry,
    SinkKind,
)
from onefold.core.errors import CheckpointMismatch, DataLoss, Fenced, InternalError, OnefoldError, Retriable, WorkLost
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Store
from onefold.core.protocol.effects import EpochRequest

__all__ = ["StoreSuite", "last_of", "positions", "request", "work"]

Connect = Callable[[], Store]
NOW_MS = 1_700_000_000_000
PIPELINE = "p"


def expect(holds: bool, says: str = "the rule does not hold") -> None:
    """As `assert`, also under `python -O`."""
    if not holds:
        raise AssertionError(says)


@contextmanager
def raises(error: type[Exception], match: str = "") -> Iterator[None]:
    """The block must raise `error`, with `match` in its text."""
    try:
        yield
    except error as raised:
        text = str(raised)
    else:
        raise AssertionError(f"{error.__name__} was not raised")
    expect(match in text, f"{match!r} is not in {text!r}")


def positions(offset: int) -> Positions:
    return Positions.of({"t/0": offset})


def request(start: int, end: int, batch_id: int = 0, sinks: tuple[str, ...] = ("sink",)) -> EpochRequest:
    return EpochRequest(Range(positions(start), positions(end)), "query", batch_id, "job", sinks)


def last_of(store: Store) -> int:
    """The last epoch past its commit point, as the protocol reads it before it opens the next."""
    last = store.facts(PIPELINE).last
    return last.epoch if last else 0


def work(record: EpochRecord, handle: str = "w", sink: str = "sink", rows: int = 3) -> Committable:
    return Committable(sink, SinkKind.TWO_PHASE, handle, record.generation, record.epoch, rows, bytes=30)


def decided(store: Store, generation: Generation, start: int, end: int) -> EpochRecord:
    record = store.open_epoch(generation, request(start, end), last_of(store), NOW_MS)
    return store.decide(generation, record, [work(record, f"w{record.epoch}")], NOW_MS).record


def completed(store: Store, generation: Generation, start: int, end: int) -> EpochRecord:
    record = store.open_epoch(generation, request(start, end), last_of(store), NOW_MS)
    store.complete(generation, store.decide(generation, record, [work(record)], NOW_MS), NOW_MS)
    return replace(record, state=EpochState.COMPLETE, manifest=(work(record),))


class StoreSuite:
    """Every test gets a fresh store."""

    def test_the_stores_id_stays(self, connect: Connect) -> None:
        expect(connect().id() == connect().id() != "")

    def test_an_unknown_pipeline_has_no_history(self, connect: Connect) -> None:
        facts = connect().facts(PIPELINE)
        expect(
            (facts.generation, facts.last, facts.complete, facts.unfinished, facts.frozen)
            == (
                0,
                None,
                None,
                (),
                None,
            )
        )

    def test_a_generation_is_above_all_that_store_and_ledgers_have_seen(self, connect: Connect) -> None:
        store = connect()
        numbers = [store.acquire(PIPELINE, above).number for above in (0, 0, 7, 3)]
        expect(numbers == [1, 2, 8, 9])

    def test_two_generations_never_share_number_or_token(self, connect: Connect) -> None:
        stores, taken = [connect() for _ in range(4)], list[Generation]()
        stores[0].id()

        def acquire(store: Store) -> None:
            taken.extend(store.acquire(PIPELINE, 0) for _ in range(5))

        stores[0].acquire(PIPELINE, 0)
        _together([partial(acquire, store) for store in stores])
        expect(len({g.number for g in taken}) == len({g.token for g in taken}) == 20)

    def test_of_first_starts_at_once_each_gets_a_generation_of_its_own(self, connect: Connect) -> None:
        stores, taken = [connect() for _ in range(4)], list[Generation]()
        stores[0].id()

        def acquire(store: Store) -> None:
            for _ in range(10):
                with suppress(Retriable):
                    taken.append(store.acquire(PIPELINE, 0))
                    return

        _together([partial(acquire, store) for store in stores])
        expect(sorted(g.number for g in taken) == [1, 2, 3, 4])

    def test_a_process_that_goes_on_takes_nothing_back_from_its_successor(self, connect: Connect) -> None:
        store = connect()
        second = store.acquire(PIPELINE, 0, store.acquire(PIPELINE, 0))
        expect(second.number == 2)
        successor = connect().acquire(PIPELINE, 0)
        with raises(Fenced):
            store.acquire(PIPELINE, 0, second)
        expect(store.freeze(successor, positions(4)) == positions(4))

    def test_everything_but_reading_is_fenced_by_a_newer_generation(self, connect: Connect) -> None:
        store = connect()
        old = store.acquire(PIPELINE, 0)
        record = store.open_epoch(old, request(0, 5), last_of(store), NOW_MS)
        decided = store.decide(old, record, [], NOW_MS)
        store.acquire(PIPELINE, 0)
        entry = LedgerEntry(9, 1, NOW_MS, positions(9), store.id())
        for call in (
            lambda: store.freeze(old, positions(0)),
            lambda: store.open_epoch(old, request(5, 6), last_of(store), NOW_MS),
            lambda: store.decide(old, record, [], NOW_MS),
            lambda: store.complete(old, decided, NOW_MS),
            lambda: store.damage(old, decided, "gone"),
            lambda: store.adopt(old, entry, ("sink",), NOW_MS),
            lambda: store.anchor(old, positions(5)),
        ):
            with raises(Fenced):
                call()

    def test_the_right_number_with_another_token_is_fenced(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        with raises(Fenced):
            store.open_epoch(replace(generation, token="forged"), request(0, 5), last_of(store), NOW_MS)

    def test_the_first_frozen_positions_stay(self, connect: Connect) -> None:
        store = connect()
        expect(store.freeze(store.acquire(PIPELINE, 0), positions(4)) == positions(4))
        expect(connect().freeze(store.acquire(PIPELINE, 0), positions(9)) == positions(4))
        expect(store.facts(PIPELINE).frozen == positions(4))

    def test_a_new_checkpoint_begins_where_the_positions_were_anchored_and_then_where_they_were_moved_to(
        self, connect: Connect
    ) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(0))
        completed(store, generation, 0, 5)
        expect((store.facts(PIPELINE).origin, store.facts(PIPELINE).moved) == (None, 0))
        store.anchor(generation, positions(5))
        expect((store.facts(PIPELINE).origin, store.facts(PIPELINE).moved) == (positions(5), 0))
        moving = store.open_epoch(generation, replace(request(5, 2), query_id=MOVED), last_of(store), NOW_MS)
        expect(
            (store.facts(PIPELINE).origin, store.facts(PIPELINE).moved, [*store.moves(PIPELINE)])
            == (positions(5), 0, [])
        )
        moved = store.decide(generation, moving, [], NOW_MS)
        facts = connect().facts(PIPELINE)
        expect((facts.origin, facts.moved, facts.frozen) == (positions(2), 2, positions(0)))
        store.complete(generation, moved, NOW_MS)
        expect([record.range for record in connect().moves(PIPELINE)] == [moving.range])
        expect(store.open_epoch(generation, request(2, 5), last_of(store), NOW_MS).epoch == 3)

    def test_a_move_that_an_adoption_undoes_is_undone(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(0))
        completed(store, generation, 0, 5)
        for start, end in ((5, 8), (8, 1)):
            moving = store.open_epoch(generation, replace(request(start, end), query_id=MOVED), last_of(store), NOW_MS)
            store.complete(generation, store.decide(generation, moving, [], NOW_MS), NOW_MS)
        for epoch, origin, moved in ((3, positions(8), 2), (1, None, 0)):
            store.adopt(generation, LedgerEntry(epoch, 1, NOW_MS + epoch, positions(5), store.id()), ("sink",), NOW_MS)
            expect((store.facts(PIPELINE).origin, store.facts(PIPELINE).moved) == (origin, moved))

    def test_an_epoch_opens_once_and_answers_with_the_stored_time(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        first = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        expect(store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS + 999) == first)
        expect((first.epoch, first.state, first.sinks) == (1, EpochState.OPEN, ("sink",)))
        expect(store.facts(PIPELINE).unfinished == (first,))

    def test_no_epoch_opens_beside_an_unfinished_one(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        with raises(CheckpointMismatch, match="still open"):
            store.open_epoch(generation, request(0, 6), last_of(store), NOW_MS)
        store.decide(generation, record, [], NOW_MS)
        with raises(CheckpointMismatch, match="still decided"):
            store.open_epoch(generation, request(5, 6), last_of(store), NOW_MS)

    def test_an_epoch_must_start_where_the_last_one_ended(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        completed(store, generation, 0, 5)
        with raises(CheckpointMismatch, match="end of the last"):
            store.open_epoch(generation, request(4, 9), last_of(store), NOW_MS)
        with raises(DataLoss, match="starts beyond the recorded end"):
            store.open_epoch(generation, request(6, 9), last_of(store), NOW_MS)

    def test_the_first_epoch_must_start_at_the_frozen_positions(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(3))
        with raises(CheckpointMismatch):
            store.open_epoch(generation, request(0, 9), last_of(store), NOW_MS)
        expect(store.open_epoch(generation, request(3, 9), last_of(store), NOW_MS).epoch == 1)

    def test_numbers_and_times_grow_also_where_the_clock_went_back(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        first = completed(store, generation, 0, 5)
        second = store.open_epoch(generation, request(5, 6), last_of(store), 1)
        expect((second.epoch, second.timestamp_ms) == (first.epoch + 1, first.timestamp_ms + 1))

    def test_a_late_request_for_a_range_without_records_opens_no_second_epoch(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        before = last_of(store)
        completed(store, generation, 0, 0)
        with raises(CheckpointMismatch, match="end of the last"):
            store.open_epoch(generation, request(0, 0), before, NOW_MS)
        expect(store.facts(PIPELINE).unfinished == ())

    def test_an_open_epoch_that_writes_through_is_run_again_as_it_was(self, connect: Connect) -> None:
        store = connect()
        asked = replace(request(0, 5), write_through=("sink",))
        first = store.open_epoch(store.acquire(PIPELINE, 0), asked, 0, NOW_MS)
        newer = store.acquire(PIPELINE, 0)
        for other in (
            replace(asked, range=request(0, 6).range),
            replace(asked, sinks=("sink", "another")),
            request(0, 5),
        ):
            with raises(CheckpointMismatch, match="still open"):
                store.open_epoch(newer, other, 0, NOW_MS)
        again = store.open_epoch(newer, asked, 0, NOW_MS + 999)
        expect(again == replace(first, generation=newer.number))
        expect(connect().facts(PIPELINE).unfinished == (again,))

    def test_a_decision_is_kept_and_asked_again_gives_the_same(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        manifest = [work(record, "a"), work(record, "b", rows=0)]
        first = store.decide(generation, record, manifest, NOW_MS)
        expect(first.record == replace(record, state=EpochState.DECIDED, manifest=tuple(manifest)))
        expect(connect().decide(generation, record, manifest, NOW_MS + 1) == first)
        expect(connect().facts(PIPELINE).last == first.record)
        expect(connect().facts(PIPELINE).complete is None)

    def test_another_manifest_for_a_decided_epoch_is_refused(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        store.decide(generation, record, [work(record, "a")], NOW_MS)
        with raises(CheckpointMismatch, match="another manifest"):
            store.decide(generation, record, [work(record, "b")], NOW_MS)

    def test_an_epoch_that_was_never_opened_is_decided_and_completes_the_last_one(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(0))
        first = store.decide(generation, request(0, 5).opened(generation, 1, NOW_MS), [], NOW_MS)
        second = request(5, 6).opened(generation, 2, NOW_MS + 1)
        for _ in range(2):
            decided = store.decide(generation, second, [work(second)], NOW_MS, None, first)
            expect(decided.record == replace(second, state=EpochState.DECIDED, manifest=(work(second),)))
        facts = connect().facts(PIPELINE)
        expect((facts.last, facts.unfinished) == (decided.record, (decided.record,)))
        expect(facts.complete == replace(first.record, state=EpochState.COMPLETE))

    def test_nothing_is_decided_but_right_after_the_last_epoch_and_once_that_is_complete(
        self, connect: Connect
    ) -> None:
        store = connect()
        older, generation = store.acquire(PIPELINE, 0), store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(0))
        asked = request(5, 6)
        others = [asked.opened(generation, 1, NOW_MS + 1), asked.opened(generation, 3, NOW_MS + 1)]
        others += [request(4, 9).opened(generation, 2, NOW_MS + 1)]
        others += [asked.opened(older, 2, NOW_MS + 1), request(3, 5).opened(generation, 1, NOW_MS)]
        first = store.decide(generation, request(0, 5).opened(generation, 1, NOW_MS), [], NOW_MS)
        for other in others:
            with raises(CheckpointMismatch):
                store.decide(generation, other, [work(other)], NOW_MS, None, first)
        with raises(CheckpointMismatch):
            store.decide(generation, asked.opened(generation, 2, NOW_MS + 1), [], NOW_MS)
        with raises(DataLoss, "starts beyond the recorded end"):
            store.decide(generation, request(6, 9).opened(generation, 3, NOW_MS + 1), [], NOW_MS, None, first)
        facts = store.facts(PIPELINE)
        expect((facts.last, facts.complete, facts.unfinished) == (first.record, None, (first.record,)))

    def test_the_first_decision_is_on_what_begins_at_the_frozen_positions(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        store.freeze(generation, positions(3))
        expect(store.facts(PIPELINE).frozen == connect().facts(PIPELINE).frozen == positions(3))
        with raises(CheckpointMismatch):
            store.decide(generation, request(0, 9).opened(generation, 1, NOW_MS), [], NOW_MS)
        expect(store.decide(generation, request(3, 9).opened(generation, 1, NOW_MS), [], NOW_MS).record.epoch == 1)

    def test_nothing_is_decided_in_the_place_of_an_epoch_that_must_run_again(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        begun = store.open_epoch(generation, replace(request(0, 5), write_through=("sink",)), 0, NOW_MS)
        with raises(CheckpointMismatch):
            store.decide(generation, request(0, 5).opened(generation, 1, NOW_MS), [], NOW_MS)
        expect(store.facts(PIPELINE).begun == begun)

    def test_an_epoch_that_is_not_decided_is_never_completed(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        first = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        permit = store.decide(generation, first, [], NOW_MS)
        store.damage(generation, permit, "gone")
        with raises(CheckpointMismatch):
            store.complete(generation, permit, NOW_MS)

    def test_a_damaged_epoch_is_completed_once_its_damage_was_accepted(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        first = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        store.damage(generation, store.decide(generation, first, [], NOW_MS), "gone")
        store.complete(generation, store.accept_damage(generation, first), NOW_MS)
        facts = store.facts(PIPELINE)
        expect(facts.unfinished == () and facts.complete is not None and facts.complete.epoch == first.epoch)

    def test_a_merge_that_fails_takes_the_decision_back(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)

        def merge(_connection: object) -> None:
            raise WorkLost("stage-rows-missing", "fewer rows than the manifest says")

        with raises(WorkLost):
            store.decide(generation, record, [work(record)], NOW_MS, merge)
        expect(store.facts(PIPELINE).unfinished == (record,))

    def test_a_merge_runs_once_however_often_the_decision_is_asked(self, connect: Connect) -> None:
        store, merges = connect(), list[object]()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        for _ in range(3):
            store.decide(generation, record, [work(record)], NOW_MS, merges.append)
        expect(len(merges) == 1)

    def test_a_completed_epoch_is_found_by_exactly_its_range(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = completed(store, generation, 0, 5)
        expect(store.find(PIPELINE, request(0, 5, batch_id=77)) == record, "the batch id says nothing")
        expect(store.find(PIPELINE, request(0, 6)) is None)
        expect(store.find(PIPELINE, request(1, 5)) is None)
        expect(store.find(PIPELINE, request(0, 55)) is None)
        expect(store.facts(PIPELINE).unfinished == ())

    def test_an_open_epoch_is_not_found(self, connect: Connect) -> None:
        store = connect()
        store.open_epoch(store.acquire(PIPELINE, 0), request(0, 5), last_of(store), NOW_MS)
        expect(store.find(PIPELINE, request(0, 5)) is None)

    def test_an_empty_range_is_found_by_its_batch_too(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = completed(store, generation, 0, 0)
        expect(store.find(PIPELINE, request(0, 0, batch_id=0)) == record)
        expect(store.find(PIPELINE, request(0, 0, batch_id=1)) is None)

    def test_a_damaged_epoch_stays_unfinished(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)
        store.damage(generation, store.decide(generation, record, [], NOW_MS), "expired")
        facts = store.facts(PIPELINE)
        expect([r.state for r in facts.unfinished] == [EpochState.DAMAGED])
        expect(facts.last is None)

    def test_an_adoption_replaces_the_stores_own_account(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        completed(store, generation, 0, 5)
        store.open_epoch(generation, request(5, 7), last_of(store), NOW_MS)
        entry = LedgerEntry(4, 9, NOW_MS + 50, positions(30), "other")
        for _ in range(2):
            store.adopt(generation, entry, ("sink",), NOW_MS)
        facts = store.facts(PIPELINE)
        expect(facts.last == facts.complete)
        expect(facts.last is not None and (facts.last.epoch, facts.last.range.end) == (4, positions(30)))
        expect(facts.unfinished == ())
        expect(store.open_epoch(generation, request(30, 31), last_of(store), NOW_MS).epoch == 5)

    def test_an_adoption_ends_what_was_decided_below_it(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        decided(store, generation, 0, 5)
        store.adopt(generation, LedgerEntry(4, 9, NOW_MS + 50, positions(30), "other"), ("sink",), NOW_MS)
        expect(store.facts(PIPELINE).unfinished == ())

    def test_an_adoption_ends_what_was_damaged_below_it(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), 0, NOW_MS)
        store.damage(generation, store.decide(generation, record, [work(record)], NOW_MS), "gone")
        store.adopt(generation, LedgerEntry(4, 9, NOW_MS + 50, positions(30), "other"), ("sink",), NOW_MS)
        expect(store.facts(PIPELINE).unfinished == ())

    def test_what_was_never_decided_is_not_damaged(self, connect: Connect) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        record = store.open_epoch(generation, request(0, 5), 0, NOW_MS)
        with raises(InternalError):
            store.damage(generation, Decided(record), "gone")

    def test_a_complete_epoch_is_damaged_where_its_writers_turn_out_to_have_left_rows_out(
        self, connect: Connect
    ) -> None:
        store = connect()
        generation = store.acquire(PIPELINE, 0)
        permit = store.decide(generation, store.open_epoch(generation, request(0, 5), 0, NOW_MS), [], NOW_MS)
        store.complete(generation, permit, NOW_MS)
        store.damage(generation, permit, "a part was left out")
        (damaged,) = store.facts(PIPELINE).unfinished
        expect(damaged.state is EpochState.DAMAGED)
        store.complete(generation, store.accept_damage(generation, damaged), NOW_MS)
        expect(store.facts(PIPELINE).complete is not None)

    def test_of_many_generations_in_threads_only_the_newest_decides(self, connect: Connect) -> None:
        store = connect()
        generations = [store.acquire(PIPELINE, 0) for _ in range(4)]
        record = store.open_epoch(generations[-1], request(0, 5), last_of(store), NOW_MS)
        winners: list[int] = []
        others: list[OnefoldError] = []

        def decide(generation: Generation) -> None:
            try:
                mine = replace(record, generation=generation.number)
                connect().decide(generation, mine, [work(mine)], NOW_MS)
                winners.append(generation.number)
            except OnefoldError as error:
                others.append(error)

        _together([partial(decide, generation) for generation in generations])
        expect(winners == [generations[-1].number])
        expect({type(error) for error in others} == {Fenced})


def _together(calls: list[Callable[[], None]]) -> None:
    """Run them in threads that start as one, and raise what they raised."""
    barrier, raised = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], None]) -> None:
        barrier.wait(timeout=10)
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if raised:
        raise raised[0]
