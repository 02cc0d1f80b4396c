"""State as the last completed epoch left it equals a copy made then, in both backends, whatever comes after."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onefold.core.aggregates import Accumulation, count, sum_
from onefold.engine.queries.undo import QueryableBackend, StateMoment, UndoBlocks, UndoRows, UndoTable
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.flow.processing.rows import values_of

GROUPS = 8
ROWS = pa.schema({"k": pa.int64(), "name": pa.string(), "n": pa.int64()})
KEYS = st.tuples(st.integers(0, 1), st.sampled_from(["a", None]))
ALL_KEYS = [(number, name) for number in range(2) for name in ("a", None)]
SUBS = st.tuples(st.sampled_from(["x", "y"]))
VALUES = st.tuples(st.integers(0, 9))
AT = st.tuples(st.integers(-2, 2), st.integers(0, 2))


class Epochs(RuleBasedStateMachine):
    kind: type[Any]

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        storage = Storage(f"{self.folder.name}/checkpoints", "flow")
        if self.kind is MemoryBackend:
            self.inner: StateBackend = MemoryBackend(storage, 1, GROUPS)
        else:
            (home := Path(self.folder.name) / "rocks").mkdir()
            self.inner = RocksBackend(storage, 1, GROUPS, folder=str(home), changes_max=4)
        self.inner.restore([], range(GROUPS))
        self.watermark_us = 0
        self.backend = QueryableBackend(self.inner, StateMoment(0, 0))
        self.backend.begin(lambda: self.watermark_us, lambda: 0)
        self.values = self.backend.table(StateSpec("u", "values", StateKind.VALUE))
        self.maps = self.backend.table(StateSpec("u", "maps", StateKind.MAP))
        self.accumulation = Accumulation(ROWS, ("k", "name"), (("n", sum_("n")), ("times", count())))
        self.rows = self.backend.rows("u", "aggregates", self.accumulation.state_schema, 2)
        self.blocks = self.backend.blocks("u", "slices", ROWS, 2)
        # of values, maps, sums and blocks
        self.now: tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]] = ({}, {}, {}, {})
        self.epoch = 0
        self.frozen: list[tuple[StateMoment, Any]] = [(StateMoment(0, 0, 0), copy.deepcopy(self.now))]

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.close()
            self.folder.cleanup()

    @rule(key=KEYS, value=VALUES)
    def put(self, key: Any, value: Any) -> None:
        self.values.put(key, value)
        self.now[0][key] = value

    @rule(keys=st.lists(KEYS, max_size=4, unique=True), value=VALUES)
    def put_many(self, keys: list[Any], value: Any) -> None:
        self.values.put_many(keys, [value] * len(keys))
        self.now[0].update(dict.fromkeys(keys, value))

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        self.values.delete(key)
        self.now[0].pop(key, None)

    @rule(key=KEYS, sub=SUBS, value=VALUES)
    def put_in_map(self, key: Any, sub: Any, value: Any) -> None:
        self.maps.put(key, value, sub)
        self.now[1].setdefault(key, {})[sub] = value

    @rule(key=KEYS, sub=SUBS)
    def delete_in_map(self, key: Any, sub: Any) -> None:
        self.maps.delete(key, sub)
        self.now[1].get(key, {}).pop(sub, None)

    @rule(key=KEYS)
    def clear(self, key: Any) -> None:
        self.maps.clear(key)
        self.now[1].pop(key, None)

    @rule(rows=st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=1, max_size=4))
    def fold(self, rows: list[Any]) -> None:
        batch = pa.RecordBatch.from_pylist([{"k": k, "name": name, "n": n} for (k, name), n in rows], ROWS)
        self.rows.fold(self.accumulation.states(batch), self.accumulation)
        for key, n in rows:
            total, times = self.now[2].get(key, (0, 0))
            self.now[2][key] = total + n, times + 1

    @rule(at=AT, key=KEYS)
    def put_block(self, at: Any, key: Any) -> None:
        self.blocks.put(at, pa.RecordBatch.from_pylist([{"k": key[0], "name": key[1], "n": at[0]}], ROWS))
        self.now[3][at] = (*key, at[0])

    @rule(at=AT)
    def delete_block(self, at: Any) -> None:
        if at in self.now[3]:
            self.blocks.delete(at)
            del self.now[3][at]

    @rule(stores=st.booleans())
    def freeze(self, stores: bool) -> None:
        self.epoch += 1
        self.watermark_us += 10
        frozen = self.backend.freeze(self.epoch)
        if stores:
            frozen.store()
        self.frozen.append((StateMoment(self.epoch, self.epoch * 100, self.watermark_us), copy.deepcopy(self.now)))

    @rule(back=st.integers(0, 2))
    def complete(self, back: int) -> None:
        """That epoch, and by it those before."""
        del self.frozen[: max(0, len(self.frozen) - 1 - back)]
        at = self.frozen[0][0]
        self.backend.completed(at.epoch, at.timestamp_ms)

    @invariant()
    def both_views_are_right(self) -> None:
        if not hasattr(self, "backend"):
            return
        moment, committed = self.frozen[0]
        assert self.backend.moment(is_committed=True) == moment
        live = self.backend.moment(is_committed=False)
        assert (live.epoch, live.watermark_us) == (self.epoch, self.watermark_us)
        keys = pa.RecordBatch.from_pylist([{"k": k, "name": name} for k, name in ALL_KEYS], pa.schema([*ROWS][:2]))
        values, maps, rows, blocks = (self.backend.tables[name] for name in ("values", "maps", "aggregates", "slices"))
        assert isinstance(values, UndoTable) and isinstance(maps, UndoTable)
        assert isinstance(rows, UndoRows) and isinstance(blocks, UndoBlocks)
        for is_committed, model in ((True, committed), (False, self.now)):
            assert {k: v for k in ALL_KEYS for _, v in values.entries(k, is_committed)} == model[0]
            found = {k: dict(entries) for k in ALL_KEYS if (entries := maps.entries(k, is_committed))}
            assert found == {k: entries for k, entries in model[1].items() if entries}
            sums = values_of(self.accumulation.results(rows.kept(keys, is_committed)))
            assert {(k, name): of for k, name, *of in sums} == {k: [*of] for k, of in model[2].items()}
            there = [row for block in blocks.blocks(is_committed) for row in values_of(block)]
            assert sorted(there, key=repr) == sorted(model[3].values(), key=repr)
            for table, of in ((values, 0), (maps, 1)):
                assert {*table.some(99)} >= {key for key in model[of] if model[of][key]}


@pytest.mark.parametrize("kind", [MemoryBackend, RocksBackend])
def test_the_last_completed_epoch_is_seen_while_others_run(kind: type[Any]) -> None:
    case = type("Case", (Epochs,), {"kind": kind}).TestCase
    case.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    case().runTest()
