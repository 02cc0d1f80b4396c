"""The stream of a flow's sources on Spark, as Spark calls it, over files and a store: no Spark is needed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from harness.errors import raises
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onefold.core import CheckpointMismatch, ConfigError, DataLoss, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.flow.time.clocks import SourceEnd
from onefold.sources import FileSource
from onefold.spark.flows.ranges import TASKS_MAX, OnefoldRanges, RangesPlan, splits_of
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.offset_json import StreamOffset, parse_offsets

Offset = dict[str, Any]


@dataclass
class Numbers:
    """A source of one partition, which is its own planner: `there` records, at most `most` in an epoch; or it fails."""

    name: str
    there: int = 0
    most: int = 5
    failures: int = 0
    until: int | None = None

    def covers(self, name: str) -> bool:
        return name == f"{self.name}/0"

    def planner(self, frozen: Any = None, until: Positions | None = None, journal: Any = None) -> Any:
        del frozen, journal
        self.until = None if until is None else dict(until.items)[f"{self.name}/0"]  # type: ignore[assignment]
        return self

    def latest(self, start: Positions) -> Positions:
        self._answer()
        return self._at(self.there) if self._of(start) < self.there else start

    def end(self, start: Positions) -> Positions:
        self._answer()
        there = self.there if self.until is None else self.until
        return self._at(min(there, self._of(start) + self.most))

    def splits(self, span: Range) -> list[Split]:
        first, end = self._of(span.start), self._of(span.end)
        return [Split(f"{self.name}/0", (first, end))] if first < end else []

    def is_done(self, at: Positions) -> bool:
        return self.until is not None and self._of(at) >= self.until

    def cut(self) -> set[str]:
        return set()

    def completed(self, end: Positions) -> None:
        self.done = self._of(end)

    def close(self) -> None:
        return

    def _answer(self) -> None:
        if self.failures:
            self.failures -= 1
            raise Retriable("kafka-unreachable", f"{self.name} does not answer")

    def _of(self, positions: Positions) -> int:
        return int(dict(positions.items).get(f"{self.name}/0", 0))

    def _at(self, number: int) -> Positions:
        return Positions.of({f"{self.name}/0": number})


@dataclass
class OwnEnd(Numbers):
    """One of a user's own, with an end of its own: a planner each."""

    def planner(self, frozen: Any = None, until: Positions | None = None, journal: Any = None) -> Any:
        del frozen, journal
        made = OwnEnd(self.name, self.there, self.most)
        made.until = self.there if until is None else dict(until.items)[f"{self.name}/0"]  # type: ignore[assignment]
        return made


@dataclass
class Apart(Numbers):
    """One that goes on, with a planner each."""

    def planner(self, frozen: Any = None, until: Positions | None = None, journal: Any = None) -> Any:
        made = Numbers(self.name, self.there, self.most, self.failures)
        return made.planner(frozen, until, journal)


@dataclass
class Unsure(Numbers):
    """One that has an end, and must be asked whether it has come."""

    def end(self, start: Positions) -> Positions:
        del start
        return self._at(self.there)

    def is_done(self, at: Positions) -> bool:
        self._answer()
        return self._of(at) >= self.there


@dataclass
class Wide(Numbers):
    """One of three partitions."""

    def splits(self, span: Range) -> list[Split]:
        return [Split(name, 0) for name, at in span.end.items if at != dict(span.start.items).get(name)]

    def covers(self, name: str) -> bool:
        return name.startswith(f"{self.name}/")

    def end(self, start: Positions) -> Positions:
        del start
        return Positions.of({f"{self.name}/{number}": self.there for number in range(3)})


@dataclass
class Rated(Numbers):
    """One that has something to read, and may not at every second time that it is asked."""

    asked: int = 0

    def end(self, start: Positions) -> Positions:
        self.asked += 1
        return start if self.asked in (2, 3) else super().end(start)

    def cut(self) -> set[str]:
        return {f"{self.name}/0"}


@dataclass
class World:
    folder: Path
    store: str
    store_id: str

    def files(self, **more: Any) -> FileSource:
        return FileSource(str(self.folder), format="json", schema="id long", **more)

    def wanted(self, *sources: Any, **more: Any) -> RangesPlan:
        begin = more.pop("begin", Positions())
        settings: dict[str, Any] = {
            "until": None,
            "added": Positions(),
            "patience_s": 0.3,
            "timed": {},
            **more,
        }
        return RangesPlan("shop", dict(enumerate(sources)), begin, store=self.store, store_id=self.store_id, **settings)

    def put(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text('{"id": 1}\n')


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "in").mkdir()
    url = f"sqlite:///{tmp_path}/store.db"
    store = CheckpointStore(url)
    yield World(tmp_path / "in", url, store.id())
    store.close()


def reader(wanted: RangesPlan) -> Any:
    """As the process has it that plans; sources that count stay the test's own."""
    made: Any = OnefoldRanges(cast(Any, wanted.options())).streamReader(None)
    made._wanted = replace(wanted)
    return made


def after(stream: Any, start: Offset) -> Offset:
    found: Offset = stream.latestOffset(json.loads(json.dumps(start)), ReadAllAvailable())
    return found


def splits(stream: Any, start: Offset, end: Offset) -> list[tuple[int, Split]]:
    tasks = pickle.loads(cloudpickle.dumps(stream.partitions(start, end)))
    task: Any = pickle.loads(cloudpickle.dumps(stream))  # as a task has it
    return [each for of in tasks for batch in task.read(of) for each in splits_of(batch)]


def named(stream: Any, start: Offset, end: Offset) -> list[str]:
    return sorted(split.range.name for _, split in splits(stream, start, end))


def test_an_epoch_has_the_new_of_all_sources_and_the_offset_says_where_all_began(world: World) -> None:
    begin = Positions.of({"a/0": 2})
    stream = reader(world.wanted(Numbers("a", 9), world.files(max_files_per_trigger=2), begin=begin))
    names = ['a ü"#.json', "b:%41,'.json", "c\\\n.json"]
    world.put(*names)
    start = stream.initialOffset()
    first = after(stream, start)
    second = after(stream, first)
    assert after(stream, second) == second
    assert [node for node, _ in splits(stream, start, first)] == [0, 1, 1]
    found = [split.range for of in ((start, first), (first, second)) for _, split in splits(stream, *of)]
    assert [of for of in found if isinstance(of, tuple)] == [(2, 7), (7, 9)]
    assert [of.name for of in found if not isinstance(of, tuple)] == names
    offset = StreamOffset.of(second)
    assert offset is not None and offset.began == begin
    assert parse_offsets([json.dumps(second)]) == offset.at
    assert [name for name, _ in offset.at.items] == [f"#{world.folder.name}/", "a/0"]


def test_a_first_batch_that_was_planned_before_a_restart_is_read_from_where_it_began(world: World) -> None:
    world.put("a.json")
    wanted = world.wanted(Numbers("a", 3), world.files())
    stream = reader(wanted)
    first = after(stream, stream.initialOffset())
    again = reader(replace(wanted, begin=StreamOffset.of(first).at))  # type: ignore[union-attr]
    assert [node for node, _ in splits(again, again.initialOffset(), first)] == [0, 1]


def test_what_is_there_now_ends_a_run_and_what_comes_later_is_the_next_ones(world: World) -> None:
    numbers = Numbers("a", 12)
    stream = reader(world.wanted(numbers, world.files(max_files_per_trigger=1)))
    stream.prepareForTriggerAvailableNow()
    world.put("a.json", "b.json", "c.json")
    start, seen = stream.initialOffset(), []
    while (end := after(stream, start)) != start:
        seen += [split.range for _, split in splits(stream, start, end)]
        start = end
        numbers.there += 2
        world.put(f"later {len(seen)}.json")
    assert [each for each in seen if isinstance(each, tuple)] == [(0, 5), (5, 10), (10, 12)]
    assert [each.name for each in seen if not isinstance(each, tuple)] == ["a.json", "b.json", "c.json"]
    assert numbers.done == 12


def test_a_source_that_does_not_answer_is_waited_for_and_then_named(world: World) -> None:
    numbers = Numbers("a", 3, failures=1)
    stream = reader(world.wanted(numbers, patience_s=5.0))
    start = stream.initialOffset()
    assert StreamOffset.of(after(stream, start)).at == Positions()  # type: ignore[union-attr]
    assert StreamOffset.of(after(stream, start)).at == Positions.of({"a/0": 3})  # type: ignore[union-attr]
    numbers.failures = 2
    ending = reader(world.wanted(numbers, patience_s=5.0))
    ending.prepareForTriggerAvailableNow()
    assert StreamOffset.of(after(ending, start)).at == Positions.of({"a/0": 3})  # type: ignore[union-attr]
    numbers.failures = 1_000

    def asked() -> None:
        for _ in range(1_000):
            after(stream, start)

    with raises(Retriable, "kafka-unreachable"):
        asked()


def test_what_was_added_begins_where_the_start_found_it_also_for_a_batch_that_runs_again_later(world: World) -> None:
    stream = reader(world.wanted(Numbers("a", 4)))
    before = after(stream, stream.initialOffset())
    added = reader(world.wanted(Numbers("a", 6), Numbers("b", 100), added=Positions.of({"b/0": 97})))
    end = after(added, before)
    assert [split.range for _, split in splits(added, before, end)] == [(4, 6), (97, 100)]
    later = reader(world.wanted(Numbers("a", 6), Numbers("b", 100)))  # b has a position by now
    assert [split.range for _, split in splits(later, before, end)] == [(4, 6), (97, 100)]
    assert after(later, end) == end


def test_a_batch_of_a_source_that_was_taken_out_is_refused(world: World) -> None:
    stream = reader(world.wanted(Numbers("a", 4), Numbers("b", 4)))
    start = stream.initialOffset()
    end = after(stream, start)
    for ask in (lambda of: of.partitions(start, end), lambda of: after(of, end)):
        with pytest.raises(ConfigError) as refused:
            ask(reader(world.wanted(Numbers("a", 4))))
        assert refused.value.code == "positions-not-read"


def test_a_batch_that_was_begun_ends_where_it_did(world: World) -> None:
    until = Positions.of({"a/0": 3})
    stream = reader(world.wanted(Numbers("a", 9), until=until))
    first = after(stream, stream.initialOffset())
    assert StreamOffset.of(first).at == until  # type: ignore[union-attr]
    assert StreamOffset.of(after(stream, first)).at == Positions.of({"a/0": 8})  # type: ignore[union-attr]


def test_two_sources_of_one_partition_are_refused(world: World) -> None:
    stream = reader(world.wanted(Numbers("a", 4), Numbers("a", 4)))
    with pytest.raises(ConfigError) as refused:
        after(stream, stream.initialOffset())
    assert refused.value.code == "sources-overlap"


def test_files_that_are_gone_when_an_epoch_runs_again_are_a_loss(world: World) -> None:
    world.put("a.json", "b.json")
    wanted = world.wanted(world.files())
    stream = reader(wanted)
    start = stream.initialOffset()
    end = after(stream, start)
    (world.folder / "b.json").unlink()
    again = reader(wanted)
    with pytest.raises(DataLoss) as refused:
        again.partitions(start, end)
    assert refused.value.code == "file-gone"


def test_a_store_that_is_gone_or_another_is_refused_and_none_is_made(world: World) -> None:
    world.put("a.json")
    wanted = world.wanted(world.files())
    stream = reader(wanted)
    start = stream.initialOffset()
    end = after(stream, start)
    file = Path(world.store.removeprefix("sqlite:///"))
    for path in file.parent.glob("store.db*"):
        path.unlink()
    for ask in (lambda of: of.partitions(start, end), lambda of: after(of, end)):
        with pytest.raises(CheckpointMismatch) as refused:
            ask(reader(wanted))
        assert refused.value.code == "another-store"
    assert not file.exists()
    other = CheckpointStore(world.store)
    other_id = other.id()
    other.close()
    with pytest.raises(DataLoss) as lost:
        after(reader(replace(wanted, store_id=other_id)), end)
    assert lost.value.code == "file-log-missing"


def test_many_files_share_tasks_always_the_same_ones(world: World) -> None:
    world.put(*[f"{number}.json" for number in range(1_000)])
    wanted = world.wanted(world.files())
    stream = reader(wanted)
    start = stream.initialOffset()
    end = after(stream, start)
    tasks = stream.partitions(start, end)
    assert len(tasks) == TASKS_MAX
    assert len(named(stream, start, end)) == 1_000
    assert reader(wanted).partitions(start, end) == tasks


def test_an_offset_of_another_query_is_refused(world: World) -> None:
    stream = reader(world.wanted(Numbers("a", 4)))
    with pytest.raises(ConfigError) as refused:
        after(stream, {"orders": {"0": 17}})
    assert refused.value.code == "checkpoint-of-another-query"


def test_options_show_no_setting_of_a_source_and_a_task_has_none(world: World) -> None:
    stream = reader(wanted := world.wanted(Numbers("a", 4)))
    (name,) = wanted.options()
    assert "secret" in name
    assert b"sqlite" not in cloudpickle.dumps(stream)  # type: ignore[no-untyped-call]


def ended(value: Offset) -> list[str]:
    offset = StreamOffset.of(value)
    assert offset is not None
    return sorted(offset.ended)


def source_end(stream: Any, start: Offset, end: Offset) -> list[SourceEnd]:
    return [each for _, each in splits(stream, start, end) if isinstance(each, SourceEnd)]


def test_sources_that_have_ended_end_with_the_batch_of_their_last_records(world: World) -> None:
    timed = {0: ("one", 60_000), 1: ("two", None)}
    one, two = OwnEnd("a", 4), OwnEnd("b", 9)
    stream = reader(world.wanted(one, two, timed=timed))
    start = stream.initialOffset()
    first = after(stream, start)
    second = after(stream, first)
    assert [ended(each) for each in (first, second)] == [["one"], ["one", "two"]]
    assert source_end(stream, start, first) == [SourceEnd(("a/0",), True), SourceEnd(("b/0",), False)]
    assert source_end(stream, first, second) == [SourceEnd(("a/0",), True), SourceEnd(("b/0",), True)]
    assert after(stream, second) == second


def test_case_77_a_start_with_an_end_and_nothing_to_read_has_one_batch_in_which_that_is_heard(world: World) -> None:
    timed: Any = {0: ("one", 60_000)}
    goes_on = reader(world.wanted(Numbers("a", 4), timed=timed))
    stood = after(goes_on, goes_on.initialOffset())
    assert after(goes_on, stood) == stood and ended(stood) == []
    bounded = reader(world.wanted(OwnEnd("a", 4), timed=timed))
    last = after(bounded, stood)
    assert ended(last) == ["one"]
    assert splits(bounded, stood, last) == [(0, SourceEnd(("a/0",), True))]
    assert after(bounded, last) == last
    assert source_end(goes_on, stood, last) == [SourceEnd(("a/0",), True)], "a batch that runs again is as it was"
    assert after(goes_on, last) == last


def test_what_is_there_now_is_no_end_but_a_sources_own_is(world: World) -> None:
    world.put("a.json")
    timed: Any = {0: ("files", 60_000)}
    files = world.files()
    stream = reader(world.wanted(files, timed=timed))
    stream.prepareForTriggerAvailableNow()
    first = after(stream, stream.initialOffset())
    assert ended(first) == [] and after(stream, first) == first
    own = reader(world.wanted(OwnEnd("a", 4), timed=timed))
    own.prepareForTriggerAvailableNow()
    assert ended(after(own, own.initialOffset())) == ["files"]


def test_what_is_there_now_is_no_end_either_where_a_source_answers_late(world: World) -> None:
    world.put("a.json")
    timed: Any = {0: ("files", 60_000), 1: ("numbers", 60_000)}
    stream = reader(world.wanted(world.files(), Apart("a", 3, failures=1), timed=timed, patience_s=5.0))
    stream.prepareForTriggerAvailableNow()
    first = after(stream, stream.initialOffset())
    assert ended(first) == [] and after(stream, first) == first


def test_another_idle_is_a_batch(world: World) -> None:
    stream = reader(world.wanted(Numbers("a", 4), timed={0: ("one", 60_000)}))
    stood = after(stream, stream.initialOffset())
    stream = reader(world.wanted(Numbers("a", 4), timed={0: ("one", 5_000)}))
    told = after(stream, stood)
    assert told != stood and after(stream, told) == told
    assert splits(stream, stood, told) == [(0, SourceEnd(("a/0",), False))]


def test_a_source_that_does_not_answer_is_waited_for_where_silence_counts(world: World) -> None:
    timed: Any = {0: ("one", 60_000)}
    stream = reader(world.wanted(Numbers("a", 3, failures=2), timed=timed, patience_s=5.0))
    first = StreamOffset.of(after(stream, stream.initialOffset()))
    assert first is not None and first.at == Positions.of({"a/0": 3})
    with raises(Retriable, "kafka-unreachable"):
        after(reader(world.wanted(Numbers("a", 3, failures=1_000), timed=timed)), stream.initialOffset())


def test_whether_a_source_has_ended_is_asked_again_where_it_does_not_answer(world: World) -> None:
    stream = reader(world.wanted(Unsure("a", 4, failures=1), timed={0: ("one", None)}, patience_s=5.0))
    stood = after(stream, stream.initialOffset())
    assert ended(stood) == ["one"]


def test_one_task_names_all_partitions_and_the_others_name_their_own(world: World) -> None:
    """Each tells all key groups: with every partition in each, that grew by the square of the partitions."""
    stream = reader(world.wanted(Wide("a", 4), timed={0: ("one", 60_000)}))
    start = stream.initialOffset()
    end = after(stream, start)
    assert source_end(stream, start, end) == [
        SourceEnd(("a/0", "a/1", "a/2")),
        SourceEnd(("a/0", "a/1")),
        SourceEnd(("a/0", "a/2")),
    ]


def test_what_is_left_unread_for_a_limit_is_waited_for_where_silence_counts(world: World) -> None:
    source = Rated("a", 9)
    stream = reader(world.wanted(source, timed={0: ("one", 60_000)}))
    first = after(stream, stream.initialOffset())
    assert after(stream, first) != first and source.asked == 4
