"""A move of the positions, step by step, on the models of store and sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness.errors import raises

from onefold.core import ConfigError, EpochRecord, EpochState, Fenced, OnefoldError, Positions, Range, SinkKind
from onefold.core.moves import MoveNote, Repeats
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Effect, EpochRequest, Pause, StoreFacts
from onefold.core.protocol.epoch import Initial, complete_last, epoch
from onefold.core.protocol.moving import chain_end
from onefold.core.protocol.recovery import Next, Replay, place
from onefold.core.protocol.request_checks import check_movable
from onefold.core.testing import ModelStore
from onefold.core.testing.simulator.models import MODELS, ModelSink
from onefold.store.job.query import QueryLifecycle

NOTE = MoveNote("somebody")


class DiedError(BaseException):
    """The process ends."""


class Bench:
    """A store, a sink of each kind, and lives of a pipeline without a query."""

    def __init__(self) -> None:
        self.store = ModelStore()
        self.sinks = {kind.value: MODELS[kind](kind.value) for kind in SinkKind}
        self.repeats = dict.fromkeys(self.sinks, Repeats.DOUBLED)
        self.aside: list[int] = []

    def life(self) -> tuple[QueryLifecycle, Driver]:
        return QueryLifecycle("p", tuple(self.sinks)), Driver(self)

    def write(self, start: int, end: int) -> None:
        life, driver = self.life()
        started = driver.run(life.start(Initial(at(start))))
        through = tuple(sink.name for sink in self.sinks.values() if sink.kind is SinkKind.WRITE_THROUGH)
        asked = EpochRequest(Range(at(start), at(end)), "query", start, "job", tuple(self.sinks), through)
        outcome = driver.run(epoch(started.generation, started.store_id, asked), lambda _: ())
        driver.run(complete_last(started.generation, outcome.cache))

    def move(self, to: int, stop: str = "") -> EpochRecord:
        """Dies before the effect of that name."""
        life, driver = self.life()
        driver.stop = stop
        driver.run(life.before_move(None))
        return driver.run(life.move(at(to), NOTE))

    def begins(self) -> int:
        """Where a new checkpoint's first batch begins."""
        life, driver = self.life()
        start = driver.run(life.start(Initial(at(99)))).start
        assert start is not None
        return int(dict(start.items)["t/0"])

    def ledgers(self) -> list[tuple[int, Positions]]:
        return [(entry.epoch, entry.positions) for sink in self.sinks.values() if (entry := sink.entry) is not None]


class Driver(Coordinator):
    def __init__(self, bench: Bench) -> None:
        sinks: dict[str, ModelSink] = bench.sinks
        super().__init__("p", bench.store, sinks, refuse)
        self.last_resource = SinkKind.LAST_RESOURCE.value
        self.repeats = bench.repeats.__getitem__
        self.set_aside = bench.aside.append
        self.stop = ""

    def perform(self, effect: Effect, run_writers: Callable[..., object] | None = None) -> object:
        if type(effect).__name__ == self.stop:
            raise DiedError
        return super().perform(effect, run_writers)  # type: ignore[arg-type]


def refuse(pause: Pause, _: float) -> None:
    raise pause.because


def at(offset: int) -> Positions:
    return Positions.of({"t/0": offset})


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.write(0, 5)
    return bench


def test_a_move_is_a_complete_epoch_without_rows_and_every_ledger_stands_at_its_end(bench: Bench) -> None:
    record = bench.move(8)
    assert (record.epoch, record.range, record.manifest) == (2, Range(at(5), at(8)), ())
    assert [(r.state, r.is_move) for r in bench.store.history()] == [
        (EpochState.COMPLETE, False),
        (EpochState.COMPLETE, True),
    ]
    assert bench.ledgers() == [(2, at(8))] * 3
    assert bench.aside == [1]
    bench.write(8, 9)
    assert bench.ledgers() == [(3, at(9))] * 3


def test_records_may_come_again_only_where_that_changes_nothing_or_nothing_is_there(bench: Bench) -> None:
    last = bench.store.newest
    with raises(ConfigError, "move-would-double", "'two-phase'"):
        bench.move(2)
    assert (bench.aside, bench.store.origin, bench.begins()) == ([], None, 0)
    assert last is not None and bench.store.newest is not None and bench.store.newest.number > last.number
    bench.repeats |= {"two-phase": Repeats.NEW, "last-resource": Repeats.ABSORBED, "write-through": Repeats.NEW}
    assert set(MoveNote.of(bench.move(2)).new) == {"two-phase", "write-through"}
    assert bench.begins() == 2


def test_records_that_were_passed_over_may_be_fetched_after_all_by_any_sink(bench: Bench) -> None:
    bench.move(8)
    assert MoveNote.of(bench.move(5)).new == ()


@pytest.mark.parametrize(
    ("dies_before", "begins", "is_moved"),
    [
        ("Anchor", 0, False),
        ("SetAside", 5, False),
        ("ReadClock", 5, False),
        ("Decide", 5, False),
        ("WriteLedger", 8, True),
        ("Complete", 8, True),
    ],
)
def test_after_a_crash_a_new_checkpoint_begins_where_the_pipeline_stands(
    bench: Bench, dies_before: str, begins: int, is_moved: bool
) -> None:
    with pytest.raises(DiedError):
        bench.move(8, dies_before)
    assert bench.begins() == begins
    assert chain_end(bench.store.facts("p")) == at(8 if is_moved else 5)
    assert {record.state for record in bench.store.history()} == {EpochState.COMPLETE}
    assert bench.ledgers() == [(2 if is_moved else 1, at(8 if is_moved else 5))] * 3


def test_whoever_ran_before_a_move_is_fenced(bench: Bench) -> None:
    life, driver = bench.life()
    started = driver.run(life.start(Initial(at(0))))
    bench.move(8)
    asked = EpochRequest(Range(at(8), at(9)), "query", 9, "job", tuple(bench.sinks))
    with pytest.raises(Fenced):
        driver.run(epoch(started.generation, started.store_id, asked), lambda _: ())


def test_an_epoch_that_must_run_again_comes_first(bench: Bench) -> None:
    life, driver = bench.life()
    started = driver.run(life.start(Initial(at(0))))
    asked = EpochRequest(Range(at(5), at(7)), "query", 1, "job", tuple(bench.sinks), ("write-through",))
    driver.stop = "Decide"
    with pytest.raises(DiedError):
        driver.run(epoch(started.generation, started.store_id, asked), lambda _: ())
    with raises(ConfigError, "move-beside-epoch"):
        bench.move(8)


def test_a_range_from_before_a_move_is_no_replay_and_one_from_after_it_is(bench: Bench) -> None:
    bench.repeats = dict.fromkeys(bench.sinks, Repeats.ABSORBED)
    bench.move(0)
    facts, asked = bench.store.facts("p"), EpochRequest(Range(at(0), at(5)), "query", 0, "job", tuple(bench.sinks))
    before = bench.store.find("p", asked)
    assert before is not None and before.epoch == 1
    assert place(facts, before, asked) == Next()
    bench.write(0, 5)
    again = bench.store.find("p", asked)
    assert again is not None and again.epoch == 3
    assert place(bench.store.facts("p"), again, asked) == Replay(again)


FACTS = StoreFacts("store", 1, frozen=at(0))


@pytest.mark.parametrize(
    ("base", "to", "says"),
    [
        (None, at(1), "never-started"),
        (at(1), at(1), "move-to-itself"),
        (Positions.of({"t/0": 1, "batchWatermarkMs": "17"}), at(2), "state-not-movable"),
        (Positions.of({"#0/logOffset": 3}), at(2), "positions-not-movable"),
        (Positions.of({"t/0": 1, "#1/x": 3}), at(2), "positions-not-movable"),
    ],
)
def test_what_cannot_be_moved_is_refused(base: Positions | None, to: Positions, says: str) -> None:
    with raises(OnefoldError, says):
        check_movable("p", base, to)


def test_a_pipeline_stands_where_it_begins_until_its_first_epoch() -> None:
    assert chain_end(FACTS) == at(0)
    assert chain_end(replace(FACTS, frozen=None)) is None


def test_sinks_change_where_the_pipeline_stands_and_what_was_written_before_is_still_known(bench: Bench) -> None:
    bench.sinks["added"] = MODELS[SinkKind.TWO_PHASE]("added")
    bench.sinks.pop("write-through")
    life, driver = bench.life()
    with raises(ConfigError, "sink-added"):
        driver.run(life.start(Initial(at(0))))
    life = QueryLifecycle("p", tuple(bench.sinks), ["added"])
    driver.run(life.before_move(None))
    record = driver.run(life.change_sinks(NOTE))
    assert (record.epoch, record.range, MoveNote.of(record).new) == (2, Range(at(5), at(5)), ("added",))
    assert bench.ledgers() == [(2, at(5))] * 3
    facts = bench.store.facts("p")
    assert (facts.moved, facts.origin, bench.begins(), bench.aside) == (0, None, 0, [])
    asked = EpochRequest(Range(at(0), at(5)), "query", 0, "job", tuple(bench.sinks))
    found = bench.store.find("p", asked)
    assert found is not None and place(facts, found, asked) == Replay(found)
    bench.write(5, 6)
    assert bench.ledgers() == [(3, at(6))] * 3


def test_a_pipeline_without_an_epoch_may_have_any_sinks() -> None:
    bench = Bench()
    life, driver = bench.life()
    driver.run(life.start(Initial(at(0))))
    with raises(ConfigError, "never-started"):
        driver.run(life.change_sinks(NOTE))
