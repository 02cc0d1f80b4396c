"""What it means for a flow's guarantee how its subtasks wait for the barriers of an epoch, in words."""

from __future__ import annotations

from onefold.core.errors import ConfigError
from onefold.flow.graph import Graph, Node, Shipping

__all__ = ["told_of_alignment"]


def told_of_alignment(graph: Graph, alignment: str, workers: int) -> tuple[str, bool]:
    """What to tell of `alignment` as `onefold.engine.run` takes it, and whether records may count twice. Of aligned
    barriers there is nothing to tell. Raises ConfigError for any other word."""
    if alignment == "aligned":
        return "", False
    if alignment not in ("unaligned", "at_least_once"):
        raise ConfigError("option-value", f"alignment={alignment!r} is 'aligned', 'unaligned' or 'at_least_once'")
    timed = _before_event_time(graph)
    stay = [node.name for node in graph.nodes if node.number in timed and _waits(node, workers)]
    but = f"; {', '.join(stay)}: aligned, since event time is the same in all subtasks" if stay else ""
    if alignment == "unaligned":
        return f"unaligned barriers: what they overtake is stored with its epoch, exactly once{but}", False
    twice = [node.name for node in graph.nodes if node.number not in timed and _waits(node, workers)]
    if not twice:
        return f"barriers that are not aligned: exactly once, since no subtask has several channels{but}", False
    return f"at least once: after a crash records between two barriers count twice in {', '.join(twice)}{but}", True


def _waits(node: Node, workers: int) -> bool:
    """Whether a subtask may have several channels that lead to it."""
    return len(node.inputs) > 1 or (workers > 1 and any(edge.shipping is not Shipping.FORWARD for edge in node.inputs))


def _before_event_time(graph: Graph) -> set[int]:
    """The numbers of the nodes that go by event time, and of all before them."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if node.keeps_event_time or node.number in found:
            found |= {node.number, *(edge.source for edge in node.inputs)}
    return found
