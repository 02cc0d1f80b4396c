"""Blocks and rows of columns equal plain dicts, through snapshots, and restores with another number of subtasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.core.aggregates import Accumulation
from onefold.engine.key_groups import group_of, key_groups_of_subtask, subtask_of
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import BlockTable, StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow import last, max_, min_, sum_

GROUPS = 16
ROWS = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "n": pa.int64(),
        "text": pa.string(),
        "d": pa.decimal128(9, 2),
        "b": pa.bool_(),
    }
)
KEY = ("id", "name")
AGGREGATES = [
    ("total", sum_("n")),
    ("last", last("text")),
    ("least", min_("d")),
    ("is", max_("b")),
]
FOLDING = Accumulation(ROWS, KEY, AGGREGATES)
Make = Callable[[Storage, int, str], StateBackend]


def of_memory(storage: Storage, generation: int, folder: str) -> StateBackend:
    del folder
    return MemoryBackend(storage, generation, GROUPS, copies_max=9, logged_min=12)


def of_rocks(storage: Storage, generation: int, folder: str) -> StateBackend:
    return RocksBackend(storage, generation, GROUPS, folder=folder, within_bytes_max=3000)


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(0, 9),
            "name": st.sampled_from(["a", "b"]),
            "n": st.none() | st.integers(-9, 9),
            "text": st.none() | st.text(max_size=2),
            "d": st.none() | st.decimals(-99, 99, places=2),
            "b": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fold"), RECORDS),
        st.tuples(st.just("put"), RECORDS, st.integers(-1, 1)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("replace"), RECORDS, st.integers(0, 3)),
        st.tuples(st.just("cut"), st.just(None)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    max_size=25,
)


class Flow:
    """Subtasks with a backend each, and what they should have: the records of each key that were folded, and of each
    slice the rows of its blocks, in their order by key."""

    def __init__(self, make: Make, folder: str) -> None:
        self.make, self.folder = make, folder
        self.storage = Storage(f"{folder}/checkpoints", "flow")
        self.handles: list[str] = []
        self.epoch = self.generation = self.serial = 0
        self.records: list[Any] = []
        self.blocks: list[tuple[int, list[Any]]] = []
        self.cut_at: Any = ([], [])
        self.backends: list[StateBackend] = []
        self.restart(1)

    def restart(self, subtasks: int) -> None:
        self.close()
        self.generation += 1
        self.backends = [self.make(self.storage, self.generation, self.folder) for _ in range(subtasks)]
        for number, backend in enumerate(self.backends):
            backend.restore(self.handles, key_groups_of_subtask(number, subtasks, GROUPS))
        self.kept = [backend.rows("sum", "aggregates", FOLDING.state_schema, 2) for backend in self.backends]
        self.tables = [backend.blocks("window", "blocks", ROWS, 2) for backend in self.backends]
        self.records, self.blocks = [*self.cut_at[0]], [*self.cut_at[1]]
        self.check()

    def cut(self, _: None) -> None:
        self.epoch += 1
        self.handles = [backend.freeze(self.epoch).store() for backend in self.backends]
        self.cut_at = [*self.records], [*self.blocks]

    def fold(self, records: list[Any]) -> None:
        self.records += records
        for number, mine in self.by_subtask(records):
            found = FOLDING.results(self.kept[number].fold(FOLDING.states(batch(mine)), FOLDING)).to_pylist()
            keys = {key_of(record) for record in mine}
            assert sorted(found, key=repr) == sorted(self.expected(keys), key=repr)

    def put(self, records: list[Any], slice_: int) -> None:
        for number, mine in self.by_subtask(records):
            numbers = [at for of, at in self.tables[number].ids() if of == slice_]
            self.tables[number].put((slice_, max(numbers, default=-1) + 1), batch(mine))
            self.blocks.append((slice_, mine))

    def delete(self, place: int) -> None:
        for table in self.tables:
            for at in table.ids()[place : place + 1]:
                self.gone(at[0], table.get(at).to_pylist())
                table.delete(at)

    def replace(self, records: list[Any], place: int) -> None:
        for number, mine in self.by_subtask(records):
            for at in self.tables[number].ids()[place : place + 1]:
                self.gone(at[0], self.tables[number].get(at).to_pylist())
                self.tables[number].put(at, batch(mine))
                self.blocks.append((at[0], mine))

    def gone(self, slice_: int, rows: list[Any]) -> None:
        left = [*rows]
        found: list[tuple[int, list[Any]]] = []
        for of, kept in self.blocks:
            mine = [*kept]
            for row in kept if of == slice_ else ():
                if row in left:
                    left.remove(row)
                    mine.remove(row)
            found.append((of, mine))
        assert not left
        self.blocks = found

    def check(self) -> None:
        found = [(at[0], row) for table in self.tables for at, rows in blocks_of(table) for row in rows]
        wanted = [(slice_, row) for slice_, rows in self.blocks for row in rows]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)

    def expected(self, keys: set[Any]) -> list[Any]:
        of: dict[Any, list[Any]] = {}
        for record in self.records:
            if key_of(record) in keys:
                of.setdefault(key_of(record), []).append(record)
        return [
            {
                "id": key[0],
                "name": key[1],
                "total": sum(there(rows, "n")) if there(rows, "n") else None,
                "last": rows[-1]["text"],
                "least": min(there(rows, "d"), default=None),
                "is": max(there(rows, "b"), default=None),
            }
            for key, rows in of.items()
        ]

    def by_subtask(self, records: list[Any]) -> Iterator[tuple[int, list[Any]]]:
        for number in range(len(self.backends)):
            mine = [r for r in records if subtask_of(group_of(key_of(r), GROUPS), len(self.backends), GROUPS) == number]
            if mine:
                yield number, mine

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def key_of(record: Any) -> Any:
    return record["id"], record["name"]


def there(rows: list[Any], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def batch(records: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(records, ROWS)


def blocks_of(table: BlockTable) -> Iterator[tuple[Any, list[Any]]]:
    return ((at, table.get(at).to_pylist()) for at in table.ids())


def hold(make: Make, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        flow = Flow(make, folder)
        for name, first, *more in [*steps, ("cut", None), ("restart", 1)]:
            given = batch(first).to_pylist() if isinstance(first, list) else first
            getattr(flow, name)(given, *more)
            flow.check()
        if flow.records:
            flow.fold([{**record, "n": 0} for record in flow.records])
        flow.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_in_memory(steps: list[Any]) -> None:
    hold(of_memory, steps)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_in_rocksdb(steps: list[Any]) -> None:
    hold(of_rocks, steps)
