"""Where in a flow rows of two epochs may not meet, so that barriers are aligned there."""

from __future__ import annotations

from onefold.flow.graph.event_time import before_event_time
from onefold.flow.graph.nodes import Graph


def aligned_anyway(graph: Graph, overtakes: bool) -> set[int]:
    """The numbers of the nodes before which barriers are aligned, whatever is asked for; `overtakes`: so that they
    overtake. What operators know of event time is the same in all subtasks, so all that leads to such an operator
    waits; barriers may overtake before the last one, whose subtasks each have their own rows. And where a sink tells
    by the epoch alone which row of a key is newer, no two epochs' rows may meet on the way to it, nor be given in one
    epoch by an operator that gives a row of a key again in each."""
    timed, overtaken, by_epoch = before_event_time(graph), set[int](), going_by_epoch(graph)
    for node in reversed(graph.nodes):
        leads_to = {other.number for other, _ in graph.outputs(node)}
        if not node.keeps_state and leads_to & by_epoch:
            by_epoch.add(node.number)
        is_apart = node.gives_again and leads_to & by_epoch
        can_overtake = node.keeps_event_time and all(edge.can_overtake for edge in node.inputs) and not is_apart
        if overtakes and can_overtake and not leads_to & timed:
            overtaken.add(node.number)
    return (timed - overtaken) | by_epoch


def going_by_epoch(graph: Graph) -> set[int]:
    """The numbers of the nodes that write to sinks which tell by the epoch alone which row of a key is newer."""
    found = ((node.number, writing) for node, writing in graph.writings())
    return {number for number, of in found if of.is_numbered or (of.keeps_last and _comes_again(graph, number))}


def _comes_again(graph: Graph, number: int) -> bool:
    """Whether rows that come to that node are of groups, and come again when these change."""
    sources = [graph.nodes[edge.source] for edge in graph.nodes[number].inputs]
    return any(each.gives_again or (not each.keeps_state and _comes_again(graph, each.number)) for each in sources)
