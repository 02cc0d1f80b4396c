"""What of a flow Spark cannot run, as far as the flow alone shows it. Needs no Spark."""

from __future__ import annotations

from onefold.core import ConfigError
from onefold.core.source import Placed
from onefold.flow.graph import Graph, Node
from onefold.flow.operators import Connecting, Processing
from onefold.flow.processing.declaring import DeclaredKind

__all__ = ["check_flow", "check_reached"]

_KEYED = (DeclaredKind.VALUE, DeclaredKind.LIST, DeclaredKind.MAP, DeclaredKind.BYTES)


def check_flow(graph: Graph) -> None:
    """Raises ConfigError, by the uid, for the first of its operators that Spark cannot run."""
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


def check_reached(graph: Graph, elsewhere: str | None) -> None:
    """Raises ConfigError for a source that is a folder of this machine, where tasks run `elsewhere`."""
    for node, reading in graph.readings():
        if elsewhere is not None and isinstance(reading.source, Placed) and reading.source.is_local:
            raise _refused(
                graph,
                node,
                f"reads a folder of this machine, and {elsewhere}: give it a place that all machines reach, such as"
                " s3://",
            )


def _refused(graph: Graph, node: Node, why: str) -> ConfigError:
    return ConfigError(
        "flow-not-on-spark", f"flow {graph.flow!r} cannot run on Spark: {node.name!r} {why}. Or use flow.run(...)"
    )
