"""Rows, plans and stored flights, for tests of barriers that overtake."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from onefold.core import TaskId
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.dataflow.inbound import Inbound
from onefold.engine.dataflow.items import EpochInFlight
from onefold.engine.state import is_flight
from onefold.engine.state.storage import Storage
from onefold.engine.workers.flights import FlightFile
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import MappingBatches, Reading, Reducing, Uniting, Writing

ROWS = pa.schema({"key": pa.string(), "n": pa.int64()})


def batch(*values: int, key: str = "a") -> pa.RecordBatch:
    return pa.record_batch([[key] * len(values), values], schema=ROWS)


def numbers(of: pa.RecordBatch) -> list[int]:
    found: list[int] = of["n"].to_pylist()
    return found


def taken(inbound: Inbound) -> list[tuple[int, list[int]]]:
    found = []
    while (item := inbound.take()) is not None:
        found.append((item[0], numbers(cast(Any, item[1]))))
    return found


def node(number: int, operator: Any, *inputs: Edge, uid: str | None = None) -> Node:
    return Node(number, operator, inputs, ROWS, (), uid)


def of_two_exchanges() -> Plan:
    same = MappingBatches(lambda each: each)
    source, sink = cast(Any, "a source"), cast(Any, type("Sink", (), {"name": "shop"})())
    nodes = (
        node(0, Reading(source), uid="rows"),
        node(1, Reducing(max, ("key",)), Edge(0, Shipping.KEYED, ("key",)), uid="largest"),
        node(2, same, Edge(1, Shipping.REBALANCE)),
        node(3, Uniting(), Edge(2), Edge(0)),
        Node(4, Writing(sink), (Edge(3),), None),
    )
    return plan(Graph("shop", nodes, 8))


TASK = TaskId("shop", 3, 7, 0, uuid.UUID(int=0))


def stored(root: Path, chain: str, number: int, *batches: pa.RecordBatch) -> str:
    handle = FlightFile(Storage(str(root), "shop"), TASK, 8, chain, [EpochInFlight({number: [*batches]})]).store()
    assert is_flight(handle) and handle.startswith("3/7-")
    return handle
