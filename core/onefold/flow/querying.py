"""Rows that Spark makes, by SQL or a function of DataFrames: their stream, and where in a flow they may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from onefold.core.contract import Sink, Upserting
from onefold.core.errors import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.flow.building import Nodes
from onefold.flow.graph import Edge, Node
from onefold.flow.operators import Aggregating, Connecting, Processing, Querying, Reducing, Writing
from onefold.flow.writing import add_sink

__all__ = ["SparkStream", "with_query"]


class SparkStream:
    """Rows that Spark makes: they go to sinks, and to nothing else."""

    def __init__(self, nodes: Nodes, edge: Edge) -> None:
        self._nodes = nodes
        self._edge = edge

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows, as they were declared."""
        return self._nodes.schema(self._edge)

    def sink(self, sink: Sink) -> None:
        """Write the rows to a sink. It may be called for several sinks, which all get the same rows."""
        add_sink(self._nodes, self._edge, sink)


def with_query(flow: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a flow. Where Spark makes rows, each of its sinks gets them with the number of their epoch if one of
    the sinks orders by it. Raises ConfigError where something stands beside that which cannot."""
    found = [(node, node.operator) for node in nodes if isinstance(node.operator, Querying)]
    if not found:
        return tuple(nodes)
    (query, operator), *others = found
    if others:
        raise _misplaced(
            flow, others[0][0], f"is a second one, beside {query.name!r}: let one SELECT or function do both"
        )
    fed = {}
    for node in nodes:
        match node.operator:
            case Processing() | Connecting() | Reducing() | Aggregating():
                raise _misplaced(
                    flow,
                    query,
                    f"cannot stand beside {node.name!r}, which keeps state: let Spark do that, too, or"
                    " make two flows of it",
                )
            case Writing(sink, is_letters=False):
                if node.inputs[0].source != query.number:
                    raise _misplaced(
                        flow,
                        query,
                        f"cannot stand beside the sink {sink.name!r}, which gets other rows: write those"
                        " with a flow of their own (bad records with dead_letters= of flow.source)",
                    )
                fed[node.number] = sink
    is_numbered = operator.output_mode == "update" and any(map(_is_by_epoch, fed.values()))
    return tuple(
        replace(node, operator=Writing(fed[node.number], is_numbered=is_numbered)) if node.number in fed else node
        for node in nodes
    )


def _is_by_epoch(sink: Sink) -> bool:
    upsert = sink.upsert() if isinstance(sink, Upserting) else None
    return upsert is not None and EPOCH_COLUMN in upsert.order


def _misplaced(flow: str, node: Node, why: str) -> ConfigError:
    return ConfigError("spark-operator-place", f"flow {flow!r}: {node.name!r}, which only Spark runs, {why}")
