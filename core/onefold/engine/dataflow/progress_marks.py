"""Where each worker is, and what it has passed on, in memory that its driver sees: a worker whose function does not
return cannot tell."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import MutableSequence
from typing import TypeAlias

from onefold.engine.dataflow.chains import Plan

__all__ = ["NODE", "NOWHERE", "STEPS", "STREAMS", "Mark", "Marks", "Traffic", "no_mark"]

STEPS, NODE = range(2)  # steps that a worker has done, and the number of the node whose code runs, plus one
STREAMS = 2  # from here on rows and bytes of each output of a node, by the numbers of `Plan.streams`
NOWHERE = 0  # in the place of a node's: it waits for what there is to do
Mark: TypeAlias = "MutableSequence[int] | memoryview"


class Marks:
    """Those of `workers` processes, which are forked after it is made. What is counted is so from its making on."""

    def __init__(self, workers: int, streams: int = 0) -> None:
        self._size = STREAMS + 2 * streams
        self._all = memoryview(mmap.mmap(-1, self._size * 8 * workers)).cast("Q")
        self.workers = workers

    def of(self, index: int) -> memoryview:
        return self._all[self._size * index : self._size * (index + 1)]

    def clear(self) -> None:
        """No worker is anywhere."""
        for at in range(NODE, len(self._all), self._size):
            self._all[at] = NOWHERE

    def passed(self, stream: int) -> tuple[int, int]:
        """The rows and bytes of an output, of all workers."""
        at = STREAMS + 2 * stream
        return sum(self._all[at :: self._size]), sum(self._all[at + 1 :: self._size])

    def nodes(self) -> list[int]:
        """In whose code the workers are that are in any."""
        return [at - 1 for at in self._all[NODE :: self._size] if at != NOWHERE]


class Traffic:
    """What flows where in a flow that runs, and where its time goes. Any thread may ask. What an epoch that runs again
    processes counts again."""

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


def no_mark(streams: int = 0) -> Mark:
    """Of a subtask that nobody watches."""
    return [0] * (STREAMS + 2 * streams)
