"""The graph that a flow describes: operators as nodes, the way of records between them as edges. Runtimes read it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from onefold.flow.operators import Operator

__all__ = ["Edge", "Graph", "Node", "Shipping"]


class Shipping(enum.Enum):
    """How an edge's records get from the subtasks of one operator to those of the next."""

    FORWARD = "forward"  # each subtask to its own one: no exchange
    KEYED = "keyed"  # by the key group of `Edge.key`
    REBALANCE = "rebalance"  # evenly
    BROADCAST = "broadcast"  # all records to every subtask


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a node: `output` of the node numbered `source`; None is its main output, a name a side output."""

    source: int
    shipping: Shipping = Shipping.FORWARD
    key: tuple[str, ...] = ()
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph. `schema` is its main output's, `sides` its side outputs'; a sink has neither."""

    number: int
    operator: Operator
    inputs: tuple[Edge, ...]
    schema: pa.Schema | None
    sides: tuple[tuple[str, pa.Schema], ...] = ()
    uid: str | None = None

    @property
    def name(self) -> str:
        """For people: the uid, or what it is and its number."""
        return self.uid or f"{type(self.operator).__name__.lower()}-{self.number}"


@dataclass(frozen=True, slots=True)
class Graph:
    """All of a flow. Nodes are in an order in which every node comes after its inputs; `nodes[n].number == n`."""

    flow: str
    nodes: tuple[Node, ...]
    max_parallelism: int = 128

    def outputs(self, node: Node) -> list[tuple[Node, Edge]]:
        """The nodes that read from it, and by which edge."""
        return [(other, edge) for other in self.nodes for edge in other.inputs if edge.source == node.number]
