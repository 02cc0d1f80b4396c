"""Recovery's decisions, branch by branch: plain facts in, a decision or an error out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.errors import raises

from onefold.core import (
    Announcement,
    CheckpointMismatch,
    Committable,
    CommittedPart,
    ConfigError,
    Damaged,
    DataLoss,
    EpochRecord,
    EpochState,
    Generation,
    LedgerEntry,
    OnefoldError,
    Positions,
    Range,
    SinkKind,
)
from onefold.core.protocol.binding import UNBOUND
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.recovery import (
    Committed,
    Next,
    Replay,
    adoption,
    check_committed,
    check_setting,
    ledger_end,
    orphans,
    place,
    resolve,
)
from onefold.store.job.offset_json import parse_offsets


def at(offset: int) -> Positions:
    return Positions.of({"t/0": offset})


def record(epoch: int, state: EpochState, sinks: tuple[str, ...] = ("a", "b")) -> EpochRecord:
    span = Range(at(epoch * 10 - 10), at(epoch * 10))
    return EpochRecord("p", epoch, 1, state, span, epoch * 1000, "q", epoch, "job", sinks=sinks)


def ledger(
    epoch: int, store: str = "store", time_ms: int | None = None, members: tuple[CommittedPart, ...] = ()
) -> LedgerEntry:
    return LedgerEntry(epoch, 1, time_ms or epoch * 1000, at(epoch * 10), store, members)


DONE, DECIDED = record(1, EpochState.COMPLETE), record(2, EpochState.DECIDED)
OPEN, DAMAGED = record(2, EpochState.OPEN), record(2, EpochState.DAMAGED)
EMPTY = StoreFacts("store", 3, frozen=at(0))
NOTHING = StoreFacts("store", 3)
AT_REST = StoreFacts("store", 3, DONE, DONE, (), at(0))
WITH_OPEN = replace(AT_REST, unfinished=(OPEN,))
WITH_DECIDED = StoreFacts("store", 3, DECIDED, DONE, (DECIDED,), at(0))
FIRST_DECIDED = StoreFacts("store", 3, record(1, EpochState.DECIDED), None, (record(1, EpochState.DECIDED),), at(0))


def test_nothing_unfinished_needs_nothing() -> None:
    for facts, entry in ((EMPTY, None), (AT_REST, ledger(1))):
        resolution = resolve(facts, {"a": entry, "b": entry})
        assert (resolution.finish, resolution.accepted) == ((), ())


def test_what_was_decided_is_finished() -> None:
    entries = {"a": ledger(1), "b": ledger(1)}
    assert resolve(WITH_OPEN, entries).finish == ()
    assert [d.record for d in resolve(WITH_DECIDED, entries).finish] == [DECIDED]


def test_a_decided_epoch_may_be_committed_in_some_sinks_already() -> None:
    some = {"a": ledger(2), "b": ledger(1, members=(CommittedPart(2, 1, 2000),))}
    assert len(resolve(WITH_DECIDED, some).finish) == 1
    assert len(resolve(FIRST_DECIDED, {"a": ledger(1), "b": None}).finish) == 1


@pytest.mark.parametrize(
    ("facts", "entries", "error", "code"),
    [
        (WITH_OPEN, {"a": ledger(1)}, ConfigError, "sink-removed"),
        (replace(AT_REST, unfinished=(DAMAGED,)), {"a": ledger(1), "b": ledger(1)}, Damaged, "epoch-damaged"),
        (AT_REST, {"a": ledger(1), "b": ledger(1), "c": None}, ConfigError, "sink-added"),
        (AT_REST, {"a": ledger(1), "b": None}, DataLoss, "destination-older-copy"),
        (WITH_DECIDED, {"a": ledger(2), "b": replace(ledger(1), epoch=0)}, DataLoss, "destination-older-copy"),
        (AT_REST, {"a": ledger(1, store="other"), "b": ledger(1)}, CheckpointMismatch, "another-store"),
        (AT_REST, {"a": ledger(3), "b": ledger(1)}, CheckpointMismatch, "sink-ahead-of-store"),
        (EMPTY, {"a": ledger(1), "b": None}, CheckpointMismatch, "sink-ahead-of-store"),
        (
            AT_REST,
            {"a": ledger(1, members=(CommittedPart(2, 1, 2000),)), "b": ledger(1)},
            CheckpointMismatch,
            "sink-ahead-of-store",
        ),
        (
            WITH_OPEN,
            {"a": ledger(1, members=(CommittedPart(2, 1, 2000),)), "b": ledger(1)},
            CheckpointMismatch,
            "sink-ahead-of-store",
        ),
        (AT_REST, {"a": ledger(1, time_ms=5), "b": ledger(1)}, CheckpointMismatch, "histories-differ"),
    ],
)
def test_two_stories_stop_the_start(
    facts: StoreFacts, entries: dict[str, LedgerEntry | None], error: type[OnefoldError], code: str
) -> None:
    with raises(error, code):
        resolve(facts, entries)


def test_members_of_a_first_epoch_that_no_ledger_row_covers_yet_count_too() -> None:
    half = LedgerEntry(0, 1, 0, Positions(), "", (CommittedPart(1, 1, 1000),))
    assert resolve(FIRST_DECIDED, {"a": half, "b": None}).finish
    with raises(CheckpointMismatch, "sink-ahead-of-store"):
        resolve(EMPTY, {"a": half, "b": None})


def test_an_epoch_that_the_store_has_forgotten_is_no_other_history() -> None:
    newest = record(9, EpochState.COMPLETE)
    pruned = replace(AT_REST, last=newest, complete=newest)
    assert adoption(pruned, {"a": ledger(4), "b": ledger(9)}) is None
    with raises(CheckpointMismatch, "sinks-disagree"):
        adoption(pruned, {"a": ledger(4, store="other"), "b": ledger(9)})


def test_nothing_is_adopted_where_store_and_destinations_agree() -> None:
    assert adoption(AT_REST, {"a": ledger(1), "b": ledger(1)}) is None
    assert adoption(WITH_DECIDED, {"a": ledger(1), "b": ledger(2)}) is None
    assert adoption(EMPTY, {"a": None, "b": None}) is None
    bound = replace(UNBOUND, generation=2, store_id="other")
    assert adoption(EMPTY, {"a": bound, "b": None}) is None, "bound to another store, which completed nothing"


def test_the_store_that_comes_back_after_another_one_was_refused_finishes_its_own_history() -> None:
    assert adoption(WITH_DECIDED, {"a": ledger(1, store="o"), "b": ledger(1, store="o")}) is None
    member = ledger(1, store="o", members=(CommittedPart(2, 1, 2000),))
    assert adoption(WITH_DECIDED, {"a": member, "b": ledger(1, store="o")}) is None


@pytest.mark.parametrize(
    "entry",
    [
        ledger(3),
        ledger(2, store="other"),
        ledger(1, time_ms=5),
        replace(ledger(1, store="other"), positions=at(7)),
        replace(ledger(1), positions=at(7)),
    ],
    ids=["ahead", "another store", "another time", "another store's, another end", "another end"],
)
def test_what_all_destinations_say_is_adopted(entry: LedgerEntry) -> None:
    assert adoption(AT_REST, {"a": entry, "b": entry}) == entry


@pytest.mark.parametrize(
    ("facts", "entries", "code"),
    [
        (AT_REST, {"a": ledger(3), "b": ledger(2)}, "sinks-disagree"),
        (AT_REST, {"a": ledger(3), "b": None}, "sinks-disagree"),
        (AT_REST, {"a": ledger(3), "late": None}, "sinks-disagree"),
        (AT_REST, {"a": None, "late": ledger(3)}, "sinks-disagree"),
        (AT_REST, {"a": ledger(3), "b": ledger(2), "late": None}, "sinks-disagree"),
        (AT_REST, {"a": ledger(3, members=(CommittedPart(4, 1, 4000),)), "b": ledger(3)}, "epoch-half-written"),
        (WITH_DECIDED, {"a": ledger(1, "o", 5), "b": ledger(1, "o", 5)}, "epoch-half-written"),
    ],
)
def test_no_adoption_where_the_destinations_disagree(
    facts: StoreFacts, entries: dict[str, LedgerEntry | None], code: str
) -> None:
    with raises(CheckpointMismatch, code):
        adoption(facts, entries, may_come_late=("late",))


def asks(start: int, end: int) -> EpochRequest:
    return EpochRequest(Range(at(start), at(end)), "q", 7, "job", ("a", "b"))


def test_the_range_that_continues_the_chain_is_next() -> None:
    assert place(AT_REST, None, asks(10, 15)) == Next()
    assert place(EMPTY, None, asks(0, 15)) == Next()
    assert place(StoreFacts("store", 1), None, asks(99, 100)) == Next()


def test_a_batch_that_goes_on_from_batches_nobody_has_on_record_is_refused() -> None:
    nothing = StoreFacts("store", 1)
    assert place(nothing, None, asks(99, 100)) == Next()
    with raises(DataLoss, "batches-not-recorded"):
        place(nothing, None, replace(asks(99, 100), continues=True))
    assert place(EMPTY, None, replace(asks(0, 15), continues=True)) == Next(), "the frozen start is on record"


def test_a_begun_write_through_epoch_runs_again_as_it_was_or_not_at_all() -> None:
    begun = replace(record(2, EpochState.OPEN), write_through=("a",))
    facts = replace(AT_REST, unfinished=(begun,))
    shown = replace(ledger(1), announced=Announcement(2, 1, 2000, begun.range))
    resolution = resolve(facts, {"a": shown, "b": ledger(1)})
    assert resolution.finish == ()
    same = replace(asks(10, 20), write_through=("a",))
    for again in (same, replace(same, sinks=("b", "a"))):  # sinks commit in the order of their settings
        assert place(facts, None, again) == Next()
    with raises(CheckpointMismatch, "replay-differs"):
        place(facts, None, replace(same, range=Range(at(10), at(19))))
    with raises(CheckpointMismatch, "replay-differs"):
        place(facts, None, replace(same, fingerprint="other columns"))
    for other in (replace(same, sinks=("a",)), replace(same, sinks=("a", "b", "c")), asks(10, 20)):
        with raises(CheckpointMismatch, "sinks-changed"):
            place(facts, None, other)


@pytest.mark.parametrize(
    ("announced", "code"),
    [
        (Announcement(2, 1, 2001, Range(at(10), at(20))), "histories-differ"),
        (Announcement(3, 1, 3000, Range(at(20), at(30))), "sink-ahead-of-store"),
    ],
)
def test_an_announcement_that_the_store_does_not_explain_stops_the_start(announced: Announcement, code: str) -> None:
    facts = replace(AT_REST, unfinished=(replace(record(2, EpochState.OPEN), write_through=("a",)),))
    with raises(CheckpointMismatch, code):
        resolve(facts, {"a": replace(ledger(1), announced=announced), "b": ledger(1)})


def test_a_range_that_was_decided_is_a_replay() -> None:
    assert place(AT_REST, DONE, asks(0, 10)) == Replay(DONE)


@pytest.mark.parametrize(
    ("facts", "request_", "error"),
    [
        (AT_REST, asks(11, 15), DataLoss),
        (AT_REST, asks(9, 15), CheckpointMismatch),
        (AT_REST, asks(0, 15), CheckpointMismatch),
        (EMPTY, asks(5, 15), CheckpointMismatch),  # nothing was written: it is another start
        (replace(EMPTY, frozen=at(8)), asks(5, 15), CheckpointMismatch),
        (replace(EMPTY, frozen=at(8)), replace(asks(5, 15), continues=True), DataLoss),
        (AT_REST, asks(10, 4), DataLoss),
    ],
)
def test_gaps_overlaps_and_truncated_topics_are_refused(
    facts: StoreFacts, request_: EpochRequest, error: type[OnefoldError]
) -> None:
    with pytest.raises(error, match="batch 7"):
        place(facts, None, request_)


def test_no_error_says_of_records_that_they_are_written_where_nothing_was() -> None:
    for frozen in (3, 8):
        with raises(CheckpointMismatch, "batch-of-another-start") as refused:
            place(replace(EMPTY, frozen=at(frozen)), None, asks(5, 15))
        assert "written already" not in str(refused.value)


def test_a_checkpoint_beyond_the_record_was_written_for_a_destination_that_is_gone() -> None:
    check_committed(AT_REST, Committed("q", 1, at(10)))
    check_committed(AT_REST, Committed("q", 1, at(3)))
    check_committed(EMPTY, Committed("q", 1, at(0)))
    for facts, committed in ((AT_REST, 11), (EMPTY, 1), (replace(EMPTY, frozen=at(2)), 1), (NOTHING, 1)):
        with raises(DataLoss, "checkpoint-ahead"):
            check_committed(facts, Committed("q", 1, at(committed)))


def delta(version: int, index: int) -> Positions:
    """Positions that go on while one of their numbers goes back."""
    text = f'{{"reservoirId":"x","reservoirVersion":{version},"index":{index}}}'
    return Positions.from_flat(dict(parse_offsets([text]).items) | {"#query": "q"})


def test_positions_that_are_not_kafkas_have_no_order_so_that_none_of_them_is_truncated() -> None:
    asked = replace(asks(0, 0), range=Range(delta(3, 5), delta(4, -1)))
    assert place(NOTHING, None, asked) == Next()
    done = replace(DONE, range=asked.range)
    at_rest = replace(AT_REST, last=done, complete=done)
    assert place(at_rest, None, replace(asked, range=Range(delta(4, -1), delta(4, 7)))) == Next()
    with raises(CheckpointMismatch, "positions-not-comparable"):
        place(at_rest, None, replace(asked, range=Range(delta(4, 2), delta(4, 7))))


def test_of_positions_without_an_order_the_querys_batches_have_one() -> None:
    done = replace(DONE, batch_id=4, range=Range(delta(3, 5), delta(4, -1)))
    facts = replace(AT_REST, last=done, complete=done)
    check_committed(facts, Committed("q", 4, delta(4, -1)))
    check_committed(facts, Committed("q", 3, delta(3, 5)))  # the next was written, and not noted as done
    with raises(DataLoss, "checkpoint-ahead"):
        check_committed(facts, Committed("q", 5, delta(4, 9)))
    with raises(DataLoss, "checkpoint-ahead"):
        check_committed(facts, Committed("another", 3, delta(3, 5)))


def test_the_ledger_is_a_start_only_where_there_is_one() -> None:
    assert ledger_end(AT_REST, "p") == at(10)
    with raises(ConfigError, "ledger-missing", "'p'", "'earliest'"):
        ledger_end(EMPTY, "p")


def test_another_setting_of_the_start_is_refused_until_something_was_written() -> None:
    frozen = at(5).with_setting("latest")
    check_setting(EMPTY, frozen, "latest")
    check_setting(AT_REST, frozen, "earliest")
    with raises(ConfigError, "starting-offsets-settled", "starting_offsets='earliest'", "starting_offsets='latest'"):
        check_setting(EMPTY, frozen, "earliest")


def left(handle: str, epoch: int, generation: int, sink: str = "a") -> Committable:
    return Committable(sink, SinkKind.TWO_PHASE, handle, generation, epoch, 0)


def test_a_sweep_spares_manifests_and_what_it_may_still_decide_and_nothing_else() -> None:
    named = replace(DECIDED, manifest=(left("named", 2, 1),))
    facts = replace(AT_REST, last=named, unfinished=(named,))
    mine = Generation("p", 3, "token")
    listed = [
        left("named", 2, 1),
        left("named", 2, 1, sink="b"),  # the same handle in another sink is another work
        left("attempt that lost", 2, 1),
        left("running", 3, 3),
        left("of an older generation's try", 3, 2),
        left("of an epoch before", 2, 3),
    ]
    gone = orphans(facts, mine, listed)
    assert [(c.sink, c.handle) for c in gone] == [
        ("b", "named"),
        ("a", "attempt that lost"),
        ("a", "of an older generation's try"),
        ("a", "of an epoch before"),
    ]


def test_a_damaged_epochs_work_is_spared() -> None:
    facts = replace(AT_REST, unfinished=(replace(DAMAGED, manifest=(left("named", 2, 1),)),))
    assert orphans(facts, Generation("p", 3, "token"), [left("named", 2, 1)]) == ()


def test_a_fenced_process_sweeps_nothing() -> None:
    assert orphans(AT_REST, Generation("p", 2, "token"), [left("old", 1, 1)]) == ()


def test_a_sink_that_may_come_late_need_not_have_been_there_from_the_first_epoch_on() -> None:
    rest = {"a": ledger(1), "b": ledger(1)}
    for entry in (None, ledger(0)):
        assert resolve(AT_REST, {**rest, "c": entry}, may_come_late=("c",)).finish == ()
    newest = record(9, EpochState.COMPLETE)
    long_gone = {"a": ledger(9), "b": ledger(9), "c": ledger(4)}
    assert resolve(replace(AT_REST, complete=newest, last=newest), long_gone, may_come_late=("c",)).finish == ()
    with raises(DataLoss, "destination-older-copy", "'b'"):
        resolve(AT_REST, {"a": ledger(1), "b": None}, may_come_late=("b",))


def test_a_sink_that_came_late_shows_its_first_epoch_before_that_is_complete() -> None:
    """A crash between the commit of that epoch and its completion must leave a pipeline that starts."""
    first = replace(DECIDED, sinks=("a", "b", "c"))
    facts = replace(WITH_DECIDED, last=first, unfinished=(first,))
    rest = {"a": ledger(2), "b": ledger(1, members=(CommittedPart(2, 1, 2000),))}
    shown = (CommittedPart(2, 1, 2000),)
    for entry in (None, ledger(2), ledger(0, members=shown)):
        assert [d.record for d in resolve(facts, {**rest, "c": entry}, may_come_late=("c",)).finish] == [first]
    through = replace(first, state=EpochState.OPEN, write_through=("c",))
    told = Announcement(2, 1, 2000, through.range)
    begun = replace(AT_REST, unfinished=(through,))
    entries = {"a": ledger(1), "b": ledger(1), "c": replace(ledger(0), announced=told)}
    assert resolve(begun, entries, may_come_late=("c",)).finish == ()
    two_phase = replace(begun, unfinished=(replace(first, state=EpochState.OPEN),))
    with raises(CheckpointMismatch, "sink-ahead-of-store", "'c'"):
        resolve(two_phase, {**entries, "c": ledger(2)}, may_come_late=("c",))


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (ledger(2), "sink-ahead-of-store"),
        (replace(ledger(0), members=(CommittedPart(2, 1, 2000),)), "sink-ahead-of-store"),
        (ledger(2, store="other"), "another-store"),
    ],
)
def test_a_late_sink_that_is_ahead_of_the_store_is_told_that_the_store_is_older_not_that_the_sink_is_new(
    shown: LedgerEntry, code: str
) -> None:
    """With a pipeline of its own, as a new sink is advised to have, what it shows would be written once more."""
    with raises(CheckpointMismatch, code):
        resolve(AT_REST, {"a": ledger(1), "b": ledger(1), "c": shown}, may_come_late=("c",))


def test_a_late_sink_whose_first_epoch_has_another_time_in_the_store_has_another_history() -> None:
    first = replace(DECIDED, sinks=("a", "b", "c"))
    facts = replace(WITH_DECIDED, last=first, unfinished=(first,))
    rest = {"a": ledger(2), "b": ledger(1, members=(CommittedPart(2, 1, 2000),))}
    told = Announcement(3, 1, 3000, Range(at(20), at(30)))
    with raises(CheckpointMismatch, "histories-differ"):
        resolve(facts, {**rest, "c": ledger(2, time_ms=7)}, may_come_late=("c",))
    with raises(CheckpointMismatch, "sink-ahead-of-store"):
        resolve(facts, {**rest, "c": replace(ledger(0), announced=told)}, may_come_late=("c",))
    without = replace(WITH_DECIDED, last=DECIDED, unfinished=(DECIDED,))
    with raises(CheckpointMismatch, "sink-ahead-of-store", "'c'"):
        resolve(without, {**rest, "c": ledger(2)}, may_come_late=("c",))


def test_what_a_late_sink_shows_from_before_it_was_left_out_is_not_compared() -> None:
    newest = record(9, EpochState.COMPLETE)
    facts = replace(AT_REST, complete=newest, last=newest)
    elsewhere = replace(ledger(4), positions=Positions.of({"forgotten/0": 99, "t/0": 40}))
    for shown in (ledger(4), ledger(9, time_ms=7), elsewhere):
        assert resolve(facts, {"a": ledger(9), "b": ledger(9), "c": shown}, may_come_late=("c",)).finish == ()
    with raises(CheckpointMismatch, "another-store", "adopt_ledger=True"):
        resolve(facts, {"a": ledger(9), "b": ledger(9), "c": ledger(4, store="adopted from")}, may_come_late=("c",))


@pytest.mark.parametrize(
    "shown",
    [
        replace(ledger(4), positions=at(91)),
        ledger(4, members=(CommittedPart(5, 1, 5000),)),
        replace(ledger(4), announced=Announcement(9, 1, 9000, Range(at(80), at(90)))),
    ],
    ids=["stands beyond", "half committed", "half written"],
)
def test_a_sink_that_was_left_out_while_the_store_went_back_is_not_put_back(shown: LedgerEntry) -> None:
    """It shows records of a history that the store does not have: some of them would come twice."""
    newest = record(9, EpochState.COMPLETE)
    facts, rest = replace(AT_REST, complete=newest, last=newest), {"a": ledger(9), "b": ledger(9)}
    with raises(CheckpointMismatch, "sink-missed-epochs", "'c'"):
        resolve(facts, {**rest, "c": shown}, may_come_late=("c",))
    assert resolve(facts, {**rest, "another name": None}, may_come_late=("another name",)).finish == ()
