"""What flows by the edges of a pipeline's graph, as rates of the last seconds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from onefold.daemon.hosting.messages import Drawing, Flowing
from onefold.flow.drawing.layers import Box

__all__ = ["EdgeRate", "OperatorBusy", "TrafficRates"]

_SPAN = 10  # reports that a rate is of


@dataclass(frozen=True, slots=True)
class EdgeRate:
    """`rows` and `bytes` since the daemon was started; the rates are None before there are two reports, and the sums
    where nobody counts: on Spark."""

    source: str
    target: str
    label: str
    rows: int | None
    bytes: int | None
    rows_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class OperatorBusy:
    """`busy`: the share of the workers' time that was spent in its code, lately."""

    name: str
    busy: float | None


class TrafficRates:
    """Takes what hosts report of a pipeline, also when they change: the sums go on."""

    def __init__(self) -> None:
        self.drawing: Drawing | None = None
        self._before: list[tuple[int, int]] = []  # by other hosts
        self._seen: deque[tuple[float, Flowing]] = deque(maxlen=_SPAN + 1)

    def draw(self, drawing: Drawing) -> None:
        if drawing != self.drawing:
            self.drawing, self._before = drawing, [(0, 0)] * len(drawing.ways)
        elif self._seen:  # another host counts from 0 on
            self._before = self._sums()
        self._seen.clear()

    def take(self, flowing: Flowing) -> None:
        self._seen.append((time.monotonic(), flowing))

    def edges(self) -> list[EdgeRate]:
        if self.drawing is None:
            return []
        titles = {box.number: box.title for box in self.drawing.boxes}
        sums, rates = self._sums() if self._seen else None, self._rates()
        found = []
        for at, way in enumerate(self.drawing.ways):
            rows, size = (None, None) if sums is None else sums[at]
            rows_per_s, bytes_per_s = (None, None) if rates is None else rates[at]
            found.append(EdgeRate(titles[way.start], titles[way.end], way.label, rows, size, rows_per_s, bytes_per_s))
        return found

    def operators(self) -> list[OperatorBusy]:
        return [] if self.drawing is None else [OperatorBusy(b.title, self._busy(b)) for b in self.drawing.boxes]

    def _sums(self) -> list[tuple[int, int]]:
        _, last = self._seen[-1]
        return [(rows + r, size + s) for (rows, size), (r, s) in zip(self._before, last.ways, strict=True)]

    def _rates(self) -> list[tuple[float, float]] | None:
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        took_s = max(last_s - first_s, 1e-3)
        return [((b[0] - a[0]) / took_s, (b[1] - a[1]) / took_s) for a, b in zip(first.ways, last.ways, strict=True)]

    def _busy(self, box: Box) -> float | None:
        if len(self._seen) < 2:
            return None
        (_, first), (_, last) = self._seen[0], self._seen[-1]
        looks = last.looks - first.looks
        return (last.busy.get(box.number, 0) - first.busy.get(box.number, 0)) / looks if looks else None
