"""What a function of `reduce` may give."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import TaskId
from onefold.core.aggregates import max_, sum_
from onefold.core.errors import BadRecord, ConfigError
from onefold.engine.logics.reducing import AggregatingLogic, ReducingLogic
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.flow.graph.nodes import Edge, Node, Shipping
from onefold.flow.graph.operators import Reducing
from onefold.flow.processing.groups import by_key

ROWS = pa.schema({"key": pa.string(), "n": pa.int64()})
TASK = TaskId("shop", 1, 1, 0, uuid.UUID(int=0))
BEYOND = pa.record_batch({"key": ["a"], "at": pa.array([253402300800 + 1], pa.timestamp("s"))})  # in the year 10000
GIVEN: dict[str, Any] = {
    "a row of another key": {"key": "b", "n": 2},
    "a row without its key": {"n": 2},
    "a tuple": ("a", 2),
    "nothing": None,
    "a further column": {"key": "a", "n": 2, "more": 1},
}


@pytest.mark.parametrize("what", GIVEN)
def test_a_row_that_is_none_of_the_key_is_a_named_error(tmp_path: Path, what: str) -> None:
    def function(kept: dict[str, Any], row: dict[str, Any]) -> Any:
        del kept, row
        return GIVEN[what]

    node = Node(1, Reducing(function, ("key",)), (Edge(0, Shipping.KEYED, ("key",)),), ROWS, (), "reduced")
    logic = ReducingLogic(node, function, ("key",), Expiry("reduced", MemoryBackend(Storage(str(tmp_path), "shop"), 1)))
    with raises(ConfigError, "function-row", "'a'"):
        logic.take(pa.RecordBatch.from_pylist([{"key": "a", "n": 1}, {"key": "a", "n": 2}], ROWS), 0)


def test_a_value_of_another_type_is_a_named_error(tmp_path: Path) -> None:
    node = Node(1, Reducing(lambda kept, _: kept, ("key",)), (), ROWS, (), "reduced")
    backend = MemoryBackend(Storage(str(tmp_path), "shop"), 1)
    logic = ReducingLogic(
        node, lambda kept, row: {**kept, "n": kept["n"] + 0.7 * row["n"]}, ("key",), Expiry("reduced", backend)
    )
    with raises(BadRecord, "function-value", "'a'", "'n'"):
        logic.take(pa.RecordBatch.from_pylist([{"key": "a", "n": 1}, {"key": "a", "n": 2}], ROWS), 0)


def test_a_key_and_an_aggregate_that_python_has_no_value_for_are_named(tmp_path: Path) -> None:
    with raises(BadRecord, "function-value", "'at'"):
        by_key(BEYOND, ("at",))
    logic = newest(RocksBackend(Storage(str(tmp_path), "shop"), 1, folder=str(tmp_path)))
    logic.take(BEYOND, 0)
    with raises(BadRecord, "function-value"):
        [*logic.flush(TASK)]


def test_an_aggregate_in_memory_needs_no_values_of_python(tmp_path: Path) -> None:
    logic = newest(MemoryBackend(Storage(str(tmp_path), "shop"), 1))
    for _ in range(2):
        logic.take(BEYOND, 0)
        ((_, results),) = logic.flush(TASK)
        assert results.column("last") == BEYOND.column("at")


def test_a_sum_that_overflows_with_what_is_kept_names_its_key(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pylist([{"key": "a", "n": 1}, {"key": "b", "n": 2**63 - 1}], ROWS)
    aggregates = (("total", sum_("n")),)
    backend = MemoryBackend(Storage(str(tmp_path), "shop"), 1)
    logic = AggregatingLogic(ROWS, aggregates, ("key",), Expiry("sums", backend))
    logic.take(rows, 0)
    [*logic.flush(TASK)]
    logic.take(rows, 0)
    with raises(BadRecord, "aggregate-overflow", "key 'b'"):
        [*logic.flush(TASK)]


def newest(backend: StateBackend) -> AggregatingLogic:
    return AggregatingLogic(BEYOND.schema, (("last", max_("at")),), ("key",), Expiry("newest", backend))
