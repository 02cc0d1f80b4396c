"""Sources that wait for each other: which partitions an epoch leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_planners import Topics, planners
from timed_rows import ROWS

from onefold.core import ConfigError
from onefold.core.positions import Positions
from onefold.flow import Flow, Stream, Tumbling, bounded, count, monotonic
from onefold.flow.time.alignment import Alignment, held
from onefold.flow.time.clocks import Clocks, Highest, Reached, SourceEnd, Times

MINUTE = 60_000_000
BY_TIME = bounded("at", "1 second")


def of(name: str, us: int, is_silent: bool = False, uid: str = "a") -> Reached:
    return Reached((uid, name), us, is_silent)


def test_what_is_ahead_waits_for_the_lowest_that_is_not_silent() -> None:
    aligned = [Alignment(MINUTE, frozenset("ab"))]
    reached = [
        of("p", 0),
        of("q", MINUTE),
        of("r", MINUTE + 1),
        of("t", 5 * MINUTE, uid="b"),
        of("s", 9 * MINUTE, uid="c"),
    ]
    assert held(aligned, reached) == {("a", "r"), ("b", "t")}
    reached[0] = of("p", 0, is_silent=True)
    assert held(aligned, reached) == {("b", "t")}


def test_one_that_waits_is_not_let_go_because_it_is_silent_meanwhile() -> None:
    aligned = [Alignment(MINUTE, frozenset("a"))]
    assert held(aligned, [of("p", 0), of("q", 2 * MINUTE, is_silent=True)]) == {("a", "q")}
    assert held(aligned, [of("p", 0, is_silent=True), of("q", 2 * MINUTE, is_silent=True)]) == set()
    assert held([], [of("p", 0), of("q", 2 * MINUTE)]) == set()


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.integers(-9, 9), st.booleans())), st.integers(0, 9))
def test_the_lowest_one_never_waits(of_each: list[tuple[str, int, bool]], drift: int) -> None:
    reached = [of(*each) for each in {each[0]: each for each in of_each}.values()]
    waits = held([Alignment(drift, frozenset("a"))], reached)
    awake = [each for each in reached if not each.is_silent]
    if awake:
        assert min(awake, key=lambda each: each.us).partition not in waits
    else:
        assert waits == set()


def test_clocks_say_how_far_partitions_have_come_that_count() -> None:
    clocks = Clocks({"a": monotonic("at", idle="10 seconds"), "b": monotonic("at", idle=None)})
    named = frozenset([("a", "p"), ("a", "q"), ("b", "r"), ("b", "s")])
    clocks.advance(Times(named, {("a", "p"): 7, ("b", "r"): 9}), 0)
    assert set(clocks.status().reached) == {Reached(("a", "p"), 7, False), Reached(("b", "r"), 9, False)}
    clocks.advance(Times(named, {}), 10_000)
    assert set(clocks.status().reached) == {Reached(("a", "p"), 7, True), Reached(("b", "r"), 9, False)}
    clocks.advance(Times(named, {}, frozenset("b")), 10_001)
    assert set(clocks.status().reached) == {Reached(("a", "p"), 7, True)}


def test_one_that_waits_is_not_silent_so_that_its_own_records_are_not_late() -> None:
    policy, partitions = monotonic("at", idle="10 seconds"), ("p", "q", "r")
    clocks, highest = Clocks({"a": policy}), Highest("a", policy)
    named = frozenset(("a", name) for name in partitions)
    clocks.advance(Times(named, {("a", "p"): 0, ("a", "q"): 2 * MINUTE, ("a", "r"): 4 * MINUTE}), 0)
    clocks.advance(highest.take(SourceEnd(partitions, waited=("q", "r"))), 10_000)  # and p is silent
    assert clocks.watermark_us == 2 * MINUTE


def test_an_epoch_is_planned_without_the_partitions_that_wait() -> None:
    both = planners(Topics(("a", "b")), Topics(("c",)))
    start = Positions.of({"a/0": 1, "b/0": 2, "c/0": 3})
    both.held = {0: {"b/0"}}
    assert [both.source_end(node, start).waited for node in (0, 1)] == [("b/0",), ()]
    assert both.end(start) == Positions.of({"a/0": 11, "b/0": 2, "c/0": 13})
    assert both.cut() == {"a/0", "c/0"}, "or silence would never come beside what waits"
    both.held = {0: {""}}  # one clock of all that a source has
    assert both.end(start) == Positions.of({"a/0": 1, "b/0": 2, "c/0": 13})
    assert both.cut() == {"c/0"}
    both.held = {}
    assert both.end(start) == Positions.of({"a/0": 11, "b/0": 12, "c/0": 13})


def streams(made: Flow, *names: str, watermarks: Any = BY_TIME) -> list[Stream]:
    sources: list[Any] = [AnySource(name, ROWS, is_resolved=True) for name in names]
    return [made.source(each, uid=each.name, watermarks=watermarks) for each in sources]


def test_only_sources_own_streams_with_watermarks_are_aligned() -> None:
    made = Flow("aligned")
    one, other = streams(made, "one", "other")
    (untimed,) = streams(made, "untimed", watermarks=None)
    (foreign,) = streams(Flow("foreign"), "foreign")
    filtered = other.filter("amount > 0")
    strange: Any = "5 seconds"
    for wrong in ([one], [one, one], [one, untimed], [one, foreign], [one, filtered], [one, other, strange]):
        with raises(ConfigError, "align-streams"):
            made.align("5 minutes", *wrong)
    with raises(ConfigError, "option-value"):
        made.align("soon", one, other)
    made.align("5 minutes", one, other)
    both = one.union(filtered)
    both.sink(AnySink())
    untimed.sink(AnySink("untimed"))
    with raises(ConfigError, "align-untimed", "'one'"):
        made.graph()
    both.key_by("key").window(Tumbling("1 minute")).aggregate(uid="n", n=count()).sink(AnySink("n"))
    assert "of one, other what is over 300 s ahead in event time waits for the others" in made.explain()
    assert made.graph().alignments == (Alignment(5 * MINUTE, frozenset(["one", "other"])),)


@pytest.mark.parametrize("ahead_ms", [0, 1])
def test_what_is_too_far_ahead_of_the_epochs_time_moves_nothing(ahead_ms: int) -> None:
    clocks = Clocks({"a": bounded("at", "0 seconds", ahead="1 second")})
    named = frozenset([("a", "p")])
    clocks.advance(Times(named, {("a", "p"): 1_000}), 5)
    clocks.advance(Times(named, {("a", "p"): 1_005_000 + 1_000 * ahead_ms}), 5)
    assert clocks.watermark_us == (1_000 if ahead_ms else 1_005_000)
