"""Where each worker is, what it has passed on and what it keeps, in memory that its driver sees: a worker whose
function does not return cannot tell."""

from __future__ import annotations

import logging
import mmap
import time
from collections import Counter
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import TypeAlias

from onefold.engine.dataflow.alignment import HOW
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.items import Acknowledge
from onefold.store.epoch_figures import Acknowledged, OperatorAcks

STEPS, NODE = range(2)  # steps that a worker has done, and the number of the node whose code runs, plus one
STREAMS = 2  # from here on rows and bytes of each output of a node, by the numbers of `Plan.streams`; then each node's
_HELD, _ENTRIES, _BYTES, _EPOCH = range(4)
_ACKED = 4  # and the next six: what it has acknowledged the epoch with, and when
_OF_NODE = 11
NOWHERE = 0  # in the place of a node's: it waits for what there is to do
Mark: TypeAlias = "MutableSequence[int] | memoryview"

SILENT_S = 10.0  # in one call, before it is told
TOLD_EVERY_S_MAX = 600.0

log = logging.getLogger("onefold")


class Marks:
    """Those of `workers` processes, which are forked after it is made. What is counted is so from its making on."""

    def __init__(self, workers: int, streams: int = 0, nodes: int = 0) -> None:
        self._size, self._nodes_at, self._nodes = len(no_mark(streams, nodes)), STREAMS + 2 * streams, nodes
        self._all = memoryview(mmap.mmap(-1, self._size * 8 * workers)).cast("Q")
        self.workers = workers

    def of(self, index: int) -> memoryview:
        return self._all[self._size * index : self._size * (index + 1)]

    def clear(self) -> None:
        """No worker is anywhere."""
        for at in range(NODE, len(self._all), self._size):
            self._all[at] = NOWHERE
        for index in range(self.workers):
            for node in range(self._nodes):
                mark = NodeMark(self.of(index), self._nodes_at, node)
                mark.held(False)
                mark.forget()

    def passed(self, stream: int) -> tuple[int, int]:
        """The rows and bytes of an output, of all workers."""
        at = STREAMS + 2 * stream
        return sum(self._all[at :: self._size]), sum(self._all[at + 1 :: self._size])

    def nodes(self) -> list[int]:
        """In whose code the workers are that are in any."""
        return [at - 1 for at in self._all[NODE :: self._size] if at != NOWHERE]

    def held(self) -> dict[int, int]:
        """In how many workers each node waits to hand a batch on."""
        return {node: self._sum(node, _HELD) for node in range(self._nodes)}

    def state(self, node: int) -> tuple[int, int]:
        """The entries and bytes that all workers keep for a node, about."""
        return self._sum(node, _ENTRIES), self._sum(node, _BYTES)

    def acknowledged(self, index: int, node: int, epoch: int) -> Acknowledged | None:
        """By the subtask of a worker whose chain's head is that node; None before it has."""
        return NodeMark(self.of(index), self._nodes_at, node).acknowledgement(epoch)

    def _sum(self, node: int, what: int) -> int:
        return sum(self._all[self._nodes_at + _OF_NODE * node + what :: self._size])


class NodeMark:
    """A node's part of a worker's mark; those of nodes begin at `nodes_at`."""

    def __init__(self, mark: Mark, nodes_at: int, node: int) -> None:
        self._mark, self._at = mark, nodes_at + _OF_NODE * node

    def held(self, is_held: bool) -> None:
        """Whether it waits to hand a batch on."""
        self._mark[self._at + _HELD] = int(is_held)

    def keeps(self, entries: int, size_bytes: int) -> None:
        self._mark[self._at + _ENTRIES], self._mark[self._at + _BYTES] = entries, size_bytes

    def acknowledges(self, done: Acknowledge) -> None:
        """The subtask of the chain whose head it is; after `keeps`. Times in microseconds, and the epoch at last: until
        then nobody reads the others."""
        self.forget()
        at = self._at + _ACKED
        told = (time.time_ns() // 1_000, int(done.aligned_s * 1e6), done.held_bytes, int(done.prepared_s * 1e6))
        for what, value in enumerate((*told, done.stored_bytes, HOW.index(done.how), done.flight_bytes)):
            self._mark[at + what] = value
        self._mark[self._at + _EPOCH] = done.epoch

    def acknowledgement(self, epoch: int) -> Acknowledged | None:
        if self._mark[self._at + _EPOCH] != epoch:
            return None
        found = self._mark[self._at + _ACKED : self._at + _OF_NODE]
        at_us, aligned_us, held, prepared_us, stored, how, flight = found
        kept = self._mark[self._at + _BYTES]
        return Acknowledged(at_us / 1e6, aligned_us / 1e6, held, prepared_us / 1e6, kept, stored, HOW[how], flight)

    def forget(self) -> None:
        """It has acknowledged nothing."""
        self._mark[self._at + _EPOCH] = 0


class Traffic:
    """What flows where in a flow that runs, and where its time goes. Any thread may ask. What an epoch that runs again
    processes counts again."""

    def __init__(self, plan: Plan, marks: Marks) -> None:
        self._plan, self._marks = plan, marks
        self._edges = [stream for _, stream in plan.edges]
        self.looks = 0
        self._with_state = [node.number for node in plan.graph.nodes if node.keeps_state]
        # By the numbers of nodes: in how many looks each worker was in its code, or held a batch that it has made.
        self.busy, self.backpressured = Counter[int](), Counter[int]()

    def edges(self) -> list[tuple[int, int]]:
        """Rows and bytes since the run began, of each edge of the graph: by the nodes that they lead to."""
        return [self._marks.passed(stream) for stream in self._edges]

    def state(self) -> dict[int, tuple[int, int]]:
        """The entries and bytes of each node that keeps state, after its last snapshot; about."""
        return {node: self._marks.state(node) for node in self._with_state}

    def acknowledged(self, epoch: int) -> tuple[OperatorAcks, ...]:
        """What the subtasks of each chain have acknowledged the epoch with, so far."""
        workers = range(self._marks.workers)
        return tuple(
            OperatorAcks(
                tuple(node.name for node in chain.nodes),
                tuple(self._marks.acknowledged(index, chain.head.number, epoch) for index in workers),
            )
            for chain in self._plan.chains
        )

    def at(self) -> tuple[str | None, ...]:
        """In whose code each worker is now; None where it waits."""
        marks = [self._marks.of(index)[NODE] for index in range(self._marks.workers)]
        return tuple(None if at == NOWHERE else self._plan.graph.nodes[at - 1].name for at in marks)

    def look(self) -> None:
        """In whose code the workers are now, and who waits; to be called every now and then."""
        self.looks += self._marks.workers
        self.busy.update(self._marks.nodes())
        self.backpressured.update(self._marks.held())


def no_mark(streams: int = 0, nodes: int = 0) -> Mark:
    """Of a worker, or a subtask, that nobody watches."""
    return [0] * (STREAMS + 2 * streams + _OF_NODE * nodes)


@dataclass
class _Seen:
    steps: int
    node: int
    since_s: float
    next_s: float = 0.0  # when it is told next


class WorkerWatch:
    """Of the workers that process an epoch. `look` is to be called about once a second."""

    def __init__(self, plan: Plan, marks: Marks) -> None:
        self._plan, self._marks = plan, marks
        self._seen: dict[int, _Seen] = {}

    def look(self, index: int, pid: int, epoch: int | None) -> str | None:
        """In which operator a worker has been for long, told also in the log, less and less often; None where it comes
        forward, or waits for others."""
        mark, now_s = self._marks.of(index), time.monotonic()
        steps, node = mark[STEPS], mark[NODE]
        seen = self._seen.get(index)
        if seen is None or (seen.steps, seen.node) != (steps, node):
            seen = self._seen[index] = _Seen(steps, node, now_s)
        in_s = now_s - seen.since_s
        if node == NOWHERE or in_s < SILENT_S:
            return None
        name = self._plan.graph.nodes[node - 1].name
        if in_s >= seen.next_s:
            seen.next_s = in_s + min(2 * in_s, TOLD_EVERY_S_MAX)
            where = "ahead of its epoch" if epoch is None else f"in epoch {epoch}"
            log.warning(
                "worker %d (process %d) has been in %r for %.0f s, %s: the epoch waits for it",
                index,
                pid,
                name,
                in_s,
                where,
            )
        return name

    def ended(self) -> None:
        """There are no workers. They may have ended in a function."""
        self._marks.clear()

    def forget(self) -> None:
        """The workers are others now, or go on with another epoch."""
        self._seen.clear()
