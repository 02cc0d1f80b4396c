"""Where each worker is, in memory that its driver sees: a worker whose function does not return cannot tell."""

from __future__ import annotations

import mmap
from collections.abc import MutableSequence
from typing import TypeAlias

__all__ = ["NODE", "NOWHERE", "STEPS", "Mark", "Marks", "no_mark"]

STEPS, NODE = range(2)  # steps that a worker has done, and the number of the node whose code runs, plus one
NOWHERE = 0  # in the place of a node's: it waits for what there is to do
Mark: TypeAlias = "MutableSequence[int] | memoryview"


class Marks:
    """Those of `workers` processes, which are forked after it is made."""

    def __init__(self, workers: int) -> None:
        self._all = memoryview(mmap.mmap(-1, 2 * 8 * workers)).cast("Q")

    def of(self, index: int) -> memoryview:
        return self._all[2 * index : 2 * index + 2]

    def clear(self) -> None:
        """No worker is anywhere."""
        for at in range(NODE, len(self._all), 2):
            self._all[at] = NOWHERE


def no_mark() -> Mark:
    """Of a subtask that nobody watches."""
    return [0, NOWHERE]
