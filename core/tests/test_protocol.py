"""The protocol's generators by hand: answers in, effects out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from harness.errors import raises

from onefold.core import (
    Announcement,
    Binding,
    CheckpointMismatch,
    Committable,
    ConfigError,
    Damaged,
    DataLoss,
    Decided,
    EpochRecord,
    EpochState,
    Fenced,
    Generation,
    InDoubt,
    LedgerEntry,
    OnefoldError,
    OutOfResources,
    Positions,
    Range,
    Retriable,
    SinkKind,
    Terminal,
    WorkLost,
)
from onefold.core.protocol.effects import (
    Abort,
    AcquireGeneration,
    Adopt,
    Bind,
    Commit,
    Complete,
    Decide,
    Effect,
    EpochRequest,
    MarkDamaged,
    OpenEpoch,
    Pause,
    ReadLedger,
    RunWriters,
    StoreFacts,
    Verify,
)
from onefold.core.protocol.epoch import Initial, Outcome, Protocol, Started, complete_last, epoch, start, sweep

MINE = Generation("p", 3, "token")
SINKS = ("a", "b")
SPAN = Range(Positions(), Positions.of({"t/0": 5}))
ASKED = EpochRequest(SPAN, "q", 0, "job", SINKS)
RECORD = EpochRecord("p", 1, 3, EpochState.OPEN, SPAN, 1000, "q", 0, "job", sinks=SINKS)
WORK = tuple(Committable(sink, SinkKind.TWO_PHASE, f"w-{sink}", 3, 1, 5) for sink in SINKS)
DECIDED = Decided(replace(RECORD, state=EpochState.DECIDED, manifest=WORK))
NEXT = Range(SPAN.end, Positions.of({"t/0": 7}))
FOLLOWS = EpochRequest(NEXT, "q", 1, "job", SINKS)
SECOND = EpochRecord("p", 2, 3, EpochState.OPEN, NEXT, 2000, "q", 1, "job", sinks=SINKS)
FACTS = StoreFacts("store", 3)
BOUND = LedgerEntry(0, 3, 0, Positions(), "store")
Script = dict[str, Any]
E = TypeVar("E")


class World:
    """Answers each effect by its name: a value, an error to throw, or a list of them, one for each time."""

    def __init__(self, **answers: Any) -> None:
        self.answers: Script = {
            "AcquireGeneration": MINE, "ReadStore": FACTS, "FindEpoch": None, "ReadClock": 1000,
            "RunWriters": WORK, "Decide": DECIDED, "ListLeftovers": (), "Freeze": Positions(), "ReadLedger": BOUND,
        } | answers  # fmt: skip
        self.seen: list[Effect] = []

    @property
    def names(self) -> list[str]:
        return [type(effect).__name__ for effect in self.seen]

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.seen if isinstance(effect, kind)]

    def run(self, protocol: Protocol[Any], patience: int = 5) -> Any:
        send: Callable[[], Effect] = partial(next, protocol)
        try:
            while len(self.seen) < 200:
                effect = send()
                self.seen.append(effect)
                answer = self.answers.get(type(effect).__name__)
                if isinstance(effect, Pause) and effect.attempt > patience:
                    answer = effect.because
                if isinstance(answer, list):
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                if isinstance(answer, OnefoldError):
                    send = partial(protocol.throw, answer)
                else:
                    send = partial(protocol.send, answer)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("no end")


def test_an_epoch_does_its_steps_in_this_order() -> None:
    world = World()
    assert world.run(epoch(MINE, "store", ASKED)) == Outcome(DECIDED.record, replayed=False)
    assert world.names == [
        "ReadStore", "FindEpoch", "ReadClock", "RunWriters", "Verify", "Verify", "ReadLedger", "ReadLedger", "Decide",
        "Commit", "Commit", "WriteLedger", "WriteLedger",
    ]  # fmt: skip


def test_work_of_a_last_resource_is_neither_verified_nor_looked_at_before_its_decision_asserts_both() -> None:
    work = WORK[0], replace(WORK[1], kind=SinkKind.LAST_RESOURCE)
    world = World(RunWriters=work, Decide=[Retriable("database-unavailable", "no connection"), DECIDED])
    world.run(epoch(MINE, "store", ASKED))
    looked = [(type(effect).__name__, effect.sink) for effect in world.seen if isinstance(effect, Verify | ReadLedger)]
    assert looked == [("Verify", "a"), ("ReadLedger", "a")] * 2


def test_the_store_is_asked_once_for_an_epoch_that_follows_another() -> None:
    cache = World().run(epoch(MINE, "store", ASKED)).cache
    world = World(ReadClock=2000, Decide=Decided(replace(SECOND, state=EpochState.DECIDED)), RunWriters=())
    world.run(epoch(MINE, "store", FOLLOWS, cache=cache))
    assert world.of(Decide) == [Decide(MINE, SECOND, (), DECIDED)]
    assert world.names == [
        "ReadClock", "RunWriters", "Verify", "Verify", "ReadLedger", "ReadLedger", "Decide",
        "Commit", "Commit", "WriteLedger", "WriteLedger",
    ]  # fmt: skip


def test_an_epoch_that_writes_through_is_stored_before_a_row_shows_and_opened_again_by_nobody() -> None:
    through = replace(SECOND, write_through=("a",))
    cache = World().run(epoch(MINE, "store", ASKED)).cache
    decided = Decided(replace(through, state=EpochState.DECIDED))
    lost = [WorkLost("prepared-work-gone", "gone"), ()]
    world = World(OpenEpoch=through, Decide=decided, RunWriters=lost)
    asked = replace(FOLLOWS, write_through=("a",))
    world.run(epoch(MINE, "store", asked, cache=cache))
    assert world.names[:3] == ["OpenEpoch", "Announce", "RunWriters"] and "ReadClock" not in world.names
    assert world.of(OpenEpoch) == [OpenEpoch(MINE, asked, 1, DECIDED)]
    assert world.of(Decide) == [Decide(MINE, through, (), None)], "the opening has told of the last one"


def test_an_epoch_has_a_later_time_than_the_last_one_also_where_the_clock_went_back() -> None:
    cache = World().run(epoch(MINE, "store", ASKED)).cache
    world = World(ReadClock=7, Decide=Decided(replace(SECOND, state=EpochState.DECIDED)), RunWriters=())
    world.run(epoch(MINE, "store", FOLLOWS, cache=cache))
    assert [e.record.timestamp_ms for e in world.of(RunWriters)] == [RECORD.timestamp_ms + 1]


def test_an_epoch_that_was_opened_for_writers_elsewhere_is_decided_as_it_was_opened() -> None:
    world = World(ReadClock=9000)
    world.run(epoch(MINE, "store", ASKED, opened=RECORD))
    assert world.of(Decide) == [Decide(MINE, RECORD, WORK)] and "ReadClock" not in world.names


def test_where_no_epoch_follows_the_last_one_is_completed_by_itself_and_once() -> None:
    world = World()
    cache = world.run(epoch(MINE, "store", ASKED)).cache
    cache = world.run(complete_last(MINE, cache))
    assert world.of(Complete) == [Complete(MINE, DECIDED)]
    assert world.run(complete_last(MINE, cache)) == cache and world.names.count("Complete") == 1
    after = World(ReadClock=2000, Decide=Decided(replace(SECOND, state=EpochState.DECIDED)), RunWriters=())
    after.run(epoch(MINE, "store", FOLLOWS, cache=cache))
    assert after.of(Decide) == [Decide(MINE, SECOND, (), None)]


@pytest.mark.parametrize(
    ("span", "says"),
    [(SPAN, "replayed"), (Range(SPAN.end, Positions.of({"t/0": 3})), "batch-ends-before-start")],
)
def test_a_range_that_does_not_follow_is_not_opened_on_what_is_known(span: Range, says: str) -> None:
    cache = World().run(epoch(MINE, "store", ASKED)).cache
    done = replace(DECIDED.record, state=EpochState.COMPLETE)
    world = World(FindEpoch=done if span == SPAN else None, ReadStore=replace(FACTS, last=done, complete=done))
    asking = epoch(MINE, "store", replace(ASKED, range=span, batch_id=1), cache=cache)
    if says == "replayed":
        assert world.run(asking).replayed
    else:
        with pytest.raises(DataLoss, match=says):
            world.run(asking)
    assert world.names == ["Complete", "ReadStore", "FindEpoch"] and world.of(Complete) == [Complete(MINE, DECIDED)]


def test_positions_that_do_not_grow_may_come_again_and_so_the_store_is_asked() -> None:
    cache = World().run(epoch(MINE, "store", ASKED)).cache
    empty = replace(FOLLOWS, range=Range(SPAN.end, SPAN.end))
    done = replace(DECIDED.record, state=EpochState.COMPLETE)
    facts = replace(FACTS, last=done, complete=done)
    world = World(ReadStore=facts, Decide=Decided(replace(SECOND, state=EpochState.DECIDED)), RunWriters=())
    world.run(epoch(MINE, "store", empty, cache=cache))
    assert world.names[:4] == ["Complete", "ReadStore", "FindEpoch", "ReadClock"]
    assert [e.completes for e in world.of(Decide)] == [None]


def test_a_driver_that_was_taken_over_writes_no_second_time() -> None:
    gone = WorkLost("prepared-work-gone", "swept by its successor")
    world = World(Verify=gone, ReadStore=[FACTS, replace(FACTS, generation=4)])
    with raises(Fenced, "taken-over"):
        world.run(epoch(MINE, "store", ASKED))
    assert world.names.count("RunWriters") == 1


def test_a_decision_that_lands_after_the_facts_were_read_is_finished() -> None:
    world = World(FindEpoch=DECIDED.record)
    assert world.run(epoch(MINE, "store", ASKED)) == Outcome(DECIDED.record, replayed=True)
    assert world.names == [
        "ReadStore", "FindEpoch", "Commit", "Commit", "WriteLedger", "WriteLedger", "Complete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lost", [InDoubt("commit-unanswered", "no answer"), Retriable("database-unavailable", "refused")]
)
def test_an_unanswered_decide_is_sent_again_the_same(lost: OnefoldError) -> None:
    world = World(Decide=[lost, lost, DECIDED])
    world.run(epoch(MINE, "store", ASKED))
    decides = [e for e in world.seen if type(e).__name__ == "Decide"]
    assert len(decides) == 3 and decides[0] == decides[1] == decides[2]
    assert world.names.count("RunWriters") == world.names.count("ReadClock") == 1


def test_what_grew_old_while_the_store_was_away_is_written_again_not_decided() -> None:
    """A prepared transaction of Kafka's expires; only a Decide that may have landed is past caring."""
    aged = [None, None, WorkLost("prepared-work-gone", "expired"), None, None]
    world = World(Decide=[Retriable("database-unavailable", "no connection"), DECIDED], Verify=aged, ListLeftovers=WORK)
    world.run(epoch(MINE, "store", ASKED))
    assert [n for n in world.names if n in {"RunWriters", "Verify", "Decide", "Abort"}] == [
        "RunWriters", "Verify", "Verify", "Decide", "Verify", "Abort", "Abort",
        "RunWriters", "Verify", "Verify", "Decide",
    ]  # fmt: skip
    world = World(
        Decide=[InDoubt("commit-unanswered", "no answer"), Retriable("database-unavailable", "no connection"), DECIDED]
    )
    world.run(epoch(MINE, "store", ASKED))
    assert world.names.count("Verify") == 2


@pytest.mark.parametrize(
    "unread", [Retriable("database-unavailable", "no connection"), InDoubt("commit-unanswered", "no answer")]
)
def test_what_grew_old_while_a_ledger_could_not_be_read_is_written_again_not_decided(unread: OnefoldError) -> None:
    aged = [None, None, WorkLost("prepared-work-gone", "expired"), None, None]
    world = World(ReadLedger=[BOUND, unread, BOUND], Verify=aged)
    world.run(epoch(MINE, "store", ASKED))
    assert [n for n in world.names if n in {"RunWriters", "Verify", "Decide"}] == [
        "RunWriters", "Verify", "Verify", "Verify", "RunWriters", "Verify", "Verify", "Decide",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "then",
    [
        InDoubt("commit-unanswered", "no answer"),
        Retriable("database-unavailable", "refused"),
        WorkLost("prepared-work-gone", "gone"),
        CheckpointMismatch("epoch-in-progress", "open elsewhere"),
        Terminal("job-code-failed", "x"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_after_an_unanswered_decide_nothing_is_aborted_swept_or_rerun(then: OnefoldError) -> None:
    world = World(Decide=[InDoubt("commit-unanswered", "no answer"), then], ListLeftovers=WORK)
    with raises(InDoubt, "decision-unanswered"):
        world.run(epoch(MINE, "store", ASKED))
    assert not {"Abort", "ListLeftovers", "Commit"} & set(world.names)
    assert world.names.count("RunWriters") == 1


def test_a_decide_refused_for_good_gives_the_work_up_only_if_it_was_never_in_doubt() -> None:
    world = World(Decide=Retriable("database-unavailable", "refused"), ListLeftovers=WORK)
    with pytest.raises(Retriable):
        world.run(epoch(MINE, "store", ASKED, runs_max=1))
    assert world.names.count("Abort") == 2


@pytest.mark.parametrize("step", ["RunWriters", "Verify", "Decide"])
def test_lost_work_runs_again_under_the_same_number_and_time(step: str) -> None:
    good = World().answers.get(step)
    late = Committable("a", SinkKind.TWO_PHASE, "another epoch's", 3, 9, 1)
    world = World(**{step: [WorkLost("prepared-work-gone", "gone"), good], "ListLeftovers": [(*WORK, late), ()]})
    assert world.run(epoch(MINE, "store", ASKED)).record == DECIDED.record
    runs = [e.record for e in world.of(RunWriters)]
    assert runs == [RECORD, RECORD]
    assert world.names.count("ReadStore") == 2, "a fenced driver stops there"
    aborted = [c for e in world.of(Abort) for c in e.committables]
    assert aborted == list(WORK), "only what this epoch prepared"


def test_writers_run_a_bounded_number_of_times() -> None:
    world = World(RunWriters=WorkLost("prepared-work-gone", "gone"))
    with pytest.raises(WorkLost):
        world.run(epoch(MINE, "store", ASKED, runs_max=3))
    assert world.names.count("RunWriters") == 3


def test_writers_whose_server_has_nothing_to_spare_run_again_after_a_pause_while_there_is_patience() -> None:
    full = OutOfResources("database-resources-exhausted", "no slot")
    world = World(RunWriters=[full, full, full, full, WORK], ListLeftovers=[WORK, ()])
    assert world.run(epoch(MINE, "store", ASKED, runs_max=1)).record == DECIDED.record
    assert [e.attempt for e in world.seen if isinstance(e, Pause)] == [1, 2, 3, 4]
    assert world.names.index("Abort") < world.names.index("Pause"), "what the run holds is given back before it waits"
    impatient = World(RunWriters=full)
    with pytest.raises(OutOfResources):
        impatient.run(epoch(MINE, "store", ASKED), patience=2)
    assert impatient.names.count("RunWriters") == 3


@pytest.mark.parametrize(
    "error", [Fenced("taken-over", "taken over"), CheckpointMismatch("epoch-in-progress", "elsewhere")]
)
@pytest.mark.parametrize("step", ["ReadStore", "RunWriters", "Verify", "Decide"])
def test_a_driver_that_is_not_alone_stops_without_aborting(step: str, error: OnefoldError) -> None:
    world = World(**{step: error, "ListLeftovers": WORK})
    with pytest.raises(type(error)):
        world.run(epoch(MINE, "store", ASKED))
    assert world.names[-1] == step


def test_a_run_that_cannot_succeed_is_cleaned_up_and_its_error_raised() -> None:
    world = World(RunWriters=Terminal("job-code-failed", "bad record"), ListLeftovers=WORK)
    with raises(Terminal, "job-code-failed"):
        world.run(epoch(MINE, "store", ASKED))
    assert world.names.count("Abort") == 2 and world.names.count("RunWriters") == 1


def test_a_sink_that_is_down_does_not_hold_up_the_others_commit() -> None:
    world = World(
        Commit=[
            Retriable("database-unavailable", "a is down"),
            None,
            InDoubt("commit-unanswered", "a did not answer"),
            None,
        ]
    )
    world.run(epoch(MINE, "store", ASKED))
    commits = [e.sink for e in world.of(Commit)]
    assert commits == ["a", "b", "a", "a"]
    assert world.names.index("WriteLedger") > world.names.index("Commit")


def test_damage_that_was_accepted_is_completed_as_it_is() -> None:
    damaged = replace(DECIDED.record, state=EpochState.DAMAGED)
    world = World(
        ReadStore=[replace(FACTS, unfinished=(damaged,)), replace(FACTS, last=RECORD, complete=None)],
        AcceptDamage=DECIDED,
    )
    world.run(start(SINKS, None, accept_damage=1))
    names = [name for name in world.names if name in ("AcceptDamage", "Commit", "WriteLedger", "Complete")]
    assert names == ["AcceptDamage", "WriteLedger", "WriteLedger", "Complete"]
    with raises(Damaged, "epoch-damaged", "accept_damage=1"):
        World(ReadStore=replace(FACTS, unfinished=(damaged,))).run(start(SINKS, None, accept_damage=2))


def test_damage_is_marked_after_every_other_sink_committed() -> None:
    world = World(Commit=[Damaged("decided-work-gone", "a's transaction expired"), None])
    with raises(Damaged, "decided-work-gone"):
        world.run(epoch(MINE, "store", ASKED))
    assert world.names[-3:] == ["Commit", "Commit", "MarkDamaged"]
    assert [e.evidence for e in world.of(MarkDamaged)] == ["a's transaction expired [decided-work-gone]"]
    assert not {"Abort", "Complete", "WriteLedger"} & set(world.names)


def test_a_complete_range_is_skipped_and_a_decided_one_finished() -> None:
    complete = replace(DECIDED.record, state=EpochState.COMPLETE)
    world = World(FindEpoch=complete, ReadStore=replace(FACTS, last=complete, complete=complete))
    assert world.run(epoch(MINE, "store", ASKED)) == Outcome(complete, replayed=True)
    assert world.names == ["ReadStore", "FindEpoch"]
    facts = replace(FACTS, last=DECIDED.record, unfinished=(DECIDED.record,))
    world = World(FindEpoch=DECIDED.record, ReadStore=facts)
    assert world.run(epoch(MINE, "store", ASKED)).replayed
    assert "RunWriters" not in world.names and world.names[-1] == "Complete"


def test_start_takes_a_generation_above_all_that_the_ledgers_have_seen() -> None:
    ledger = LedgerEntry(1, 7, 1000, SPAN.end, "store")
    done = replace(RECORD, state=EpochState.COMPLETE)
    world = World(ReadLedger=ledger, ReadStore=replace(FACTS, last=done, complete=done))
    started: Started = world.run(start(SINKS, Initial(Positions())))
    assert [e.above for e in world.of(AcquireGeneration)] == [7]
    assert (started.generation, started.finished) == (MINE, 0)


def test_start_takes_a_generation_above_one_that_only_an_announcement_shows() -> None:
    told = replace(LedgerEntry(0, 0, 0, Positions(), ""), announced=Announcement(1, 6, 1000, SPAN))
    through = replace(RECORD, write_through=("a",))
    world = World(ReadLedger=[told, None, told, None], ReadStore=replace(FACTS, unfinished=(through,)))
    world.run(start(SINKS, None))
    assert [e.above for e in world.of(AcquireGeneration)] == [6]


def test_start_waits_for_a_sink_that_is_down_and_stops_when_patience_ends() -> None:
    world = World(ReadLedger=Retriable("database-unavailable", "down"))
    with raises(Retriable, "database-unavailable"):
        world.run(start(SINKS, None), patience=4)
    assert world.names.count("Pause") == 5
    assert "AcquireGeneration" not in world.names


def test_start_finishes_what_was_decided() -> None:
    decided = replace(FACTS, last=DECIDED.record, unfinished=(DECIDED.record,))
    done = replace(DECIDED.record, state=EpochState.COMPLETE)
    ledger = LedgerEntry(1, 3, 1000, SPAN.end, "store")
    after = replace(FACTS, last=done, complete=done)
    world = World(ReadStore=[decided, after], ReadLedger=[None, None, None, None, ledger])
    assert world.run(start(SINKS, None)).finished == 1
    assert world.names.count("Commit") == 2


def test_start_from_the_ledger_goes_on_where_the_last_epoch_ended() -> None:
    done = replace(DECIDED.record, state=EpochState.COMPLETE)
    ledger = LedgerEntry(1, 3, 1000, SPAN.end, "store")
    world = World(ReadStore=replace(FACTS, last=done, complete=done), ReadLedger=ledger)
    assert world.run(start(SINKS, Initial(Positions(), from_ledger=True))).start == SPAN.end
    assert "Freeze" not in world.names
    world = World()
    with raises(ConfigError, "ledger-missing"):
        world.run(start(SINKS, Initial(Positions(), from_ledger=True)))
    assert "Freeze" not in world.names


def test_a_start_that_was_overtaken_is_fenced_not_told_to_restore_backups() -> None:
    ahead = LedgerEntry(2, 4, 2000, SPAN.end, "store")
    world = World(ReadStore=[FACTS, replace(FACTS, generation=4)], ReadLedger=ahead)
    with raises(Fenced, "taken-over"):
        world.run(start(SINKS, None))
    with raises(CheckpointMismatch, "sink-ahead-of-store"):
        World(ReadLedger=ahead).run(start(SINKS, None))


def test_an_adoption_binds_every_sink_sweeps_and_then_looks_what_there_is_to_adopt() -> None:
    ahead = LedgerEntry(2, 2, 2000, SPAN.end, "other")
    done = replace(RECORD, epoch=2, timestamp_ms=2000, state=EpochState.COMPLETE)
    after = replace(FACTS, last=done, complete=done)
    theirs = Committable("a", SinkKind.TWO_PHASE, "theirs", 2, 3, 0)
    bound = replace(ahead, generation=3, store_id="store")
    world = World(
        ReadStore=[FACTS, FACTS, after], ReadLedger=[*[ahead] * 4, bound], ListLeftovers=[(theirs,), (), (), ()]
    )
    world.run(start(SINKS, None, adopt_ledger=True))
    takes_over, again = Binding("store", 3, takes_over=True), Binding("store", 3)
    assert [(e.sink, e.binding) for e in world.of(Bind)] == [
        ("a", takes_over), ("b", takes_over), ("a", again), ("b", again),
    ]  # fmt: skip
    assert [e.committables for e in world.of(Abort)] == [(theirs,)]
    assert [e.entry for e in world.of(Adopt)] == [replace(ahead, generation=3)]
    steps = ["ReadLedger", "Bind", "ListLeftovers", "Abort", "ReadLedger", "Adopt", "ReadLedger", "Bind"]
    seen = [name for name in world.names if name in steps]
    assert [name for name, _ in itertools.groupby(seen)] == [
        "ReadLedger", "Bind", "ListLeftovers", "Abort", "ListLeftovers", "ReadLedger", "Adopt", "ReadLedger", "Bind",
    ]  # fmt: skip


def test_an_adoption_takes_over_what_another_store_wrote_though_its_own_had_gone_further() -> None:
    """The destination was taken back to a backup of the other store's time."""
    older = LedgerEntry(2, 2, 2000, SPAN.end, "other")
    done, mine = (replace(RECORD, epoch=e, timestamp_ms=1000 * e, state=EpochState.COMPLETE) for e in (2, 4))
    before, after = replace(FACTS, last=mine, complete=mine), replace(FACTS, last=done, complete=done)
    bound = replace(older, generation=3, store_id="store")
    world = World(ReadStore=[before, after], ReadLedger=[*[older] * 4, bound])
    world.run(start(SINKS, None, adopt_ledger=True))
    assert [e.entry.epoch for e in world.of(Adopt)] == [2]


def test_nobody_decides_who_no_longer_has_every_sink() -> None:
    theirs = replace(BOUND, generation=4, store_id="other")
    world = World(ReadLedger=[BOUND, theirs], ListLeftovers=[WORK[:1], WORK[1:]])
    with raises(Fenced, "taken-over", "'b'"):
        world.run(epoch(MINE, "store", ASKED))
    assert "Decide" not in world.names
    assert [e.committables for e in world.of(Abort)] == [WORK[:1], WORK[1:]], "its successor may have swept already"
    for emptied in (None, replace(BOUND, generation=2)):
        world = World(ReadLedger=emptied)
        with raises(DataLoss, "destination-older-copy"):
            world.run(epoch(MINE, "store", ASKED))
        assert "Decide" not in world.names


def test_a_sweep_lists_before_it_reads_the_store() -> None:
    old = Committable("a", SinkKind.TWO_PHASE, "old", 1, 1, 0)
    world = World(ListLeftovers=[(old,), ()])
    assert world.run(sweep(MINE, SINKS)) == 1
    assert world.names == ["ListLeftovers", "ReadStore", "Abort", "ListLeftovers"]
