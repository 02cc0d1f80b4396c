"""What flows where in a flow that runs, and where its time goes."""

from __future__ import annotations

from collections import Counter

from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks

__all__ = ["Traffic"]


class Traffic:
    """Any thread may ask. What an epoch that runs again processes counts again."""

    def __init__(self, plan: Plan, marks: Marks) -> None:
        self._marks = marks
        streams = plan.streams
        self._edges = [streams[edge.source, edge.output] for node in plan.graph.nodes for edge in node.inputs]
        self.looks = 0
        self.busy = Counter[int]()  # by the numbers of nodes: in how many looks each worker was in its code

    def edges(self) -> list[tuple[int, int]]:
        """Rows and bytes since the run began, of each edge of the graph: by the nodes that they lead to."""
        return [self._marks.passed(stream) for stream in self._edges]

    def look(self) -> None:
        """In whose code the workers are now; to be called every now and then."""
        self.looks += self._marks.workers
        self.busy.update(self._marks.nodes())
