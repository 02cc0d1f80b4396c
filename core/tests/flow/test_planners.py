"""The planners of several sources, as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.core.source import MemoryJournal, Part, Source
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.flow.planning import Planners
from onefold.flow.time.clocks import Clocks, Highest, SourceEnd
from onefold.flow.time.watermarks import monotonic


@dataclass(frozen=True)
class Topics:
    """A source of topics of one partition, which is its own planner; all of them have ten records more each time."""

    topics: tuple[str, ...]

    @property
    def name(self) -> str:
        return ",".join(self.topics)

    def covers(self, name: str) -> bool:
        return name.partition("/")[0] in self.topics

    def planner(self, frozen: Any = None, until: Any = None, journal: Any = None) -> Any:
        del frozen, until, journal
        return self

    def initial(self) -> Positions:
        return Positions.of({f"{topic}/0": 0 for topic in self.topics})

    def is_done(self, at: Positions) -> bool:
        return not at.items

    def end(self, start: Positions) -> Positions:
        return Positions.of({f"{topic}/0": int(dict(start.items)[f"{topic}/0"]) + 10 for topic in self.topics})

    def cut(self) -> list[str]:
        return [f"{topic}/0" for topic in self.topics]


class Forgetful(Topics):
    """Has forgotten its first topic."""

    def reads(self, name: str) -> bool:
        return name.partition("/")[0] in self.topics[1:]


def planners(*of: Topics) -> Planners:
    return Planners(cast(dict[int, Source], dict(enumerate(of))), None, lambda _: MemoryJournal())


def test_each_source_is_asked_from_its_own_positions_on() -> None:
    both = planners(Topics(("a", "b")), Topics(("c",)))
    assert both.initial() == Positions.of({"a/0": 0, "b/0": 0, "c/0": 0})
    assert both.end(Positions.of({"a/0": 1, "b/0": 2, "c/0": 3})) == Positions.of({"a/0": 11, "b/0": 12, "c/0": 13})


def test_two_sources_of_one_partition_are_refused_at_their_first_positions_and_at_later_ones() -> None:
    both = planners(Topics(("a", "b")), Topics(("b", "c")))
    for ask in (both.initial, lambda: both.end(Positions.of({"a/0": 1, "b/0": 2, "c/0": 3}))):
        with raises(ConfigError, "sources-overlap", "'a,b'", "'b,c'") as refused:
            ask()
        assert refused.value.code == "sources-overlap"


def test_event_time_does_not_wait_for_what_a_source_reads_no_more() -> None:
    at = Positions.of({"a/0": 1, "b/0": 2, "c/0": 3})
    assert planners(Topics(("a", "b")), Topics(("c",))).source_end(0, at) == SourceEnd(("a/0", "b/0"))
    assert planners(Forgetful(("a", "b"))).source_end(0, at) == SourceEnd(("b/0",))


def test_an_epoch_that_does_not_look_for_records_takes_no_partition_for_silent() -> None:
    idle = monotonic("at", idle="10 seconds")
    at, clocks, highest = Positions.of({"a/0": 1, "b/0": 2}), Clocks({"ab": idle}), Highest("ab", idle)
    of = planners(Topics(("a", "b")), Topics(()))
    for name, second in (("a/0", 9), ("b/0", 3)):
        rows = pa.record_batch({"at": pa.array([second], pa.timestamp("s"))})
        highest.see(name, Part(rows, empty_batch(BAD_COLUMNS)))
    clocks.advance(highest.take(of.source_end(0, at)), 1_000)
    assert clocks.watermark_us == 3_000_000
    of.leave(at)
    assert of.end(at) == at and not of.cut() and of.source_end(1, at).waited == ("",)
    clocks.advance(highest.take(of.source_end(0, at)), 99_000)
    assert clocks.watermark_us == 3_000_000
    of.held = {}
    clocks.advance(highest.take(of.source_end(0, at)), 199_000)
    assert clocks.watermark_us == 9_000_000
