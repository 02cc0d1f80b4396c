"""Sources and sinks that tests of flows end in: they hold settings, and reach no server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onefold.core import ConfigError, Guarantee, SinkKind, Upsert
from onefold.flow import Flow, Graph, Node, Stream

ORDERS = pa.schema(
    {
        "id": pa.int64(),
        "account": pa.int64(),
        "amount": pa.decimal128(12, 2),
        "weight": pa.float64(),
        "note": pa.string(),
    }
)


@dataclass(frozen=True)
class AnySource:
    name: str = "orders"
    columns: pa.Schema = ORDERS
    on_error: str = "fail"
    bad_records_max: int = 10
    is_resolved: bool = False

    def covers(self, name: str) -> bool:
        return name == self.name

    def resolved(self, keep: Any) -> AnySource:
        columns = keep(f"schema of {self.name}", lambda: self.columns)
        return AnySource(self.name, columns, self.on_error, self.bad_records_max, True)

    def arrow_schema(self) -> pa.Schema:
        if not self.is_resolved:
            raise ConfigError("schema-missing", "not resolved")
        return self.columns

    def planner(self, frozen: Any = None, until: Any = None, journal: Any = None) -> Any:
        raise NotImplementedError(frozen, until)

    def read(self, split: Any, *, guarded: bool = False) -> Any:
        raise NotImplementedError(split, guarded)


@dataclass(frozen=True)
class AnyTable(AnySource):
    name: str = "table customers"
    is_of_one_moment: bool = True


@dataclass(frozen=True)
class AnySink:
    name: str = "archive"
    kind: SinkKind = SinkKind.TWO_PHASE
    by: tuple[str, ...] = ()
    ascending: tuple[str, ...] = ()
    stays: bool = False
    replaces: Upsert | None = None
    conditions: tuple[str, ...] = field(default=())

    def guarantee(self) -> Guarantee:
        return Guarantee("model", self.kind, self.kind is SinkKind.LAST_RESOURCE, self.conditions)

    def store_url(self) -> str | None:
        return None

    def partition_by(self) -> tuple[str, ...]:
        return self.by

    def order_by(self) -> tuple[str, ...]:
        return self.ascending

    def in_place(self) -> bool:
        return self.stays

    def upsert(self) -> Upsert | None:
        return self.replaces

    def recover(self, pipeline: str) -> Any:
        raise NotImplementedError(pipeline)

    def open(self, pipeline: str, schema: pa.Schema) -> Any:
        raise NotImplementedError(pipeline, schema)

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: Any) -> Any:
        raise NotImplementedError(task)


def orders(columns: pa.Schema = ORDERS) -> tuple[Flow, Stream]:
    """A flow, and its stream of orders."""
    flow = Flow("shop")
    return flow, flow.source(AnySource(columns=columns), uid="orders")


def node_of(flow: Flow, stream: Stream) -> Node:
    """The node whose rows a stream has, in a flow that the test has not finished."""
    stream.sink(AnySink(f"of {len(flow._nodes.made)}"))
    writing = flow._nodes.made[-1]
    return flow._nodes.made[writing.inputs[0].source]


def sink_node(graph: Graph, name: str) -> Node:
    return next(node for node, _ in graph.writings() if node.name == name)
