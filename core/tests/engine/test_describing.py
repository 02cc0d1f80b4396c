"""What snapshots say of the operators that they are of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest
from flow_parts import AnySource
from harness.errors import raises

from onefold.core.errors import DataLoss
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.workers.describing import described
from onefold.flow import (
    Edge,
    Flow,
    Graph,
    IdsWithin,
    Node,
    OrderedIds,
    ProcessorHandle,
    Session,
    StatefulProcessor,
    Stream,
    Tumbling,
    bounded,
    count,
    mean,
    sum_,
)
from onefold.flow.graph.operators import Deduplicating, Reading

KEY = pa.field("key", pa.string())
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([KEY, ("at", TIME), ("n", pa.decimal128(12, 2)), ("id", pa.binary())])


class Asking(StatefulProcessor):
    def init(self, handle: ProcessorHandle) -> None:
        handle.getValueState("v", "a int, b string")
        handle.getListState("l", "a date")
        handle.getMapState("m", "k long", "a struct<x: int, y: array<string>>")
        handle.getBytesState("raw")
        handle.getOperatorListState("split", "a int")
        handle.deleteIfExists("gone")

    def handleInputRows(self, *_: Any) -> Any:  # noqa: N802
        return ()


def description(of: Callable[[Stream], Stream]) -> OperatorDescription:
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    flow = Flow("shop")
    of(flow.source(source, uid="rows", watermarks=bounded("at", "5 seconds")))
    graph = Graph("shop", tuple(flow._nodes.made))
    return described(graph, next(node for node in graph.nodes if node.uid == "it"))


AGGREGATES: Any = {"total": sum_("n"), "average": mean("n")}
OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "aggregate": lambda rows: rows.key_by("key").aggregate(uid="it", **AGGREGATES),
    "window": lambda rows: rows.key_by("key").window(Tumbling("1 hour")).aggregate(uid="it", **AGGREGATES),
    "session": lambda rows: rows.key_by("key").window(Session("1 hour")).aggregate(uid="it", rows=count()),
    "join": lambda rows: rows.key_by("key").join_within(rows.key_by("key"), "it", before="1 minute"),
    "reduce": lambda rows: rows.key_by("key").reduce(max, uid="it"),
    "process": lambda rows: rows.key_by("key").process(Asking(), "a int", uid="it"),
    "ids": lambda rows: rows.deduplicate(IdsWithin("1 day", id="id"), uid="it"),
}


def test_ordered_ids_keep_the_highest_number_of_each_source() -> None:
    rows = Node(0, Reading(cast(Any, "a source")), (), ROWS, (), "rows")
    once = Node(1, Deduplicating(OrderedIds(id="id"), ("key",), ("id",), ()), (Edge(0),), ROWS, (), "it")
    found = states(described(Graph("shop", (rows, once)), once))
    assert found == {"highest": ("map", pa.schema({"source": pa.binary()}), pa.schema({"number": pa.int64()}))}


@pytest.mark.parametrize("what", OPERATORS)
def test_a_description_is_json_and_comes_back(what: str) -> None:
    found = description(OPERATORS[what])
    assert json.loads(found.to_json())["uid"] == "it"
    assert OperatorDescription.from_json(found.to_json()) == found
    assert found.states


def states(found: OperatorDescription) -> dict[str, tuple[str, pa.Schema, pa.Schema]]:
    return {each.name: (each.kind, each.key, each.value) for each in found.states}


def test_a_description_has_the_columns_and_types_of_all_that_is_kept() -> None:
    nothing, summed = pa.schema([]), pa.decimal128(22, 2)
    found = description(OPERATORS["aggregate"])
    sums = [("total.sum", summed), ("average.sum", summed), ("average.count", pa.int64())]
    assert (found.kind, found.key) == ("aggregate", pa.schema([KEY]))
    assert [(each.name, each.keeps, each.columns) for each in found.aggregates] == [
        ("total", "sum(n)", ("total.sum",)),
        ("average", "mean(n)", ("average.sum", "average.count")),
    ]
    assert states(found) == {"aggregates": ("rows", nothing, pa.schema(sums))}
    window = states(description(OPERATORS["window"]))
    assert window["slices"] == ("blocks", nothing, pa.schema([("$slice", TIME), *sums]))
    assert window["$clocks"] == window["$closed"] == ("clocks", nothing, nothing)
    of_struct = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    assert states(description(OPERATORS["process"])) == {
        "v": ("value", nothing, pa.schema([("a", pa.int32()), ("b", pa.string())])),
        "l": ("list", nothing, pa.schema([("a", pa.date32())])),
        "m": ("map", pa.schema([("k", pa.int64())]), pa.schema([("a", of_struct)])),
        "raw": ("bytes", nothing, pa.schema([("bytes", pa.binary())])),
        "split": ("operator list", nothing, pa.schema([("a", pa.int32())])),
        "$timers": ("timers", nothing, nothing),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda of: of[:-1],
        lambda of: of.replace('"kind"', '"of"'),
        lambda of: of.replace('"it"', "1"),
        lambda of: json.dumps({**json.loads(of), "key": "AAAA"}),
        lambda of: json.dumps({**json.loads(of), "states": [{"name": "x"}]}),
        lambda _: "[]",
        lambda _: "sum(n) by key",
    ],
)
def test_a_description_that_was_changed_is_refused(change: Callable[[str], str]) -> None:
    with raises(DataLoss, "state-value-damaged"):
        OperatorDescription.from_json(change(description(OPERATORS["aggregate"]).to_json()))
