"""Reads the splits of one source for one subtask, and ends each epoch with its barrier."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from onefold.core.source import Part, Source, Split
from onefold.engine.dataflow.items import Barrier, Item

__all__ = ["Reader"]


class Reader:
    """Its orders are runs, each of some splits; it works on one after the other. `guarded` as `Source.read` has it."""

    def __init__(self, source: Source, guarded: bool = False) -> None:
        self._source, self._guarded = source, guarded
        self._runs: deque[tuple[int, deque[Split]]] = deque()
        self._parts: Iterator[Part] | None = None

    def begin(self, run: int, splits: Sequence[Split]) -> None:
        self._runs.append((run, deque(splits)))

    @property
    def has_orders(self) -> bool:
        return bool(self._runs)

    def read(self) -> Item | None:
        """The next part of the running epoch, or its barrier; None where a split has ended, and the next may follow."""
        run, splits = self._runs[0]
        if self._parts is None:
            if not splits:
                self._runs.popleft()
                return Barrier(run)
            self._parts = iter(self._source.read(splits.popleft(), guarded=self._guarded))
        part = next(self._parts, None)
        if part is None:
            self._parts = None
        return part
