"""When a worker's full garbage collections are. Python's own come with the number of new objects, and each looks
through all of the state: with a million keys that is half of a worker's time."""

from __future__ import annotations

import gc
import time

YOUNG, OLDER, NEVER = 100_000, 50, 1_000  # new objects, collections of the young, and of the older ones
EVERY_S = 60.0
SHARE_MAX = 0.02  # of a worker's time


def make_rare() -> None:
    """In this process, whose state is restored: what is there now is not looked through any more. Cycles of new objects
    are collected as before, after more of them; those that have become old, by `FullCollections`."""
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, NEVER)


class FullCollections:
    """One a minute, between two batches, and less often where it takes long."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + EVERY_S

    def look(self) -> None:
        began_s = time.monotonic()
        if began_s >= self._due_s and gc.isenabled():
            gc.collect()
            now_s = time.monotonic()
            self._due_s = now_s + max(EVERY_S, (now_s - began_s) / SHARE_MAX)
