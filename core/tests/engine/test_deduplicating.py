"""Deduplication beside a model in plain Python: whatever the cuts, the restarts, the workers and the backend."""

from __future__ import annotations

import datetime as dt
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core import TaskId
from onefold.core.errors import BadRecord, InternalError
from onefold.engine.key_groups import key_groups_of_subtask, split_by_subtask
from onefold.engine.logics import deduplicating
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import Frozen, StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow import IdsWithin, OrderedIds
from onefold.flow.deduplicating import FromHeader
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Deduplicating, Reading

GROUPS = 16
PLACE = ("topic", "partition", "offset")
ROWS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "id": pa.binary(),
        "n": pa.int64(),
        "deep": pa.list_(pa.struct([("d", pa.decimal128(12, 2))])),
    }
)
ORDERED = Deduplicating(OrderedIds(id="id"), PLACE[:-1], ("id",), PLACE)
WITHIN = Deduplicating(IdsWithin("10 seconds", id="id"), ("id",), ("id",), PLACE)
Row = dict[str, Any]
BACKENDS: dict[str, Callable[[Storage, int, str], StateBackend]] = {
    "memory": lambda storage, generation, _: MemoryBackend(storage, generation, GROUPS, copies_max=9, logged_min=12),
    "rocksdb": lambda storage, generation, folder: RocksBackend(storage, generation, GROUPS, folder=folder),
}


def rows_of(ids: Iterable[tuple[int, bytes | None]], first: int = 0) -> list[Row]:
    """Rows of partitions and ids, as a topic has them."""
    return [
        {
            "topic": "t",
            "partition": partition,
            "offset": at,
            "id": id,
            "n": 2**62 + at if at % 2 else None,
            "deep": [{"d": Decimal(at)}, None] if at % 3 else None,
        }
        for at, (partition, id) in enumerate(ids, first)
    ]


@dataclass
class Running:
    """The operator in some subtasks."""

    operator: Deduplicating
    backend: str = "memory"
    schema: pa.Schema = ROWS
    workers: int = 1
    epoch_number: int = 0
    handles: tuple[str, ...] = ()
    frozen: list[Frozen] = field(default_factory=list)
    logics: list[tuple[StateBackend, Any]] = field(default_factory=list)

    def __enter__(self) -> Running:
        self.folder = tempfile.TemporaryDirectory()
        self.storage = Storage(f"{self.folder.name}/checkpoint", "flow")
        self.start(self.workers)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.folder.cleanup()

    def start(self, workers: int) -> None:
        """With so many, from the end of the last epoch that was committed."""
        if self.frozen:
            self.handles, self.frozen = tuple(each.store() for each in self.frozen), []
        self.close()
        self.workers = workers
        key = self.operator.key
        source: Any = None
        node = Node(1, self.operator, (Edge(0, Shipping.KEYED, key),), self.schema, (), "once")
        graph = Graph("flow", (Node(0, Reading(source), (), self.schema), node), GROUPS)
        for index in range(workers):
            backend = BACKENDS[self.backend](self.storage, self.epoch_number + 1, self.folder.name)
            backend.restore(self.handles, key_groups_of_subtask(index, workers, GROUPS))
            self.logics.append((backend, make_logic(graph, node, {}, backend, index, workers)))

    def close(self) -> None:
        for backend, logic in self.logics:
            logic.close()
            backend.close()
        self.logics = []

    def epoch(self, batches: Iterable[Sequence[Row]], now_ms: int = 0, commits: bool = True) -> list[Row]:
        """What comes of an epoch's batches; kept only where it `commits`."""
        task = TaskId("flow", 1, self.epoch_number + 1, now_ms, uuid.uuid4())
        found: list[Row] = []
        for _, logic in self.logics:
            if hasattr(logic, "begin"):
                logic.begin(task)
        for rows in batches:
            batch = pa.RecordBatch.from_pylist(list(rows), self.schema)
            parts = split_by_subtask(batch, self.operator.key, GROUPS, self.workers)
            for (_, logic), part in zip(self.logics, parts, strict=True):
                if part.num_rows:
                    found += [row for _, made in logic.take(part, 0) for row in made.to_pylist()]
        for _, logic in self.logics:
            assert list(logic.flush(task)) == []
        if commits:
            self.epoch_number += 1
            self.frozen = [backend.freeze(self.epoch_number) for backend, _ in self.logics]
        return found

    def entries(self) -> int:
        return sum(1 for _, logic in self.logics for table in (logic._seen, *logic._came) for _ in table.scan())


def ordered_model(rows: Iterable[Row], highest: dict[Any, int]) -> list[Row]:
    kept = []
    for row in rows:
        source, _, number = row["id"].rpartition(b":")
        of = row["partition"], source
        if int(number) > highest.get(of, -1):
            highest[of] = int(number)
            kept.append(row)
    return kept


def within_model(rows: Iterable[Row], seen: dict[Any, int], now_ms: int) -> list[Row]:
    kept = []
    for row in rows:
        if row["id"] not in seen or seen[row["id"]] + 10_000 <= now_ms:
            seen[row["id"]] = now_ms
            kept.append(row)
    return kept


ORDERED_ID = st.builds(
    lambda source, number: source + b":%d" % number,
    st.sampled_from([b"", b"a", b"b:1", b"\xff\x00", "größe".encode(), b"a\nb"]),
    st.one_of(st.integers(0, 9), st.sampled_from([10**18 - 1, 10**17])),
)
EPOCH = st.lists(st.lists(st.tuples(st.integers(0, 2), ORDERED_ID), min_size=1, max_size=8), max_size=3)
STEP = st.tuples(EPOCH, st.sampled_from([None, 1, 2, 3]), st.booleans(), st.sampled_from([1, 3_000, 9_999, 25_000]))


def by_place(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["offset"])


def check_ordered(backend: str, steps: list[Any]) -> None:
    highest: dict[Any, int] = {}
    with Running(ORDERED, backend) as running:
        at = 0
        for batches, workers, fails, _ in steps:
            rows = [rows_of(batch, at + sum(map(len, batches[:number]))) for number, batch in enumerate(batches)]
            at += sum(map(len, batches))
            if fails:
                running.epoch(rows, commits=False)
                running.start(running.workers)
                rows = [[row for batch in rows for row in batch]] if batches else []  # cut otherwise
            found = running.epoch(rows)
            assert by_place(found) == ordered_model([row for batch in rows for row in batch], highest)
            for partition in range(3):  # each in its order
                offsets = [row["offset"] for row in found if row["partition"] == partition]
                assert offsets == sorted(offsets)
            if workers is not None:
                running.start(workers)


def check_within(backend: str, steps: list[Any]) -> None:
    seen: dict[Any, int] = {}
    with Running(WITHIN, backend) as running:
        at = now_ms = 0
        for batches, workers, fails, later_ms in steps:
            rows = [rows_of(batch, at + sum(map(len, batches[:number]))) for number, batch in enumerate(batches)]
            at, now_ms = at + sum(map(len, batches)), now_ms + later_ms
            if fails:
                running.epoch(rows, now_ms, commits=False)
                running.start(running.workers)
                rows = [[row for batch in rows for row in batch]] if batches else []
            found = running.epoch(rows, now_ms)
            assert by_place(found) == within_model([row for batch in rows for row in batch], seen, now_ms)
            if workers is not None:
                running.start(workers)


STEPS = st.lists(STEP, max_size=6)
CHECKS = {"OrderedIds": check_ordered, "IdsWithin": check_within}


@pytest.mark.parametrize("ids", CHECKS)
@settings(max_examples=40)
@given(steps=STEPS)
def test_rows_are_kept_as_by_a_model_whatever_the_cuts_and_restarts(ids: str, steps: list[Any]) -> None:
    CHECKS[ids]("memory", steps)


@pytest.mark.slow
@pytest.mark.parametrize("ids", CHECKS)
@settings(max_examples=15)
@given(steps=STEPS)
def test_and_with_rocksdb_as_well(ids: str, steps: list[Any]) -> None:
    CHECKS[ids]("rocksdb", steps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_older_than_the_span_are_forgotten_some_in_each_epoch(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplicating, "EXPIRED_MIN", 10)
    with Running(WITHIN, backend, workers=2) as running:
        most = 0
        for number in range(40):
            ids = rows_of([(0, b"%d" % (100 * number + each)) for each in range(100)], 100 * number)
            assert len(running.epoch([ids], now_ms=1_000 * number)) == 100
            most = max(most, running.entries())
            if number == 17:
                running.start(3)
        assert most < 100 * 30 + GROUPS * 30  # of two spans, and what is being forgotten of a third
        for number in range(60, 200):
            running.epoch([], now_ms=1_000 * number)
        assert running.entries() == 0


def test_an_id_that_comes_again_after_the_span_is_remembered_anew() -> None:
    with Running(WITHIN) as running:
        kept = [
            now_ms
            for at, now_ms in enumerate([9_000, 18_999, 19_000, 20_500, 28_999, 29_000, 31_000, 39_000])
            if running.epoch([rows_of([(0, b"x")], at)], now_ms)
        ]
    assert kept == [9_000, 19_000, 29_000, 39_000]


def test_a_clock_that_goes_back_lets_no_repeat_through() -> None:
    with Running(WITHIN) as running:
        for at, now_ms in enumerate([31_000, 29_000, 11_000, 31_000, 40_999]):
            assert len(running.epoch([rows_of([(0, b"x")], at)], now_ms)) == (at == 0)


def test_the_same_id_in_two_partitions_is_two_records_of_ordered_ids_and_one_within_a_span() -> None:
    rows = rows_of([(0, b"a:1"), (1, b"a:1"), (0, b"a:1")])
    with Running(ORDERED) as ordered, Running(WITHIN) as within:
        assert ordered.epoch([rows]) == rows[:2]
        assert within.epoch([rows]) == rows[:1]


def test_a_source_and_a_sequence_may_be_in_two_columns() -> None:
    operator = Deduplicating(OrderedIds(source="id", sequence="n"), PLACE[:-1], ("id", "n"), PLACE)
    rows = [{**row, "n": n} for row, n in zip(rows_of([(0, b"\xff"), (0, b"")] * 3), (5, 0, 5, 1, 6, 1), strict=True)]
    with Running(operator) as running:
        assert running.epoch([rows]) == [rows[0], rows[1], rows[3], rows[4]]
        for wrong in ({"id": None}, {"n": None}, {"n": -1}):
            with pytest.raises(BadRecord) as error:
                running.epoch([[{**rows[0], **wrong}]])
            assert error.value.code == "id-not-usable"


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        (None, "is missing"),
        (b"", "is b''"),
        (b"a", "is b'a'"),
        (b"a:", "is b'a:'"),
        (b"a:-1", "is b'a:-1'"),
        (b"a:1 ", "is b'a:1 '"),
        (b"a:1\n", r"is b'a:1\n'"),
        (b"a:1000000000000000000", "is b'a:1000000000000000000'"),
        ("a:٣".encode(), "is b'a:"),
    ],
)
def test_an_id_that_is_missing_or_malformed_is_named_with_its_place(id: bytes | None, shown: str) -> None:
    with Running(ORDERED) as running, pytest.raises(BadRecord) as error:
        running.epoch([rows_of([(3, b"a:1"), (3, b"b:2"), (3, id), (3, b"a:2")], 10)])
    assert error.value.code == "id-not-usable"
    assert error.value.message.startswith(f"t/3 offset 12: the id (id) {shown}")


@pytest.mark.parametrize("id", [None, b""])
def test_within_a_span_any_id_will_do_but_none(id: bytes | None) -> None:
    with Running(WITHIN) as running, pytest.raises(BadRecord) as error:
        running.epoch([rows_of([(3, b"a"), (3, id)], 10)])
    assert (error.value.code, error.value.message.partition(": ")[0]) == ("id-not-usable", "t/3 offset 11")


def test_where_the_place_is_not_known_a_bad_id_is_named_with_its_row() -> None:
    operator = Deduplicating(IdsWithin("1 hour", id="n"), ("n",), ("n",), ())
    with Running(operator) as running, pytest.raises(BadRecord) as error:
        running.epoch([rows_of([(3, b"a")])])
    assert error.value.message.startswith("once, the row {'topic': 't', 'partition': 3")


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        (pa.string(), ["ü", "x"]),
        (pa.int64(), [2**62, -1]),
        (pa.decimal128(20, 3), [Decimal("1.5"), Decimal("-1.500")]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2)]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        (pa.bool_(), [True, False]),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_id_within_a_span_has_any_type_of_a_key(backend: str, kind: pa.DataType, events: list[Any]) -> None:
    schema = pa.schema({"event": kind, "n": pa.int64()})
    rows = [{"event": event, "n": n} for n, event in enumerate(events * 2)]
    operator = Deduplicating(IdsWithin("1 hour", id="event"), ("event",), ("event",), ())
    with Running(operator, backend, schema) as running:
        assert running.epoch([rows[:1]]) == rows[:1]
        running.start(3)
        assert running.epoch([rows[1:]], 5) == rows[1:2]


def test_rows_of_a_partition_out_of_their_order_are_a_fault_and_no_repeats() -> None:
    rows = rows_of([(0, b"a:1"), (0, b"a:2")])
    with Running(ORDERED) as running, pytest.raises(InternalError):
        running.epoch([rows[::-1]])


def test_the_last_of_several_headers_of_a_name_has_the_id() -> None:
    kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    entry = {"key": "id", "value": b"1"}
    lists = [
        [entry],
        None,
        [],
        [entry, {"key": "other", "value": b"2"}, {"key": "id", "value": b"3"}],
        [{"key": "other", "value": b"2"}],
        [entry, {"key": "id", "value": None}],
        [None, {"key": None, "value": b"2"}, {"key": "id", "value": b"\xff"}],
    ]
    batch = pa.record_batch({"n": range(len(lists)), "headers": pa.array(lists, kind)})
    function = FromHeader("id", "headers", "onefold_id")
    found = [b"1", None, None, b"3", None, None, b"\xff"]
    assert function(batch)["onefold_id"].to_pylist() == found
    assert function(batch.slice(2, 4))["onefold_id"].to_pylist() == found[2:6]
    assert function(batch.slice(0, 0))["onefold_id"].to_pylist() == []
