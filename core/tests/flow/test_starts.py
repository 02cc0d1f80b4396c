"""What a flow's start settles and refuses, by its sources and what the store knows."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from flow_parts import AnySink, AnyTable
from harness.errors import raises

from onefold.core.contract import EpochRecord, EpochState, Sink, SinkKind
from onefold.core.errors import ConfigError, DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.core.source import BoundedSource, Journal, MemoryJournal, Source
from onefold.flow.planning import Planners, check_covered, check_read_once, check_replayable, initial_of

FACTS = StoreFacts("store", 1, None, None, (), None)


@dataclass(frozen=True)
class Topics:
    """A source of topics of one partition, with 100 records in each, which is its own planner."""

    topics: tuple[str, ...]
    starting_text: str = "earliest"

    @property
    def name(self) -> str:
        return ",".join(self.topics)

    def covers(self, name: str) -> bool:
        return name.partition("/")[0] in self.topics

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> Any:
        del frozen, until, journal
        return self

    def added(self, known: Positions) -> Positions:
        begin = 100 if self.starting_text == "latest" else 0
        return Positions.of({f"{topic}/0": begin for topic in self.topics if topic not in known.topics()})

    def end(self, start: Positions) -> Positions:
        return Positions.of({f"{topic}/0": dict(start.items).get(f"{topic}/0", 0) for topic in self.topics})

    on_error = "fail"
    bad_records_max = 0
    resolved = arrow_schema = read = planner


def sources(*of: Topics) -> list[Source]:
    return cast(list[Source], [*of])


def stands(facts: StoreFacts, end: Positions) -> StoreFacts:
    record = EpochRecord("p", 1, 1, EpochState.COMPLETE, Range(Positions(), end), 1, "q", 1, "f", (), ())
    return replace(facts, last=record, complete=record)


def settled_by(*of: Topics) -> StoreFacts:
    begin = Positions.of({f"{topic}/0": 0 for each in of for topic in each.topics})
    initial = initial_of("p", sources(*of), FACTS, begin)
    return replace(FACTS, frozen=begin.with_setting(initial.setting))


A, B = Topics(("a",)), Topics(("b",), "latest")
OTHER = replace(A, starting_text="latest")


def test_one_sources_setting_is_kept_as_it_is_and_several_by_their_names() -> None:
    assert initial_of("p", sources(A), FACTS, Positions()).setting == "earliest"
    assert initial_of("p", sources(A, B), FACTS, Positions()).setting == '[["a", "earliest"], ["b", "latest"]]'


@pytest.mark.parametrize(
    ("first", "now"),
    [
        ((A,), (OTHER,)),
        ((A,), (replace(OTHER, topics=("a", "c")),)),
        ((A,), (OTHER, B)),
        ((A, B), (OTHER, B)),
        ((A, B), (B, OTHER)),
        ((A, B), (OTHER,)),
    ],
)
def test_another_setting_of_a_source_is_refused_while_nothing_was_written(
    first: tuple[Topics, ...], now: tuple[Topics, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        initial_of("p", sources(*now), settled_by(*first), Positions())
    assert refused.value.code == "starting-offsets-settled"


@pytest.mark.parametrize("now", [(A,), (A, B), (B, A), (replace(A, starting_text="ledger"), B)])
def test_the_same_setting_one_that_is_added_and_the_ledger_are_no_change(
    now: tuple[Topics, ...], caplog: pytest.LogCaptureFixture
) -> None:
    for facts in (settled_by(A), stands(settled_by(A), Positions.of({"a/0": 5}))):
        initial = initial_of("p", sources(*now), facts, Positions())
        assert initial.setting == "earliest"
        assert initial.from_ledger is any(each.starting_text == "ledger" for each in now)
    assert not caplog.records


def test_a_bounded_source_has_the_setting_of_what_it_bounds(caplog: pytest.LogCaptureFixture) -> None:
    bounded = BoundedSource(cast(Source, OTHER))
    with pytest.raises(ConfigError):
        initial_of("p", [bounded], settled_by(A), Positions())
    with caplog.at_level(logging.WARNING, "onefold"):
        initial_of("p", [bounded], stands(settled_by(A), Positions.of({"a/0": 5})), Positions())
    assert "is ignored" in caplog.text


def begins(facts: StoreFacts, end: Positions) -> StoreFacts:
    """An epoch that writes through, and has to run again, up to there."""
    begun = stands(facts, end).last
    assert begun is not None
    return replace(facts, unfinished=(replace(begun, state=EpochState.OPEN, write_through=("s",)),))


@pytest.mark.parametrize(
    "facts",
    [
        settled_by(A, B),
        stands(settled_by(A), Positions.of({"a/0": 5, "b/0": 1})),
        begins(settled_by(A), Positions.of({"a/0": 5, "b/0": 1})),
        begins(stands(settled_by(A), Positions.of({"a/0": 2})), Positions.of({"a/0": 5, "b/0": 1})),
    ],
)
def test_positions_that_no_source_reads_are_refused_and_named(facts: StoreFacts) -> None:
    check_covered("p", sources(B, A), facts)
    with raises(ConfigError, "positions-not-read") as refused:
        check_covered("p", sources(A), facts)
    assert refused.value.code == "positions-not-read"


def test_what_was_added_begins_where_it_was_first_found_until_it_has_positions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pins: dict[str, str] = {}
    at = Positions.of({"a/0": 7})
    caplog.set_level(logging.INFO, "onefold")

    def added(planners: Planners) -> str:
        caplog.clear()
        planners.begin_added("p", at, lambda name, find: pins.setdefault(name, find()))
        return caplog.text

    def begin(*of: Topics) -> Planners:
        planners = Planners(dict(enumerate(sources(*of))), at, lambda _: MemoryJournal())
        assert "b, added later: read from starting_offsets='latest' on" in added(planners)
        return planners

    assert begin(A, B).end(at) == Positions.of({"a/0": 7, "b/0": 100})
    assert begin(A, replace(B, starting_text="latest")).end(Positions.of({"a/0": 7, "b/0": 103})) == Positions.of(
        {"a/0": 7, "b/0": 103}
    )
    (pinned,) = pins
    later = Topics(("b", "c"), "latest")  # with another topic, what was found of the first stays
    planners = Planners(dict(enumerate(sources(A, later))), at, lambda _: MemoryJournal())
    before = dict(pins)
    assert "b,c, added later: read from starting_offsets='latest' on" in added(planners)
    assert pins.items() > before.items()
    pins[pinned] = Positions.of({"b/0": 90}).to_json()  # when it was first asked, fewer were there
    assert begin(A, B).end(at) == Positions.of({"a/0": 7, "b/0": 90})
    again = Planners(dict(enumerate(sources(A, later))), at, lambda _: MemoryJournal())
    assert added(again)
    assert again.end(at) == Positions.of({"a/0": 7, "b/0": 90, "c/0": 100})


TABLE = cast(Source, AnyTable())


@pytest.mark.parametrize("kind", list(SinkKind))
def test_a_table_is_refused_beside_a_sink_that_writes_through_and_beside_no_other(kind: SinkKind) -> None:
    sinks = cast(list[Sink], [AnySink("first"), AnySink("second", kind)])
    check_replayable("p", sources(A, B), sinks)
    if kind is not SinkKind.WRITE_THROUGH:
        check_replayable("p", [*sources(A), TABLE], sinks)
        return
    with raises(ConfigError, "source-not-replayable", "table customers", "second"):
        check_replayable("p", [*sources(A), TABLE], sinks)


def test_the_epoch_that_has_read_a_table_is_not_read_again_for_its_state_and_others_are() -> None:
    at = Positions.of({"a/0": 5, TABLE.name: 1})
    facts = stands(FACTS, at)
    assert facts.last is not None
    epoch = replace(facts.last, range=Range(Positions.of({"a/0": 0}), at))
    check_read_once("p", sources(A, B), epoch)
    check_read_once("p", [TABLE], replace(epoch, range=Range(at, Positions.of({"a/0": 9, TABLE.name: 1}))))
    with raises(DataLoss, "state-not-replayable", "table customers"):
        check_read_once("p", [*sources(A), TABLE], epoch)
