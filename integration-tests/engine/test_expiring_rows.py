"""Aggregates that expire: as dicts of sums and times say, in memory and with RocksDB, with restarts, and where the time
to live is changed or taken away."""

from __future__ import annotations

import copy
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from harness.state_law.worlds import BACKENDS, GROUPS, Make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.core import TaskId
from onefold.core.aggregates import count, count_distinct, sum_
from onefold.engine.key_groups import group_of, key_groups_of_subtask, subtask_of
from onefold.engine.logics.expiring_logic import ExpiringLogic
from onefold.engine.logics.logic import Clocked, Logic
from onefold.engine.logics.reducing import AggregatingLogic
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow import Ttl
from onefold.flow.time.ttl import TtlUpdate, TtlVisibility

ROWS = pa.schema({"key": pa.string(), "n": pa.int64()})
AGGREGATES = (("total", sum_("n")), ("rows", count()), ("values", count_distinct("n")))
DEFAULTS: dict[str, Make] = {
    "memory": lambda storage, generation, _: MemoryBackend(storage, generation, GROUPS),
    "rocksdb": lambda storage, generation, folder: RocksBackend(storage, generation, GROUPS, folder=folder),
}
Lives = dict[str, tuple[list[int], int | None]]
Program = list[tuple[Any, ...]]


class Subtasks:
    """An aggregate in some subtasks, which a restart makes anew from the last epoch."""

    def __init__(self, name: str, folder: Path) -> None:
        self._make, self._storage, self._folder = BACKENDS[name], Storage(str(folder / "checkpoints"), "rows"), folder
        self._handles: list[str] = []
        self._epoch = self._generation = 0
        self.backends: list[StateBackend] = []

    def restart(self, subtasks: int, ttl: Ttl | None) -> None:
        self.close()
        self._generation += 1
        self.logics: list[Logic] = []
        for index in range(subtasks):
            backend = self._make(self._storage, self._generation, str(self._folder))
            backend.restore(self._handles, key_groups_of_subtask(index, subtasks, GROUPS))
            self.backends.append(backend)
            expiry = Expiry("sums", backend)
            logic = AggregatingLogic(ROWS, AGGREGATES, ("key",), expiry, ttl)
            self.logics.append(logic if ttl is None else ExpiringLogic(logic, expiry, None))

    def epoch(self, now_ms: int, rows: list[tuple[str, int]]) -> dict[str, tuple[int, int, int]]:
        self._epoch += 1
        task, found = TaskId("shop", 1, self._epoch, now_ms, uuid.UUID(int=0)), {}
        for index, logic in enumerate(self.logics):
            if isinstance(logic, Clocked):
                logic.begin(task)
            if mine := [
                row for row in rows if subtask_of(group_of(row[:1], GROUPS), len(self.logics), GROUPS) == index
            ]:
                logic.take(
                    pa.RecordBatch.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in mine], ROWS), 0
                )
            for _, batch in logic.flush(task):
                found |= {row["key"]: (row["total"], row["rows"], row["values"]) for row in batch.to_pylist()}
        self._handles = [backend.freeze(self._epoch).store() for backend in self.backends]
        return found

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        self.backends = []


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    ttls = st.builds(
        Ttl,
        st.sampled_from(["1 second", "4 milliseconds"]),
        st.sampled_from(get_args(TtlUpdate)),
        st.sampled_from(get_args(TtlVisibility)[:1]),
    )
    row = st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3))
    passed = st.sampled_from([1, 3, 100, 260, 999, 1_000, 5_000])
    epoch = st.tuples(st.just("epoch"), passed, st.lists(row, max_size=8))
    restart = st.tuples(st.just("restart"), st.integers(1, 3), ttls | st.none())
    return [("restart", 1, draw(ttls | st.none())), *draw(st.lists(st.one_of(epoch, epoch, restart), max_size=25))]


def check(name: str, program: Program) -> None:
    lives, ttl, now_ms = Lives(), None, 0
    with tempfile.TemporaryDirectory() as folder, closing(Subtasks(name, Path(folder))) as subtasks:
        for what, *given in program:
            if what == "restart":
                if given[1] is None and ttl is not None:
                    lives = {key: (of, None) for key, (of, until) in lives.items() if until is None or until > now_ms}
                subtasks.restart(given[0], ttl := given[1])
                continue
            passed, rows = given
            now_ms += passed
            until_ms = None if ttl is None else now_ms + ttl.ms
            lives = {key: (of, until_ms if until is None else until) for key, (of, until) in lives.items()}
            expected = {}
            for key in sorted({key for key, _ in rows}):
                kept, until = lives.get(key, ([], None))
                kept = copy.copy(kept) if until is None or until > now_ms else []
                kept += [n for of, n in rows if of == key]
                lives[key] = kept, until_ms
                expected[key] = sum(kept), len(kept), len({*kept})
            assert subtasks.epoch(now_ms, rows) == expected
        if ttl is not None:
            for _ in range(3):
                now_ms += 10_000
                subtasks.epoch(now_ms, [])
            subtasks.restart(1, ttl)
            if name == "memory":
                assert subtasks.backends[0].size().entries == 0
            assert subtasks.logics[0].timer_ms() is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BACKENDS)
@given(program=programs())
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
def test_sums_begin_anew_once_they_have_expired(name: str, program: Program) -> None:
    check(name, program)


@pytest.mark.parametrize("name", BACKENDS)
def test_until_they_are_cleaned_sums_go_on(name: str, tmp_path: Path) -> None:
    with closing(Subtasks(name, tmp_path)) as subtasks:
        subtasks.restart(1, Ttl("1 second", visible="until_cleaned"))
        assert subtasks.epoch(0, [("a", 1)]) == {"a": (1, 1, 1)}
        assert subtasks.epoch(1_500, [("a", 2)]) == {"a": (3, 2, 2)}
        subtasks.epoch(5_000, [])
        subtasks.restart(2, Ttl("1 second", visible="until_cleaned"))
        assert subtasks.epoch(5_001, [("a", 4)]) == {"a": (4, 1, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_a_million_keys_that_live_for_a_second_stay_within_bounds(name: str, tmp_path: Path) -> None:
    """An epoch of 250 ms has 25,000 new keys: 100,000 live, and as many again are dead at most."""
    with closing(Subtasks(name, tmp_path)) as subtasks:
        subtasks._make = DEFAULTS[name]
        subtasks.restart(1, Ttl("1 second"))
        (logic,), (backend,), most, stored = subtasks.logics, subtasks.backends, 0, list[int]()
        for epoch in range(1, 41):
            task = TaskId("shop", 1, epoch, epoch * 250, uuid.UUID(int=0))
            keys = pa.array([f"key {epoch * 25_000 + n}" for n in range(25_000)])
            logic.begin(task)  # type: ignore[attr-defined]
            logic.take(pa.record_batch([keys, pa.repeat(pa.scalar(1, pa.int64()), len(keys))], schema=ROWS), 0)
            for _, results in logic.flush(task):
                assert set(results.column("rows").to_pylist()) == {1}
            backend.freeze(epoch).store()
            most, stored = max(most, backend.size().entries), [*stored, backend.size().bytes]
        assert 100_000 <= most <= 250_000, most
        assert max(stored[20:]) < 2 * max(stored[10:20]), stored
        for epoch in range(41, 61):
            task = TaskId("shop", 1, epoch, epoch * 250, uuid.UUID(int=0))
            logic.begin(task)  # type: ignore[attr-defined]
            assert [*logic.flush(task)] == []
            backend.freeze(epoch).store()
        assert logic.timer_ms() is None  # type: ignore[attr-defined]
