"""Blocks and rows of columns equal plain dicts, through snapshots, and restores with another number of subtasks."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.core.aggregates import Accumulation
from onefold.core.errors import DataLoss
from onefold.engine.key_groups import group_of, key_groups_of_subtask, subtask_of
from onefold.engine.state.columns import slot_columns
from onefold.engine.state.columns.block_codec import conformed, from_stream, note_of, to_stream, wanted_rows
from onefold.engine.state.columns.keyed_rows import KeyedRows
from onefold.engine.state.columns.slot_columns import column_for
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.rocks.rocks_blocks import RocksBlocks
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockTable, StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow import count_distinct, last, max_, min_, sum_

SHARED = Path("/dev/shm")  # in memory if there is room, for the many fsyncs
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
    ("texts", count_distinct("text")),
    ("numbers", count_distinct("n")),
]
FOLDING = Accumulation(ROWS, KEY, AGGREGATES)

Make = Callable[[Storage, int, str], StateBackend]


@pytest.fixture(autouse=True, scope="module")
def nested_made_one_soon() -> Iterator[None]:
    """Columns of lists are put together where a test has few values, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_columns, "NESTED_BYTES_MIN", 64)
        yield


def of_memory(storage: Storage, generation: int, folder: str) -> StateBackend:
    del folder
    return MemoryBackend(storage, generation, GROUPS, copies_max=400, logged_min=5)


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
        st.tuples(st.just("freeze"), st.just(None)),
        st.tuples(st.just("store"), st.just(None)),
        st.tuples(st.just("cut"), st.just(None)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    min_size=10,
    max_size=50,
)


class Flow:
    """Subtasks with a backend each, and what they should have: the records of each key that were folded, and of each
    slice the rows of its blocks, in their order by key."""

    def __init__(self, make: Make, folder: str) -> None:
        self.make, self.folder = make, folder
        self.storage = Storage(f"{folder}/checkpoints", "flow")
        self.handles: list[str] = []
        self.epoch = self.generation = 0
        self.records: list[Any] = []
        self.blocks: list[tuple[int, list[Any]]] = []
        self.stored: Any = ([], [])
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
        self.records, self.blocks = [*self.stored[0]], [*self.stored[1]]
        self.frozen: list[Any] = []
        self.check()

    def freeze(self, _: None) -> None:
        self.epoch += 1
        frozen = [backend.freeze(self.epoch) for backend in self.backends]
        self.frozen.append((frozen, ([*self.records], [*self.blocks])))

    def store(self, _: None) -> None:
        if self.frozen:
            frozen, self.stored = self.frozen.pop(0)
            self.handles = [one.store() for one in frozen]

    def cut(self, _: None) -> None:
        self.freeze(None)
        while self.frozen:
            self.store(None)

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
                "texts": len({*there(rows, "text")}),
                "numbers": len({*there(rows, "n")}),
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
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.exists() else None) as folder:
        flow = Flow(make, folder)
        for name, first, *more in [*steps, ("cut", None), ("restart", 1)]:
            given = batch(first).to_pylist() if isinstance(first, list) else first
            getattr(flow, name)(given, *more)
            flow.check()
        if flow.records:
            flow.fold([{**record, "n": 0} for record in flow.records])
        flow.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_in_memory(steps: list[Any]) -> None:
    hold(of_memory, steps)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_in_rocksdb(steps: list[Any]) -> None:
    hold(of_rocks, steps)


VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 5],
    pa.uint64(): [2**64 - 1, 0],
    pa.float32(): [0.5, -0.0],
    pa.float64(): [math.nan, math.inf],
    pa.decimal128(38, 3): [Decimal("1.500"), Decimal(-(10**34))],
    pa.decimal64(9, 2): [Decimal("1.50"), Decimal("-1.00")],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    pa.time64("us"): [dt.time(1, 2, 3, 4), dt.time()],
    pa.timestamp("ns", "Europe/Berlin"): [1000, -1000],
    pa.duration("s"): [dt.timedelta(seconds=1), dt.timedelta(days=-1)],
    pa.string(): ["", "ä"],
    pa.large_binary(): [b"", b"\0"],
    pa.string_view(): ["", "longer than what is kept in a view"],
    pa.binary(3): [b"abc", b"\0\0\0"],
    pa.list_(pa.int64()): [[], [1, None]],
    pa.large_list(pa.struct({"a": pa.uint8()})): [[{"a": 1}, {"a": None}], []],
    pa.struct({"a": pa.string()}): [{"a": None}, {"a": "b"}],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
    pa.null(): [None, None],
}

UNKEYED = {kind for kind in VALUES if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind)}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_column_has_at_its_slots_what_was_put_there(kind: pa.DataType) -> None:
    values = pa.array([None, *VALUES[kind], None], kind)
    column = column_for(pa.field("column", kind))
    column.put(np.array([0, 1]), values[2:])
    taken = column.take(slice(0, 2))
    column.put(np.array([0]), values[:1])
    column.put(np.array([3000, 0]), values[1:3])
    assert same(taken, values[2:])
    now = pa.concat_arrays([values[2:3], values[1:2], values[3:]])
    assert same(column.take(np.array([0, 3000, 1])), now)
    column.take(np.array([3000, 0])).validate(full=True)


@pytest.mark.parametrize("kind", [k for k in VALUES if k not in UNKEYED], ids=str)
def test_a_key_is_found_again_beside_a_null_and_alone(tmp_path: Path, kind: pa.DataType) -> None:
    folding = Accumulation(pa.schema({"key": kind, "n": pa.int64()}), ("key",), [("total", sum_("n"))])
    kept = MemoryBackend(Storage(str(tmp_path), "flow"), 1).rows("sum", "aggregates", folding.state_schema, 1)
    keys = pa.array([VALUES[kind][0], None], kind)
    for some in (keys, keys[:1], keys[1:], keys):
        found = kept.fold(folding.states(pa.record_batch({"key": some, "n": [1] * len(some)})), folding)
    assert same(found.column(0), keys) and found.column(1).to_pylist() == [3, 3]


def same(one: pa.Array, other: pa.Array) -> bool:
    return one.type == other.type and repr(one.to_pylist()) == repr(other.to_pylist())


def test_state_is_read_as_the_wider_type_and_by_the_other_name_that_the_flow_has_now(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), "flow")

    def kept(kind: pa.DataType, name: str, *handles: str) -> tuple[StateBackend, pa.RecordBatch]:
        folding = Accumulation(pa.schema({"id": kind, "n": pa.int64()}), ("id",), [(name, sum_("n"))])
        backend = MemoryBackend(storage, 1)
        backend.restore(handles, range(128))
        table = backend.blocks("sum", "blocks", folding.state_schema, 1)
        states = folding.states(pa.record_batch({"id": pa.array([1, 2], kind), "n": [5, 6]}))
        found = backend.rows("sum", "aggregates", folding.state_schema, 1).fold(states, folding)
        if handles:
            assert table.get((0, 0)).to_pydict() == {"id": [1, 2], f"{name}.sum": [5, 6]}
        else:
            table.put((0, 0), found)
        return backend, found

    backend, _ = kept(pa.int32(), "total")
    _, found = kept(pa.int64(), "sum", backend.freeze(1).store())
    assert found.to_pydict() == {"id": [1, 2], "sum.sum": [10, 12]}


def test_blocks_that_are_taken_over_again_and_again_keep_numbers_that_can_be_written() -> None:
    def table(family: dict[bytes, bytes]) -> RocksBlocks:
        made = RocksBlocks(family, nullcontext())  # type: ignore[arg-type]
        made.opened(ROWS, 2)
        return made

    first, second = (batch([{"id": at, "name": "a"}]) for at in (1, 2))
    encoded = table({}).encoded({(-1, 0): first, (-1, 7): second})
    family = {key: data for key, data in encoded if data is not None}
    for _ in range(100):
        family = dict(table(family).adopted(family, Wanted(range(GROUPS), GROUPS)))
    now = table(family)
    assert [(at[0], now.get(at)) for at in now.ids()] == [(-1, first), (-1, second)]


@given(st.data())
def test_damaged_blocks_are_data_loss(data: st.DataObject) -> None:
    rows = batch([{"id": 1, "name": "a", "n": 5, "text": "x", "d": None, "b": True}] * 3)
    stream = bytearray(to_stream(rows, slice=1, number=2, keys=2).to_pybytes())
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    with suppress(DataLoss):
        found = from_stream(bytes(stream[: data.draw(st.integers(at + 1, len(stream)))]))
        conformed([wanted_rows(found, Wanted(range(8), 16, False))], ROWS).validate(full=True)
        note_of(found, "slice")


def test_columns_of_other_types_are_data_loss() -> None:
    rows = batch([{"id": 1, "name": "a"}])
    for other in (rows.schema.set(0, pa.field("id", pa.date32())), pa.schema([*rows.schema][1:])):
        with raises(DataLoss, "state-value-damaged"):
            conformed([from_stream(to_stream(rows, keys=2))], other)


def test_a_list_that_grows_costs_memory_by_its_length(tmp_path: Path) -> None:
    """A key's list is written anew in each epoch: what it was before is not kept."""
    folding = Accumulation(pa.schema({"key": pa.int64(), "n": pa.int64()}), ("key",), [("n", count_distinct("n"))])
    table = MemoryBackend(Storage(str(tmp_path), "flow"), 1).rows("sum", "aggregates", folding.state_schema, 1)
    table.fold(folding.states(pa.record_batch({"key": range(1_000), "n": range(1_000)})), folding)
    for epoch in range(50):
        rows = pa.record_batch({"key": [7] * 1_000, "n": range(1_000 * epoch, 1_000 * epoch + 1_000)})
        found = folding.results(table.fold(folding.states(rows), folding)).to_pylist()
        assert found == [{"key": 7, "n": 1_000 * (epoch + 1)}]
    (_, column) = table._columns  # type: ignore[attr-defined]
    assert sum(array.nbytes for array in column._arrays) < 3 * 8 * 51_000


@given(st.data())
def test_damaged_lists_of_an_entry_are_data_loss(data_: st.DataObject) -> None:
    schema = pa.schema({"key": pa.int64(), "values": pa.large_list(pa.int64())})
    kept = KeyedRows({}, schema, 1)  # type: ignore[arg-type]
    ((data,),) = kept._values(pa.record_batch([[1], [[1, 2, 3]]], schema=schema))
    assert kept._read([(1,)], [(data,)]).to_pylist() == [{"key": 1, "values": [1, 2, 3]}]
    for damaged in (data[:40], b"", data[:-16], [1, 2, 3]):
        with raises(DataLoss, "state-value-damaged"):
            kept._read([(1,)], [(damaged,)])
    flipped = bytearray(data)
    flipped[data_.draw(st.integers(0, len(data) - 1))] ^= data_.draw(st.integers(1, 255))
    with suppress(DataLoss):
        kept._read([(1,)], [(bytes(flipped),)]).validate(full=True)
