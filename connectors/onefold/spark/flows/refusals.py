"""What of a flow Spark cannot run, as far as the flow alone shows it. Needs no Spark."""

from __future__ import annotations

from onefold.core import ConfigError
from onefold.flow.declaring import DeclaredKind
from onefold.flow.graph import Graph, Node
from onefold.flow.operators import Connecting, Processing
from onefold.sources.kafka import KafkaSource
from onefold.spark.runtime.refusals import check_direct_source

__all__ = ["check_flow"]

_KEYED = (DeclaredKind.VALUE, DeclaredKind.LIST, DeclaredKind.MAP, DeclaredKind.BYTES)


def check_flow(graph: Graph) -> KafkaSource:
    """The flow's source. Raises ConfigError, by the uid, for the first of its operators that Spark cannot run."""
    first, *others = graph.readings()
    if others:
        raise _refused(graph, others[0][0], "is a second source, and a query has one: read both topics with one source")
    for node in graph.nodes:
        match node.operator:
            case Connecting():
                raise _refused(graph, node, "connects with a broadcast stream, and Spark has no broadcast state")
            case Processing(_, _, states):
                for state in states:
                    if state.kind is DeclaredKind.DELETED:
                        raise _refused(graph, node, f"deletes the state {state.name!r} of earlier code: leave it there")
                    if state.kind not in _KEYED:
                        raise _refused(graph, node, f"has {state.name!r}, a state of no key ({state.kind.value})")
    node, reading = first
    if not isinstance(reading.source, KafkaSource):
        raise _refused(
            graph,
            node,
            f"is a {type(reading.source).__name__}: give it a KafkaSource, without bounded(), and read what there is"
            " with trigger={'availableNow': True}",
        )
    check_direct_source(reading.source)
    return reading.source


def _refused(graph: Graph, node: Node, why: str) -> ConfigError:
    return ConfigError(
        "flow-not-on-spark", f"flow {graph.flow!r} cannot run on Spark: {node.name!r} {why}. Or use flow.run(...)"
    )
