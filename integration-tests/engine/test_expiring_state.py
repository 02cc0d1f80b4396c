"""State that expires: the same on every backend and on Spark's tables, as dicts of values and times say; by what is
read and written, with restarts, and where the time to live is changed or taken away."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from harness.state_law.worlds import BACKENDS, Engine, OnSpark, States, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.engine.key_groups import group_of
from onefold.flow import Ttl
from onefold.flow.time.ttl import TtlClock, TtlUpdate, TtlVisibility
from onefold.spark.flows.buckets import entries_of

KINDS = ("value", "list", "map")
WORLDS = (*BACKENDS, "spark")
KEYS = [(name,) for name in "abcdef"]
SUBS = 3
TTL_MS = 1_000
RUN = settings(deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def world_of(name: str) -> Iterator[World]:
    schemas = "sub long", "n long"
    if name == "spark":
        yield OnSpark(schemas)
        return
    with tempfile.TemporaryDirectory() as folder, closing(Engine(BACKENDS[name], Path(folder), schemas)) as world:
        yield world


def write(states: States, kind: str, sub: int, n: int) -> None:
    if kind == "value":
        states.value.update((n,))
    elif kind == "list":
        states.list.appendValue((n,))
    else:
        states.map.updateValue((sub,), (n,))


def read(states: States, kind: str) -> list[int]:
    if kind == "value":
        found = states.value.get()
        return [] if found is None else [found[0]]
    return [n for (n,) in (states.list.get() if kind == "list" else states.map.values())]


def kept(world: World) -> int:
    """The entries that are there, seen or not."""
    if isinstance(world, OnSpark):
        world._turn(None)
        stored = (entries.items() for (name, _), entries in world._kept.items() if "$" not in name)
        return sum(len([*entries_of(*at, *content)]) for entries in stored for at, content in entries)
    states = [each for of in world.everyone() for each in (of.value, of.list, of.map)]
    return sum(len([*getattr(each._table, "_table", each._table).scan()]) for each in states)


def begin(world: World, clock: TtlClock, now_ms: int) -> None:
    """By that clock; the other one is elsewhere."""
    world.begin(*(now_ms, -5) if clock == "processing" else (10**12, now_ms))


SEEN: dict[tuple[TtlUpdate, TtlVisibility], dict[int, list[int]]] = {  # at these times, where 7 was written at 0
    ("write", "never_expired"): {0: [7], 999: [7], 1_000: [], 1_500: []},
    ("write", "until_cleaned"): {0: [7], 999: [7], 1_000: [7], 1_500: [7]},
    ("read_and_write", "never_expired"): {0: [7], 999: [7], 1_500: [7], 2_499: [7], 3_499: []},
    ("read_and_write", "until_cleaned"): {0: [7], 999: [7], 1_500: [7], 3_499: [7], 4_600: [7]},
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clock", get_args(TtlClock))
@pytest.mark.parametrize(("update", "visible"), SEEN)
def test_what_is_seen_of_an_entry(
    update: TtlUpdate, visible: TtlVisibility, clock: TtlClock, kind: str, name: str
) -> None:
    with world_of(name) as world:
        world.restart(1, Ttl("1 second", update, visible, clock))
        begin(world, clock, 0)
        write(world.at(("a",)), kind, 1, 7)
        for now_ms, seen in SEEN[update, visible].items():
            begin(world, clock, now_ms)
            assert read(world.at(("a",)), kind) == seen, now_ms
        assert kept(world) == 1
        world.cut()
        begin(world, clock, now_ms)
        assert (read(world.at(("a",)), kind), kept(world)) == ([], 0)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("kind", ["list", "map"])
def test_elements_and_entries_expire_one_by_one(kind: str, name: str) -> None:
    with world_of(name) as world:
        world.restart(1, Ttl("1 second"))
        for number, now_ms in enumerate((0, 600, 900)):
            world.begin(now_ms, None)
            write(world.at(("a",)), kind, number, number)
        for now_ms, seen in {999: [0, 1, 2], 1_000: [1, 2], 1_600: [2]}.items():
            world.begin(now_ms, None)
            assert read(world.at(("a",)), kind) == seen
        world.cut()
        assert kept(world) == 1
        write(world.at(("a",)), kind, 5, 5)
        assert read(world.at(("a",)), kind) == [2, 5]


class Model:
    """Entries by state, key and sub: a value, and when it expires by the clock of `ttl`."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, Any, int], tuple[int, int | None]] = {}
        self.ttl: Ttl | None = None
        self.now_ms: int | None = None
        self.clocks: tuple[int, int | None] = 0, None
        self.decided: Any = {}, None, (0, None)

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        self.clocks = now_ms, watermark_ms
        if self.ttl is not None:
            self.now_ms = watermark_ms if self.ttl.clock == "event" else now_ms
            self.entries = {at: (n, self.until if ms is None else ms) for at, (n, ms) in self.entries.items()}

    def restart(self, ttl: Ttl | None) -> None:
        self.entries, before, self.clocks = copy.deepcopy(self.decided)
        if before is not None and (ttl is None or ttl.clock != before.clock):
            self.entries = {at: (n, None) for at, (n, ms) in self.entries.items() if self.lives(ms, before)}
        self.ttl = ttl

    def cut(self) -> None:
        self.decided = copy.deepcopy((self.entries, self.ttl, self.clocks))

    @property
    def until(self) -> int | None:
        return None if self.now_ms is None or self.ttl is None else self.now_ms + self.ttl.ms

    def lives(self, until: int | None, ttl: Ttl | None) -> bool:
        now_ms = None if ttl is None else self.clocks[ttl.clock == "event"]
        return until is None or now_ms is None or until > now_ms

    def write(self, kind: str, key: Any, sub: int, n: int) -> None:
        self.entries[kind, key, sub] = n, self.until

    def read(self, kind: str, key: Any) -> tuple[list[int], list[int]]:
        """What must be seen, and what may be."""
        mine = sorted((at, entry) for at, entry in self.entries.items() if at[:2] == (kind, key))
        living = [(at, n) for at, (n, ms) in mine if self.lives(ms, self.ttl)]
        if self.ttl is not None and self.ttl.update == "read_and_write":
            self.entries |= {at: (n, self.until) for at, n in living}
        is_shown = self.ttl is not None and self.ttl.visible == "until_cleaned"
        must = [n for _, n in living]
        return must, [n for _, (n, _) in mine] if is_shown else must

    def clear(self, kind: str, key: Any) -> None:
        self.entries = {at: entry for at, entry in self.entries.items() if at[:2] != (kind, key)}


Step = tuple[Any, ...]
TTLS = st.builds(
    Ttl,
    st.sampled_from(["1 second", "4 milliseconds", "300 milliseconds"]),
    st.sampled_from(get_args(TtlUpdate)),
    st.sampled_from(get_args(TtlVisibility)),
    st.sampled_from(get_args(TtlClock)),
)


@st.composite
def programs(draw: Callable[[Any], Any]) -> list[Step]:
    kinds, keys, subs = st.sampled_from(KINDS), st.sampled_from(KEYS), st.integers(0, SUBS)
    passed = st.sampled_from([0, 1, 3, 100, 260, 999, 1_000, 5_000])
    step = st.one_of(
        *[st.tuples(st.just("write"), kinds, keys, subs)] * 4,
        *[st.tuples(st.just("read"), kinds, keys)] * 4,
        st.tuples(st.just("clear"), kinds, keys),
        *[st.tuples(st.just("begin"), passed, st.none() | passed)] * 3,
        *[st.tuples(st.just("cut"))] * 2,
        st.tuples(st.just("restart"), st.integers(1, 3), TTLS | st.none() | st.just("as before")),
    )
    return [("restart", 1, draw(TTLS | st.none())), *draw(st.lists(step, min_size=5, max_size=40))]


def check(name: str, program: list[Step]) -> None:
    model, now_ms, watermark_ms, decided_ms, ttl = Model(), 0, cast(int | None, None), cast(int | None, None), None
    with world_of(name) as world:
        for number, (what, *given) in enumerate(program):
            if what == "restart":
                wanted = model.decided[1] if given[1] == "as before" else given[1]
                if name == "spark" and wanted is None:  # which is refused where a flow starts
                    wanted = model.decided[1]
                watermark_ms = decided_ms
                world.restart(given[0], wanted)
                model.restart(ttl := wanted)
            if what in ("restart", "begin"):
                now_ms += 1
                if what == "begin":
                    now_ms += given[0]
                    watermark_ms = watermark_ms if given[1] is None else (watermark_ms or 0) + given[1]
                world.begin(now_ms, watermark_ms)
                model.begin(now_ms, watermark_ms)
            elif what == "write":
                kind, key, sub = given
                write(world.at(key), kind, sub, number)
                model.write(kind, key, {"value": 0, "list": number, "map": sub}[kind], number)
            elif what == "clear":
                kind, key = given
                getattr(world.at(key), kind).clear()
                model.clear(kind, key)
            elif what == "cut":
                world.cut()
                model.cut()
                decided_ms = watermark_ms
            else:
                found, (must, may) = read(world.at(given[1]), given[0]), model.read(*given)
                assert {*must} <= {*found} and found == [n for n in may if n in found], (number, found, must, may)
        if ttl is not None and (ttl.clock == "processing" or watermark_ms is not None):
            for _ in range(2):
                now_ms, watermark_ms = now_ms + 10_000, (watermark_ms or 0) + 10_000
                world.begin(now_ms, watermark_ms)
                world.cut()
            assert kept(world) == 0


@pytest.mark.parametrize("name", WORLDS)
@given(program=programs())
@settings(RUN, max_examples=25)
def test_programs_see_what_dicts_with_times_say(name: str, program: list[Step]) -> None:
    check(name, program)


def test_the_keys_are_of_several_groups() -> None:
    assert len({group_of(key, 8) for key in KEYS}) > 3


CHANGED: dict[str, tuple[Ttl | None, int, dict[int, list[int]]]] = {
    "to another duration: from the next write": (Ttl("1 minute"), 1_001, {1_998: [7], 1_999: []}),
    "to none": (None, 1_001, {10**9: [7]}),
    "to another clock": (Ttl("1 second", clock="event"), 5_000, {5_999: [7], 6_000: []}),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("change", CHANGED)
def test_a_time_to_live_may_be_changed_and_nothing_that_had_expired_comes_back(change: str, name: str) -> None:
    """At the restart one entry lives, and some 2,000 have expired that no walk has come to."""
    ttl, begins_ms, seen = CHANGED[change]
    with world_of(name) as world:
        world.restart(1, Ttl("1 second"))
        world.begin(0, None)
        for number in range(3_000):
            write(world.at((f"{number}",)), "value", 0, number)
        world.cut()
        world.begin(999, None)
        write(world.at(("a",)), "value", 0, 7)
        world.cut()
        world.begin(1_000, None)
        world.cut()
        assert 1_000 < kept(world) < 2_500
        world.restart(2, ttl)
        for now_ms in (begins_ms, *seen):
            world.begin(now_ms, now_ms)
            assert [number for number in range(3_000) if read(world.at((f"{number}",)), "value")] == []
            assert now_ms not in seen or read(world.at(("a",)), "value") == seen[now_ms]
        assert (kept(world) == 1) == (change != "to another duration: from the next write")


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_kept_without_one_lives_from_the_first_epoch_on(kind: str, name: str) -> None:
    with world_of(name) as world:
        write(world.at(("a",)), kind, 1, 7)
        world.cut()
        world.restart(2, Ttl("1 second"))
        for now_ms, seen in {5_000: [7], 5_999: [7], 6_000: []}.items():
            world.begin(now_ms, None)
            assert read(world.at(("a",)), kind) == seen
