"""What of a flow goes by event time, and the sources that say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.flow.graph.nodes import Edge, Graph, Node, feeding
from onefold.flow.graph.operators import Reading
from onefold.flow.time.watermarks import UNTIMED, Watermarks


def before_event_time(graph: Graph) -> set[int]:
    """The numbers of the nodes that go by event time, and of all whose rows come to one."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if node.keeps_event_time or node.number in found:
            found |= {node.number, *(edge.source for edge in node.inputs)}
    return found


def clocks_of(nodes: Sequence[Node], edges: Iterable[Edge]) -> dict[str, Watermarks]:
    """The watermarks of the sources that feed some edges, by the sources' uids."""
    of_sources = ((node.uid, node.operator) for node in feeding(nodes, edges) if isinstance(node.operator, Reading))
    return {present(uid, "a source has a uid"): reading.watermarks or UNTIMED for uid, reading in of_sources}


def check_timed(nodes: Sequence[Node], edges: Iterable[Edge]) -> None:
    """Raise ConfigError where a source that feeds some edges has no watermarks."""
    for uid, watermarks in clocks_of(nodes, edges).items():
        if watermarks is UNTIMED:
            raise ConfigError(
                "watermarks-missing",
                f"the rows come from the source {uid!r}, which says nothing of event time: give it"
                " watermarks=bounded('at', '5 seconds'), or another policy, in flow.source(...)",
            )
