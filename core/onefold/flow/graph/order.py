"""The operators before a sink that take their input in a fixed order.

That is for sinks whose rows show before an epoch is decided, and operators whose rows depend on the order of their
input. Such an epoch runs again after a crash, and has to give the same rows: a runtime brings the rows to these
operators in an order that is the same each time. Two-phase and staged sinks show one attempt alone, so that any order
is right.
"""

from __future__ import annotations

from collections.abc import Collection

from onefold.core.aggregates import Accumulation
from onefold.core.errors import ConfigError
from onefold.core.values.ids import IdsWithin
from onefold.flow.graph.nodes import Graph, Node, feeding
from onefold.flow.graph.operators import (
    Aggregating,
    Connecting,
    Deduplicating,
    Elements,
    Joining,
    Processing,
    Reducing,
    Windowing,
)
from onefold.flow.processing.declaring import DeclaredKind
from onefold.flow.time.joins import AsOf

_OF_TASKS = (DeclaredKind.OPERATOR_SPLIT, DeclaredKind.OPERATOR_UNION)


def order_dependent(graph: Graph, sink: Node) -> list[Node]:
    """The operators before a sink whose rows depend on the order of their input. Rows one by one, counts, minima,
    maxima, and sums of integers and decimals do not. Neither do `OrderedIds`, whose partitions keep their order
    whichever comes first; which row of an id is the first one, does."""
    return [node for node in feeding(graph.nodes, sink.inputs) if _is_order_dependent(graph, node)]


def in_fixed_order(graph: Graph, write_through: Collection[str]) -> frozenset[int]:
    """The numbers of the nodes that have to take their input in the same order each time, and in the same batches: all
    before a sink of `write_through` with such an operator, and the sink."""
    found: set[int] = set()
    for node, writing in graph.writings():
        if writing.sink.name in write_through and order_dependent(graph, node):
            found |= {node.number, *(before.number for before in feeding(graph.nodes, node.inputs))}
    return frozenset(found)


def check_same_again(graph: Graph, write_through: Collection[str]) -> None:
    """Raise ConfigError for state that a restart may share out otherwise, before a sink of `write_through`: no order
    makes an epoch that runs again give the same rows."""
    for sink, writing in graph.writings():
        for node in feeding(graph.nodes, sink.inputs) if writing.sink.name in write_through else ():
            operator = node.operator
            for name, ttl in node.expires.items():
                if ttl.visible == "until_cleaned":
                    raise ConfigError(
                        "ttl-visibility",
                        f"{node.name!r} may see entries of its state {name!r} until they are removed, and sink"
                        f" {writing.sink.name!r} is written before an epoch is decided: what an epoch sees that runs"
                        " again depends on when that was. Let the Ttl have visible='never_expired', or write to a"
                        " transactional, two-phase or staged sink",
                    )
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


def _is_order_dependent(graph: Graph, node: Node) -> bool:
    match node.operator:
        case Processing() | Connecting() | Reducing() | Deduplicating(IdsWithin()) | Joining(AsOf()):
            return True
        case Windowing(elements=Elements()):
            return True
        case Aggregating(aggregates) | Windowing(aggregates=aggregates):
            return Accumulation(graph.schema(node.inputs[0]), (), aggregates).depends_on_order
        case _:
            return False
