"""A pipeline's epochs in their order, as marks: at most some hundred, each for as many consecutive epochs."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from onefold.core import EpochState
from onefold.core.invariants import ADOPTED
from onefold.report.elements import Html, element, joined
from onefold.store.history import StoredEpoch

__all__ = ["MARKS_MAX", "Incident", "Mark", "clock", "first_of", "marks", "timeline"]

MARKS_MAX = 200
SHOWN_MAX = 5  # of a mark's events of a kind, and of its partitions
FIGURES = ("rows", "longest, s", "longest wait before, s")
_WIDTH_MIN, _HEIGHT = 40, 40  # in marks, so that the bars of a few epochs stay bars; in units of a line


@dataclass(frozen=True, slots=True)
class Incident:
    """What befell the pipeline at a moment, in seconds since 1970; `kind` names the line on which it is shown."""

    kind: str
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Consecutive epochs: what is said of them, by column, and how high their bars are, by the column of the words."""

    cells: dict[str, str]
    bars: dict[str, float]


def marks(epochs: Sequence[StoredEpoch], incidents: Sequence[Incident] = (), most: int = MARKS_MAX) -> list[Mark]:
    """Of epochs, the oldest first. An incident is at the first epoch that ends after it, or at the last one."""
    each = max(1, -(-len(epochs) // most))
    ends = [*accumulate(map(_end_ms, epochs), max)]
    events = [defaultdict[str, list[str]](list) for _ in range(0, len(epochs), each)]
    waits = [0.0] * len(epochs)
    for at, epoch in enumerate(epochs):
        before = epochs[at - 1] if at else None
        for kind, text in _told(before, epoch):
            events[at // each][kind].append(text)
        waits[at] = max(0, _begin_ms(epoch) - _end_ms(before)) / 1000 if before else 0
    for incident in incidents if epochs else ():
        at = min(bisect_left(ends, incident.at_s * 1000), len(epochs) - 1)
        events[at // each][incident.kind].append(f"{clock(incident.at_s)} {incident.text}")
    starts = range(0, len(epochs), each)
    return [_mark(epochs[at : at + each], max(waits[at : at + each]), events[at // each]) for at in starts]


def _mark(epochs: Sequence[StoredEpoch], waited_s: float, events: dict[str, list[str]]) -> Mark:
    first, last = epochs[0].record, epochs[-1].record
    starts, ends = dict(first.range.start.of_records().items), last.range.end.of_records().items
    read = [f"{name}: {starts.get(name, 0)} to {end}" for name, end in ends if end != starts.get(name, 0)]
    figures = sum(epoch.record.rows for epoch in epochs), max(epoch.duration_s or 0 for epoch in epochs), waited_s
    bars = dict(zip(FIGURES, figures, strict=True)) | {kind: len(texts) for kind, texts in events.items()}
    cells = {
        "epochs": " to ".join(dict.fromkeys((f"{first.epoch}", f"{last.epoch}"))),
        "opened, UTC": clock(_begin_ms(epochs[0]) / 1000),
        "ended": clock(_end_ms(epochs[-1]) / 1000),
        **{name: f"{round(bars[name], 2):,}" for name in FIGURES},
        "generation": " to ".join(dict.fromkeys((f"{first.generation}", f"{last.generation}"))),
        "positions": first_of(read, SHOWN_MAX),
        **{kind: first_of(texts, SHOWN_MAX) for kind, texts in events.items()},
    }
    return Mark(cells, bars)


def _told(before: StoredEpoch | None, epoch: StoredEpoch) -> Iterator[tuple[str, str]]:
    record, last, name = epoch.record, before.record if before else None, f"epoch {epoch.record.epoch}"
    if last is not None and record.generation != last.generation:
        yield "takeovers", f"{name}: generation {record.generation} after {last.generation}"
    if last is not None and last.state is EpochState.GIVEN_UP and last.range.start == record.range.start:
        yield "replays", f"{name} begins where epoch {last.epoch} did, which was given up"
    if record.state is not EpochState.COMPLETE:
        kind = "given up" if record.state is EpochState.GIVEN_UP else "not complete"
        yield kind, f"{name} is {record.state.value}{f': {epoch.error}' if epoch.error else ''}"
    if record.is_move or record.query_id == ADOPTED:
        yield "moves", f"{name} {'moved the positions' if record.is_move else 'was adopted from a ledger'}"


def timeline(found: Sequence[Mark]) -> Html:
    """A line of bars for each figure, and for each kind of event that there is. The words are HTML beside them, so that
    they keep their size."""
    names = dict.fromkeys([*FIGURES, *sorted({kind for mark in found for kind in mark.bars})])
    ends = found[0].cells["opened, UTC"], found[-1].cells["ended"]
    return joined(
        *(_line(name, found) for name in names), element("p", *(element("span", e) for e in ends), class_="times")
    )


def _line(name: str, found: Sequence[Mark]) -> Html:
    values = [mark.bars.get(name, 0) for mark in found]
    top, is_figure = max(values), name in FIGURES
    sizes = [round(value * _HEIGHT / (top or 1), 1) for value in values]
    bars = [
        element(
            "rect",
            element("title", f"{mark.cells['epochs']}: {mark.cells[name]}"),
            x=at,
            y=_HEIGHT - size,
            width=0.8,
            height=size,
        )
        for at, (mark, size) in enumerate(zip(found, sizes, strict=True))
        if size
    ]
    figures = [f"{sum(values):,} in all"] * (not name.endswith(", s")) + [f"up to {round(top, 2):,}"] * is_figure
    says, view = f"{name}: {', '.join(figures)}", f"0 0 {max(len(found), _WIDTH_MIN)} {_HEIGHT}"
    kind = None if is_figure else "events"
    drawn = element("svg", *bars, viewBox=view, preserveAspectRatio="none", role="img", aria_label=says, class_=kind)
    return element("div", element("p", says), drawn, class_="lane")


def first_of(texts: Sequence[str], most: int) -> str:
    """Texts on one line: the first, and how many more there are."""
    return "; ".join(texts[:most]) + (f"; {len(texts) - most:,} more" if len(texts) > most else "")


def _begin_ms(epoch: StoredEpoch) -> int:
    return epoch.record.timestamp_ms if epoch.opened_ms is None else epoch.opened_ms


def _end_ms(epoch: StoredEpoch) -> int:
    return epoch.completed_ms or epoch.decided_ms or _begin_ms(epoch)


def clock(at_s: float) -> str:
    is_time = 0 <= at_s < 253_402_300_800  # the year 10,000
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}" if is_time else f"{at_s:,.0f} s"
