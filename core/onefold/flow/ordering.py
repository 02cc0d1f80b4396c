"""Operators whose rows depend on the order of their input, before sinks whose rows show before an epoch is decided.

Such an epoch runs again after a crash, and has to give the same rows: a runtime brings the rows to these operators in
an order that is the same each time. Two-phase and staged sinks show one attempt alone, so that any order is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from onefold.core.aggregates.functions import Merge
from onefold.core.errors import ConfigError
from onefold.core.values.ids import IdsWithin
from onefold.flow.graph import Aggregating, Connecting, Deduplicating, Graph, Node, Processing, Reducing
from onefold.flow.processing.declaring import DeclaredKind

__all__ = ["check_same_again", "in_fixed_order", "order_dependent"]

_OF_TASKS = (DeclaredKind.OPERATOR_SPLIT, DeclaredKind.OPERATOR_UNION)


def order_dependent(graph: Graph, sink: Node) -> list[Node]:
    """The operators before a sink whose rows depend on the order of their input. Rows one by one, counts, minima,
    maxima, and sums of integers and decimals do not. Neither do `OrderedIds`, whose partitions keep their order
    whichever comes first; which row of an id is the first one, does."""
    return [node for node in _before(graph, sink) if _is_order_dependent(graph, node)]


def in_fixed_order(graph: Graph, write_through: Collection[str]) -> frozenset[int]:
    """The numbers of the nodes that have to take their input in the same order each time, and in the same batches: all
    before a sink of `write_through` with such an operator, and the sink."""
    found: set[int] = set()
    for node, writing in graph.writings():
        if writing.sink.name in write_through and order_dependent(graph, node):
            found |= {node.number, *(before.number for before in _before(graph, node))}
    return frozenset(found)


def check_same_again(graph: Graph, write_through: Collection[str]) -> None:
    """Raise ConfigError for state that a restart may share out otherwise, before a sink of `write_through`: no order
    makes an epoch that runs again give the same rows."""
    for sink, writing in graph.writings():
        for node in _before(graph, sink) if writing.sink.name in write_through else ():
            operator = node.operator
            states = operator.states if isinstance(operator, Processing | Connecting) else ()
            for state in states:
                if state.kind in _OF_TASKS:
                    raise ConfigError(
                        "write-through-order",
                        f"{node.name!r} has the state {state.name!r} of no key ({state.kind.value}), which a restart"
                        f" shares out anew among the workers, and sink {writing.sink.name!r} is written before an epoch"
                        " is decided: after a crash it would get other rows beside those. Keep that state by key, or"
                        " write to a transactional, two-phase or staged sink",
                    )


def _before(graph: Graph, node: Node) -> Iterator[Node]:
    """The nodes whose rows reach a node."""
    found = {node.number}
    for other in reversed(graph.nodes):
        if other.number in found:
            found |= {edge.source for edge in other.inputs}
    return (other for other in graph.nodes if other.number in found and other is not node)


def _is_order_dependent(graph: Graph, node: Node) -> bool:
    match node.operator:
        case Processing() | Connecting() | Reducing() | Deduplicating(IdsWithin()):
            return True
        case Aggregating(aggregates, _):
            given = graph.schema(node.inputs[0])
            parts = [
                (merge, kind)
                for _, each in aggregates
                for (_, merge), kind in zip(each.parts, each.kinds(each.given(given)) or (), strict=False)
            ]
            return any(
                merge in (Merge.FIRST, Merge.LAST) or (merge is Merge.SUM and pa.types.is_floating(kind))
                for merge, kind in parts
            )
        case _:
            return False
