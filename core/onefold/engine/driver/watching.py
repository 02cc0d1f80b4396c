"""Notices workers whose code does not return: each is named in the log, now and then."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import NODE, NOWHERE, STEPS, Marks

__all__ = ["WorkerWatch"]

SILENT_S = 10.0  # in one call, before it is told
TOLD_EVERY_S_MAX = 600.0

log = logging.getLogger("onefold")


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
