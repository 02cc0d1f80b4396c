"""What flows by the edges of a pipeline's graph, as rates of the last seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from onefold.daemon.hosting.messages import Drawing, Flowing
from onefold.flow.time.told import ToldClock

_SPAN = 10  # reports that a rate is of
_STALE_S = 5.0  # without a report: its host hangs


@dataclass(frozen=True, slots=True)
class EdgeRate:
    """`rows` and `bytes` since the daemon was started, None where nobody counts them: before an operator that Spark
    runs. The rates are None before there are two reports."""

    source: str
    target: str
    label: str
    rows: int | None
    bytes: int | None
    rows_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """`busy`: the share of the workers' time that was spent in its code, lately. `backpressured`: the share in which it
    waited to hand a batch on to other workers; None where it hands none on to them."""

    name: str
    busy: float | None = None
    backpressured: float | None = None
    state_entries: int | None = None
    state_bytes: int | None = None
    clock: ToldClock | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """In one piece, since one thread reports and others ask."""

    drawing: Drawing | None = None
    before: tuple[tuple[int, int] | None, ...] = ()  # that other hosts have counted
    seen: tuple[tuple[float, Flowing], ...] = ()  # the last reports, and when they came

    def lately(self) -> tuple[float, Flowing, Flowing] | None:
        """The first and the last of the reports, and how long was between them; None where there are not two, or none
        came lately."""
        if len(self.seen) < 2 or time.monotonic() - self.seen[-1][0] > _STALE_S:
            return None
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        return max(last_s - first_s, 1e-3), first, last

    def sums(self) -> tuple[tuple[int, int] | None, ...]:
        if not self.seen:
            return self.before
        _, last = self.seen[-1]
        return tuple(_sum(before, now) for before, now in zip(self.before, last.ways, strict=True))


class TrafficRates:
    """Takes what hosts report of a pipeline, also when they change: the sums go on."""

    def __init__(self) -> None:
        self._found = _Found()

    @property
    def drawing(self) -> Drawing | None:
        return self._found.drawing

    def draw(self, drawing: Drawing) -> None:
        """Of a host that begins with it, and counts from 0 on."""
        found = self._found
        before = found.sums() if drawing == found.drawing else ((0, 0),) * len(drawing.ways)
        self._found = _Found(drawing, before)

    def take(self, flowing: Flowing) -> None:
        found = self._found
        self._found = replace(found, seen=(*found.seen, (time.monotonic(), flowing))[-_SPAN - 1 :])

    def end(self) -> None:
        """Nothing flows any more: its run has ended, and the next one is of another host, or is not counted."""
        found = self._found
        self._found = _Found(found.drawing, found.sums())

    def edges(self) -> list[EdgeRate]:
        found = self._found
        if found.drawing is None:
            return []
        titles = {box.number: box.title for box in found.drawing.boxes}
        nothing = [(None, None)] * len(found.drawing.ways)
        is_counted = found.seen or any(any(way or ()) for way in found.before)
        sums = [way or (None, None) for way in found.sums()] if is_counted else nothing
        named = [(titles[way.start], titles[way.end], way.label) for way in found.drawing.ways]
        rates = _rates(found) or nothing
        return [EdgeRate(*name, *count, *rate) for name, count, rate in zip(named, sums, rates, strict=True)]

    def operators(self) -> list[OperatorLoad]:
        found = self._found
        if found.drawing is None:
            return []
        handing_on = {way.start for way in found.drawing.ways if way.is_exchange}
        last = found.seen[-1][1] if found.seen else Flowing(ways=())
        busy, backpressured = _shares(found)
        return [
            OperatorLoad(
                box.title,
                busy.get(box.number),
                backpressured.get(box.number) if box.number in handing_on else None,
                entries,
                size,
                last.times.get(box.number),
            )
            for box in found.drawing.boxes
            for entries, size in [last.state.get(box.number, (None, None))]
        ]


def _shares(found: _Found) -> tuple[dict[int, float], dict[int, float]]:
    """Of the looks of the last reports: in how many each operator was busy, and backpressured."""
    if found.drawing is None or (lately := found.lately()) is None:
        return {}, {}
    _, first, last = lately
    if not last.looks:  # on Spark
        return {}, {}
    looks = max(1, last.looks - first.looks)
    numbers = [box.number for box in found.drawing.boxes]
    return (
        {at: (last.busy.get(at, 0) - first.busy.get(at, 0)) / looks for at in numbers},
        {at: (last.backpressured.get(at, 0) - first.backpressured.get(at, 0)) / looks for at in numbers},
    )


def _rates(found: _Found) -> list[tuple[float, float] | tuple[None, None]] | None:
    if (lately := found.lately()) is None:
        return None
    took_s, first, last = lately
    return [
        (None, None) if a is None or b is None else ((b[0] - a[0]) / took_s, (b[1] - a[1]) / took_s)
        for a, b in zip(first.ways, last.ways, strict=True)
    ]


def _sum(before: tuple[int, int] | None, now: tuple[int, int] | None) -> tuple[int, int] | None:
    if now is None:
        return None
    rows, size = before or (0, 0)
    return rows + now[0], size + now[1]
