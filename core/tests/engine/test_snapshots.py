"""Whose snapshots are whose."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.contract import TaskId
from onefold.core.errors import CheckpointMismatch
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.snapshots import restore
from onefold.engine.workers.storing import stored_at_once
from onefold.engine.workers.worker_setup import keeping
from onefold.flow import count, max_, sum_
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Aggregating, Operator, Reading, Reducing

ROWS = pa.schema({"key": pa.string(), "other": pa.string(), "n": pa.int64()})


def chain(operator: Operator, schema: pa.Schema = ROWS, given: pa.Schema = ROWS) -> Graph:
    """A graph with such a node."""
    source = Node(0, Reading(cast(Any, "a source")), (), given, (), "rows")
    keyed = Node(1, operator, (Edge(0, Shipping.KEYED, operator.key),), schema, (), "kept")  # type: ignore[union-attr]
    return Graph("shop", (source, keyed))


SUM = chain(Aggregating((("total", sum_("n")),), ("key",)))
CHANGED = {
    "another aggregate": chain(Aggregating((("total", max_("n")),), ("key",))),
    "one more aggregate": chain(Aggregating((("total", sum_("n")), ("rows", count())), ("key",))),
    "another key": chain(Aggregating((("total", sum_("n")),), ("other",))),
    "a reduce": chain(Reducing(max, ("key",))),
}


def kept_by(graph: Graph, storage: Storage, *handles: str) -> MemoryBackend:
    backend = MemoryBackend(storage, 1)
    restore(backend, storage, graph, graph.nodes[1], handles, range(128))
    return backend


@pytest.mark.parametrize("what", CHANGED)
def test_state_is_not_taken_for_that_of_an_operator_that_keeps_something_else(tmp_path: Path, what: str) -> None:
    storage = Storage(str(tmp_path), "shop")
    handle = kept_by(SUM, storage).freeze(1).store()
    with raises(CheckpointMismatch, "state-operator-changed"):
        kept_by(CHANGED[what], storage, handle)


def test_keys_of_another_type_are_those_of_another_operator_and_wider_ones_are_not(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), "shop")

    def by(kind: pa.DataType) -> Graph:
        rows = ROWS.set(0, pa.field("key", kind))
        return chain(Aggregating((("total", sum_("n")),), ("key",)), rows, rows)

    for kind, wider, other in (
        (pa.decimal128(12, 2), pa.decimal128(14, 2), pa.decimal128(12, 3)),
        (pa.int32(), pa.int64(), pa.string()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "+05:00")),
    ):
        handle = kept_by(by(kind), storage).freeze(1).store()
        kept_by(by(wider), storage, handle)
        with raises(CheckpointMismatch, "state-operator-changed"):
            kept_by(by(other), storage, handle)


@pytest.mark.parametrize(
    ("was", "wider", "other"),
    [
        (pa.int32(), pa.int64(), pa.float64()),
        (pa.decimal128(12, 2), pa.decimal128(14, 2), pa.decimal128(12, 3)),
        (pa.float64(), pa.float64(), pa.int64()),
    ],
    ids=str,
)
def test_sums_of_a_column_of_another_type_are_not_read_as_those_of_this(
    tmp_path: Path, was: pa.DataType, wider: pa.DataType, other: pa.DataType
) -> None:
    def sums(kind: pa.DataType) -> Graph:
        rows = ROWS.set(2, pa.field("n", kind))
        return chain(Aggregating((("total", sum_("n")),), ("key",)), rows, rows)

    storage = Storage(str(tmp_path), "shop")
    handle = kept_by(sums(was), storage).freeze(1).store()
    kept_by(sums(wider), storage, handle)
    with raises(CheckpointMismatch, "state-operator-changed"):
        kept_by(sums(other), storage, handle)


def test_a_reduce_of_rows_with_one_more_column_needs_a_value_for_those_it_has(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), "shop")
    handle = kept_by(chain(Reducing(max, ("key",))), storage).freeze(1).store()
    kept_by(chain(Reducing(max, ("key",)), ROWS.append(pa.field("more", pa.int64()))), storage, handle)
    with raises(CheckpointMismatch, "state-operator-changed", "more int64 NOT NULL"):
        kept_by(chain(Reducing(max, ("key",)), ROWS.append(pa.field("more", pa.int64(), False))), storage, handle)


def test_the_same_operator_goes_on_under_another_name_of_its_result(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), "shop")
    renamed = chain(Aggregating((("sum", sum_("n")),), ("key",)))
    kept_by(renamed, storage, kept_by(SUM, storage).freeze(1).store())


@pytest.mark.parametrize("name", ["memory", "rocksdb"])
def test_a_snapshots_committable_has_the_bytes_that_were_stored_for_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "scratch").mkdir()
    storage = Storage(str(tmp_path / "kept"), "shop")
    backend = made_backend(name, storage, 1, 128, str(tmp_path / "scratch"))
    backend.restore([], range(128))
    keep, found = keeping(stored_at_once), []
    for epoch in (1, 2):
        before = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
        backend.table(StateSpec("sum", "total", StateKind.VALUE)).put((epoch,), ("x" * 3_000 * epoch,))
        kept, _ = keep(storage, TaskId("shop", 1, epoch, 7, uuid.uuid4()), backend.freeze(epoch)).result()
        after = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
        found.append((kept.bytes, after - before))
    backend.close()
    assert all(told == stored > 0 for told, stored in found), found
