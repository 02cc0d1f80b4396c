"""How the engine hands the rows of each key to a processor, and to a function of `reduce`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.core import BadRecord, TaskId
from onefold.engine.logics.processing import ProcessingLogic
from onefold.engine.logics.reducing import ReducingLogic
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.handles import KeyedHandle
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage
from onefold.flow import StatefulProcessor
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Processing, Reducing
from onefold.flow.processing import groups
from onefold.flow.processing.rows import BATCH_ROWS_MAX

ROWS = pa.schema({"key": pa.string(), "n": pa.int64()})
OUT = pa.schema({"key": pa.string(), "total": pa.int64()})
TASK = TaskId("shop", 1, 1, 0, uuid.UUID(int=0))
Given = list[tuple[str | None, int]]
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.integers(0, 9)), max_size=6), max_size=4
)
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


class Calling(StatefulProcessor):
    """Has a function handle the rows of a key, with the total that is kept for it."""

    def __init__(self, handle: Callable[[Any, Any, Iterator[Any]], Iterable[Any]]) -> None:
        self.handle = handle

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        return self.handle(self, key, rows)


def processing(folder: Path, handle: Callable[[Any, Any, Iterator[Any]], Any]) -> ProcessingLogic:
    processor = Calling(handle)
    node = Node(1, Processing(processor, ("key",)), (), OUT, (), "totals")
    backend = MemoryBackend(Storage(str(folder), "shop"), 1)
    return ProcessingLogic(node, processor, ("key",), KeyedHandle("totals", backend))


def batch_of(rows: Given) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], ROWS)


def adding(processor: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
    (total,) = processor.total.get() or (0,)
    for row in rows:
        total += row["n"]
        yield (key[0], total) if total % 2 else {"total": total, "key": row.key}
    processor.total.update((total,))


@pytest.fixture(autouse=True, params=[0, groups.ROWS_MIN], ids=["by Arrow", "by Python"])
def _grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROWS_MIN", request.param)


@EACH
@given(BATCHES)
def test_rows_of_each_key_are_processed_in_their_order_batch_by_batch(tmp_path: Path, batches: list[Given]) -> None:
    logic, totals = processing(tmp_path, adding), dict[Any, int]()
    for rows in batches:
        expected = []
        for key in dict.fromkeys(key for key, _ in rows):
            for n in (n for of, n in rows if of == key):
                totals[key] = totals.get(key, 0) + n
                expected.append({"key": key, "total": totals[key]})
        found = [row for _, batch in logic.take(batch_of(rows), 0) for row in batch.to_pylist()]
        assert found == expected


@EACH
@given(BATCHES)
def test_rows_of_each_key_are_reduced_in_their_order(tmp_path: Path, batches: list[Given]) -> None:
    calls: list[Any] = []

    def function(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        calls.append((kept["n"], row["n"]))
        row["n"] += 10 * kept["n"]
        kept.clear()  # which is the function's own
        return row

    node = Node(1, Reducing(function, ("key",)), (), ROWS, (), "reduced")
    logic = ReducingLogic(node, function, ("key",), Expiry("reduced", MemoryBackend(Storage(str(tmp_path), "shop"), 1)))
    kept: dict[Any, int] = {}
    for rows in batches:
        calls.clear()
        expected = []
        for key in dict.fromkeys(key for key, _ in rows):
            for n in (n for of, n in rows if of == key):
                if key in kept:
                    expected.append((kept[key], n))
                kept[key] = n + 10 * kept[key] if key in kept else n
        logic.take(batch_of(rows), 0)
        assert calls == expected
        changed = dict.fromkeys(key for key, _ in rows)
        found = [row for _, batch in logic.flush(TASK) for row in batch.to_pylist()]
        assert found == [{"key": key, "n": kept[key]} for key in changed]


def test_rows_that_a_processor_leaves_or_keeps_are_those_of_their_key(tmp_path: Path) -> None:
    kept: dict[Any, Any] = {}

    def keeping(_: Any, key: Any, rows: Iterator[Any]) -> list[Any]:
        kept[key] = next(rows), rows
        return []

    logic = processing(tmp_path, keeping)
    assert [*logic.take(batch_of([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5)]), 0)] == []
    found = {key: (first, [*rows]) for (key,), (first, rows) in kept.items()}
    assert found == {"a": (("a", 1), [("a", 3), ("a", 5)]), "b": (("b", 2), []), "c": (("c", 4), [])}


@pytest.mark.parametrize("nothing", [None, (), [], iter(())], ids=lambda nothing: type(nothing).__name__)
def test_a_processor_may_give_nothing(tmp_path: Path, nothing: Any) -> None:
    assert [*processing(tmp_path, lambda *_: nothing).take(batch_of([("a", 1)]), 0)] == []


@pytest.mark.parametrize("is_late", [False, True], ids=["in the call", "in the generator"])
def test_an_error_says_of_which_key(tmp_path: Path, is_late: bool) -> None:
    def handle(_: Any, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        if key == ("b",) and not is_late:
            raise ZeroDivisionError
        return ((key[0], 6 // row.n) for row in rows)

    with pytest.raises(ZeroDivisionError) as error:
        [*processing(tmp_path, handle).take(batch_of([("a", 1), ("b", 2), ("b", 0), ("c", 0)]), 0)]
    assert error.value.__notes__ == ["of the key ('b',)"]


def test_of_a_value_of_another_type_the_row_is_named(tmp_path: Path) -> None:
    logic = processing(tmp_path, lambda _, key, rows: [(key[0], 0.5 if row.n == 2 else row.n) for row in rows])
    with pytest.raises(BadRecord) as error:
        [*logic.take(batch_of([("a", 1), ("b", 1), ("a", 2)]), 0)]
    assert "in the column 'total' of the row ('a', 0.5)" in error.value.message


def test_a_key_that_gives_many_rows_gives_them_in_several_batches(tmp_path: Path) -> None:
    told: list[Any] = []

    def many(_: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        del rows
        for number in range(BATCH_ROWS_MAX):
            yield key[0], number
        told.append(key)

    sizes = [
        (batch.num_rows, len(told)) for _, batch in processing(tmp_path, many).take(batch_of([("a", 1), ("b", 2)]), 0)
    ]
    assert sizes == [(BATCH_ROWS_MAX, 0), (BATCH_ROWS_MAX, 1)]
