"""State with a time to live, asked for: a committed answer has what had not expired by the time of its epoch, whatever
later epochs write, sweep and start anew. Answers are compared with a model, and with what was kept at each barrier."""

from __future__ import annotations

import copy
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from timed_rows import EPOCH, ROWS

from onefold.core import TaskId, Upsert
from onefold.engine.logics.logic import Clocked, EventTimed
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.queries.questions import Question, answer, queryable
from onefold.engine.queries.undo import QueryableBackend, StateMoment, UndoRows, UndoTable
from onefold.engine.state import sharded_tables
from onefold.engine.state.rocks import table as rocks_table
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.snapshots import restore
from onefold.flow import Flow, StatefulProcessor, Ttl, count, monotonic, sum_
from onefold.flow.processing.rows import values_of
from onefold.flow.time.clocks import Times

TTL_MS = 10
PART = ("rows", "")
KEYS = ("a", "b", "c")
BATCH = pa.RecordBatch.from_pylist([{"key": key} for key in KEYS], pa.schema([ROWS.field("key")]))
STATES = {"aggregate": ("aggregates",), "reduce": ("reduced",), "process": ("total", "all", "last")}
CLEARS, READS = 0, 1  # amounts by which the processor does something else
Entries = dict[tuple[str, Any], list[Any]]  # by key and sub: the value, and until when it lives

TTLS = st.none() | st.builds(
    Ttl,
    st.just(f"{TTL_MS} milliseconds"),
    st.sampled_from(["write", "read_and_write"]),
    st.sampled_from(["never_expired", "until_cleaned"]),
    st.sampled_from(["processing", "event"]),
)


class Keeping(StatefulProcessor):
    def __init__(self, ttl: Ttl | None) -> None:
        self._ttl = ttl

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long", ttl=self._ttl)
        self._all = handle.getListState("all", "n long", ttl=self._ttl)
        self._last = handle.getMapState("last", "of long", "n long", ttl=self._ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del timerValues
        for row in rows:
            if row.amount == CLEARS:
                self._total.clear()
                self._all.clear()
                self._last.clear()
                continue
            before = (self._total.get() or (0,))[0]
            if row.amount == READS:
                list(self._all.get())
                list(self._last.iterator())
                continue
            self._total.update((before + row.amount,))
            self._all.appendValue((row.amount,))
            self._last.updateValue((row.amount % 3,), (row.amount,))
        yield key


def flow(kind: str, ttl: Ttl | None) -> Flow:
    made = Flow("asked")
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    keyed = made.source(source, uid="rows", watermarks=monotonic("at", idle=None)).key_by("key")
    if kind == "process":
        keyed.process(Keeping(ttl), "key string", uid="kept", queryable=True).sink(AnySink("kept"))
        return made
    if kind == "reduce":
        kept = keyed.reduce(
            lambda kept, row: {**row, "amount": kept["amount"] + row["amount"]}, uid="kept", ttl=ttl, queryable=True
        )
    else:
        kept = keyed.aggregate(uid="kept", ttl=ttl, queryable=True, total=sum_("amount"), rows=count())
    kept.sink(AnySink("kept", replaces=Upsert(("key",), ("onefold_epoch",))))
    return made


class Asked(RuleBasedStateMachine):
    kind: str
    backend_name: str

    @initialize(ttl=TTLS)
    def begin(self, ttl: Ttl | None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.storage = Storage(f"{self.folder.name}/checkpoints", "asked")
        self.generation = self.epoch = 0
        self.now_ms = 0
        self.watermark_ms: int | None = None
        self.is_running = False
        self.rows: list[tuple[str, int]] = []
        self.sub = 0
        self.now: dict[str, Entries] = {name: {} for name in STATES[self.kind]}
        # of each epoch as it was stored: its moment, the model, by when things had expired, its handle, its version
        self.stored: dict[int, Any] = {0: ((0, 0, None), self.now, None, None, ttl, True)}
        # from the committed one on: its moment, the model, what is kept
        self.frozen: list[Any] = [(self.stored[0][0],)]
        self.start(ttl)

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.close()
            self.folder.cleanup()

    def start(self, ttl: Ttl | None) -> None:
        """From the first of `frozen`."""
        self.generation += 1
        (epoch, now_ms, watermark_ms), model, swept_ms, handle, before, is_pure = self.stored[self.frozen[0][0][0]]
        self.epoch, self.now_ms, self.watermark_ms, self.ended_ms = epoch, now_ms, watermark_ms, now_ms
        (home := Path(self.folder.name) / str(self.generation)).mkdir()
        inner = made_backend(self.backend_name, self.storage, self.generation, 8, str(home))
        self.backend = QueryableBackend(inner, StateMoment(epoch, now_ms))
        graph = flow(self.kind, ttl).graph()
        node = next(node for node in graph.nodes if node.uid == "kept")
        restore(self.backend, self.storage, graph, node, [handle] if handle else [], range(8))
        self.logic = make_logic(graph, node, {}, self.backend, 0, 1)
        self.views = {"kept": queryable(graph, node, self.logic, self.backend)}
        self.now = copy.deepcopy(model)
        self.ttl = ttl
        if before is not None and (ttl is None or ttl.clock != before.clock):
            for name, entries in self.now.items():
                gone = [at for at, (_, until) in entries.items() if not lives(until, swept_ms)]
                self.now[name] = {at: [of, None] for at, (of, _) in entries.items() if at not in gone}
        self.is_pure = is_pure and (ttl is None or ttl.visible == "never_expired")
        if not self.has_event_clock:
            self.watermark_ms = None
        moment = (epoch, now_ms, self.watermark_ms)
        self.frozen = [(moment, copy.deepcopy(self.now), self.kept())]
        self.is_running, self.rows = False, []

    @property
    def has_event_clock(self) -> bool:
        return self.ttl is not None and self.ttl.clock == "event"

    def kept(self) -> dict[str, Any]:
        """What the tables have, with times where there are some."""
        found: dict[str, Any] = {}
        for name in STATES[self.kind]:
            table = self.backend.tables[name]
            if isinstance(table, UndoRows):
                whole: Any = table._rows
                found[name] = [((key,), (), tuple(of)) for batch in whole.scan() for key, *of in values_of(batch)]
            else:
                assert isinstance(table, UndoTable)
                found[name] = [*table._table.scan()]
        return found

    @precondition(lambda self: not self.is_running)
    @rule(passed=st.sampled_from([1, 2, 5, 9, 10, 11, 40]))
    def begin_epoch(self, passed: int) -> None:
        self.is_running = True
        self.now_ms = self.ended_ms + passed
        self.task = TaskId("asked", self.generation, self.epoch + 1, self.now_ms, uuid.UUID(int=0))
        if isinstance(self.logic, Clocked):
            self.logic.begin(self.task)
        self.swept_ms = self.watermark_ms if self.has_event_clock else self.now_ms
        self.until_ms = None if self.ttl is None or self.swept_ms is None else self.swept_ms + TTL_MS
        if self.until_ms is not None:
            for entries in self.now.values():
                for of in entries.values():
                    of[1] = self.until_ms if of[1] is None else of[1]

    @precondition(lambda self: self.is_running)
    @rule(rows=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 5)), min_size=1, max_size=5))
    def take(self, rows: list[tuple[str, int]]) -> None:
        batch = pa.RecordBatch.from_pylist([{"key": key, "at": EPOCH, "amount": n} for key, n in rows], ROWS)
        list(self.logic.take(batch, 0))
        if self.kind == "aggregate":
            self.rows += rows
            return
        for key, n in rows:
            if self.kind == "reduce":
                self.add("reduced", key, (), lambda before, n=n: (EPOCH, n + (before[1] if before else 0)))
            else:
                self.process(key, n)

    def process(self, key: str, n: int) -> None:
        if n == CLEARS:
            for name, entries in self.now.items():
                self.now[name] = {at: of for at, of in entries.items() if at[0] != key}
            return
        self.read("total", key)
        if n == READS:
            self.read("all", key)
            self.read("last", key)
            return
        self.add("total", key, (), lambda before: (n + (before[0] if before else 0),))
        self.sub += 1
        self.now["all"][key, (self.sub,)] = [(n,), self.until_ms]
        self.now["last"][key, (n % 3,)] = [(n,), self.until_ms]

    def read(self, name: str, key: str) -> None:
        if self.ttl is not None and self.ttl.update == "read_and_write":
            for (of, _), each in self.now[name].items():
                if of == key and lives(each[1], self.swept_ms):
                    each[1] = self.until_ms

    def add(self, name: str, key: str, sub: Any, made: Any) -> None:
        before, until = self.now[name].get((key, sub), (None, None))
        seen = before if before is not None and lives(until, self.swept_ms) else None
        self.now[name][key, sub] = [made(seen), self.until_ms]

    @precondition(lambda self: self.is_running)
    @rule(passed=st.sampled_from([None, 0, 1, 5, 9, 10, 30]))
    def end_epoch(self, passed: int | None) -> None:
        if isinstance(self.logic, EventTimed):
            read = {}
            if passed is not None:
                read[PART] = ((self.watermark_ms or 0) + passed) * 1_000
            self.logic.advance(Times(frozenset([PART]), read), self.task)
            if self.has_event_clock and passed is not None:
                self.watermark_ms = (self.watermark_ms or 0) + passed
        list(self.logic.flush(self.task))
        for key in KEYS:
            if mine := [n for of, n in self.rows if of == key]:
                self.add(
                    "aggregates",
                    key,
                    (),
                    lambda before, mine=mine: tuple(
                        old + new for old, new in zip(before or (0, 0), (sum(mine), len(mine)), strict=True)
                    ),
                )
        self.rows = []
        self.both_views_are_right()
        self.epoch, self.ended_ms, self.is_running = self.epoch + 1, self.now_ms, False
        kept, frozen = self.kept(), self.backend.freeze(self.epoch)
        handle = frozen.store()
        moment = (self.epoch, self.now_ms, self.watermark_ms)
        model = copy.deepcopy(self.now)
        self.frozen.append((moment, model, kept))
        self.stored[self.epoch] = moment, model, self.swept_ms, handle, self.ttl, self.is_pure

    @rule(back=st.integers(0, 2))
    def complete(self, back: int) -> None:
        """That epoch, and by it those before."""
        del self.frozen[: max(0, len(self.frozen) - 1 - back)]
        epoch, now_ms, _ = self.frozen[0][0]
        self.backend.completed(epoch, now_ms)

    @rule(back=st.integers(0, 2), ttl=TTLS, stays=st.booleans())
    def start_again(self, back: int, ttl: Ttl | None, stays: bool) -> None:
        """From an epoch that is decided: one that others do not go before, and maybe as another version."""
        del self.frozen[: max(0, len(self.frozen) - 1 - back)]
        self.backend.completed(self.frozen[0][0][0], self.frozen[0][0][1])
        before = {name: self.asked(name, True) for name in STATES[self.kind]}
        self.backend.close()
        self.start(self.ttl if stays else ttl)
        if stays:
            assert {name: self.asked(name, True) for name in STATES[self.kind]} == before

    def asked(self, name: str, is_committed: bool) -> tuple[StateMoment, list[Any]]:
        moment, rows = answer(self.views, Question("kept", name, is_committed), BATCH)
        _, scanned = answer(self.views, Question("kept", name, is_committed, 100), None)
        assert sorted(values_of(scanned), key=repr) == sorted(values_of(rows), key=repr)
        return moment, [*values_of(rows)]

    @invariant()
    def both_views_are_right(self) -> None:
        if not hasattr(self, "backend"):
            return
        (epoch, now_ms, watermark_ms), model, kept = self.frozen[0]
        running_ms = self.now_ms if self.is_running else self.ended_ms
        is_event = self.has_event_clock
        for name in STATES[self.kind]:
            moment, rows = self.asked(name, True)
            assert (moment.epoch, moment.timestamp_ms) == (epoch, now_ms)
            by_ms = watermark_ms if is_event else now_ms
            assert rows == self.told(name, self.of_kept(name, kept), by_ms)
            _, live = self.asked(name, False)
            live_ms = self.watermark_ms if is_event else running_ms
            assert live == self.told(name, self.of_kept(name, self.kept()), live_ms)
            if self.is_pure:
                assert rows == self.told(name, model[name], by_ms)
                assert live == self.told(name, self.now[name], live_ms)

    def of_kept(self, name: str, kept: dict[str, Any]) -> Entries:
        places = {"aggregates": 2, "reduced": 3}.get(name, 1)
        found: Entries = {}
        for (key,), sub, value in kept.get(name, ()):
            timed = value if len(value) > places else (None, *value)
            found[key, sub] = [timed[2:] if name == "reduced" else timed[1:], timed[0]]
        return found

    def told(self, name: str, entries: Entries, by_ms: int | None) -> list[Any]:
        hides = self.ttl is not None and self.ttl.visible == "never_expired"
        there = [(at, of) for at, (of, until) in entries.items() if not hides or lives(until, by_ms)]
        subs = name == "last"
        return [(key, *(sub if subs else ()), *of) for (key, sub), of in sorted(there, key=lambda each: each[0])]


def lives(until_ms: int | None, now_ms: int | None) -> bool:
    return until_ms is None or now_ms is None or until_ms > now_ms


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("kind", STATES)
def test_an_answer_has_what_lives_by_the_time_of_its_epoch(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sharded_tables, rocks_table):
        monkeypatch.setattr(module, "WALKED_MIN", 1)  # so that a walk takes several epochs
    made: Any = type("Case", (Asked,), {"kind": kind, "backend_name": backend})
    case = made.TestCase
    case.settings = settings(
        max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    case().runTest()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("kind", ["aggregate", "reduce"])
def test_what_a_start_takes_away_with_the_times_is_in_no_answer(kind: str, backend: str) -> None:
    members = {"kind": kind, "backend_name": backend, "both_views_are_right": lambda _: None}
    case: Any = type("Case", (Asked,), members)()
    case.begin(ttl=Ttl(f"{TTL_MS} milliseconds"))
    rows = {"key": [f"k{number}" for number in range(3_000)], "at": [EPOCH] * 3_000, "amount": [1] * 3_000}
    case.begin_epoch(passed=1)
    list(case.logic.take(pa.RecordBatch.from_pydict(rows, ROWS), 0))
    for _ in range(TTL_MS):
        case.end_epoch(passed=None)
        case.begin_epoch(passed=1)
    case.end_epoch(passed=None)  # all have expired, and its walk has seen some of them
    case.complete(back=0)
    (name,) = STATES[kind]
    assert 0 < len(case.kept()[name]) < 3_000
    assert len(answer(case.views, Question("kept", name, True, 3_000), None)[1]) == 0
    case.backend.close()
    case.start(None)
    assert (case.kept()[name], *case.backend.tables[name].layers) in (([], []), ([], {}))
    assert len(answer(case.views, Question("kept", name, True, 3_000), None)[1]) == 0
    case.teardown()
