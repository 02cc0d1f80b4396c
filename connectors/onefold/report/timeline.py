"""A pipeline's epochs in their order, as marks: at most some hundred, each for as many consecutive epochs."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, chain, pairwise

from onefold.core import EpochState
from onefold.core.invariants import ADOPTED
from onefold.store.history import StoredEpoch

MARKS_MAX = 200
SHOWN_MAX = 5  # of a mark's events of a kind, and of its partitions
FIGURES = ("rows", "longest, s", "wait before, s")


@dataclass(frozen=True, slots=True)
class Incident:
    """What befell the pipeline at a moment, in seconds since 1970; `kind` names the line on which it is shown."""

    kind: str
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class EpochMark:
    """Consecutive epochs: the words of each column, and of some columns also how high the bar is."""

    cells: dict[str, str]
    bars: dict[str, float]


def marks(epochs: Sequence[StoredEpoch], incidents: Iterable[Incident] = (), most: int = MARKS_MAX) -> list[EpochMark]:
    """Of epochs, the oldest first. An incident is at the first epoch that ends after it, or at the last one."""
    each = max(1, -(-len(epochs) // most))
    times = [*map(_times_ms, epochs)]
    ends = [*accumulate((end for _, end in times), max)]
    waits = [0.0, *(max(0, after[0] - before[1]) / 1000 for before, after in pairwise(times))]
    events = [[*_told(*pair)] for pair in zip([None, *epochs], epochs, strict=False)]
    for incident in incidents if epochs else ():
        at = min(bisect_left(ends, incident.at_s * 1000), len(epochs) - 1)
        events[at].append((incident.kind, f"{clock(incident.at_s)} {incident.text}"))
    spans = [slice(at, at + each) for at in range(0, len(epochs), each)]
    return [_mark(epochs[span], max(waits[span]), chain.from_iterable(events[span])) for span in spans]


def _mark(epochs: Sequence[StoredEpoch], waited_s: float, events: Iterable[tuple[str, str]]) -> EpochMark:
    kinds = defaultdict[str, list[str]](list)
    for kind, text in events:
        kinds[kind].append(text)
    oldest, newest = epochs[0].record, epochs[-1].record
    starts, ends = dict(oldest.range.start.of_records().items), newest.range.end.of_records().items
    read = [f"{name}: {starts.get(name, 0)} to {end}" for name, end in ends if end != starts.get(name, 0)]
    figures = sum(epoch.record.rows for epoch in epochs), max(epoch.duration_s or 0 for epoch in epochs), waited_s
    bars = dict(zip(FIGURES, figures, strict=True)) | {kind: len(texts) for kind, texts in kinds.items()}
    cells = {
        "epochs": " to ".join(dict.fromkeys((f"{oldest.epoch}", f"{newest.epoch}"))),
        "opened, UTC": clock(_times_ms(epochs[0])[0] / 1000),
        "ended": clock(_times_ms(epochs[-1])[1] / 1000),
        **{name: f"{round(bars[name], 2):,}" for name in FIGURES},
        "generation": " to ".join(dict.fromkeys((f"{oldest.generation}", f"{newest.generation}"))),
        "positions": "; ".join(first(read, SHOWN_MAX)),
        **{kind: "; ".join(first(texts, SHOWN_MAX)) for kind, texts in kinds.items()},
    }
    return EpochMark(cells, bars)


def _told(before: StoredEpoch | None, epoch: StoredEpoch) -> Iterator[tuple[str, str]]:
    record, last, name = epoch.record, before.record if before else None, f"epoch {epoch.record.epoch}"
    if last is not None and record.generation != last.generation:
        yield "takeovers", f"{name}: generation {record.generation} after {last.generation}"
    if record.state is not EpochState.COMPLETE:
        yield record.state.value.replace("_", " "), f"{name}{f': {epoch.error}' if epoch.error else ''}"
    if record.is_move or record.query_id == ADOPTED:
        yield "moves", f"{name} {'moved the positions' if record.is_move else 'was adopted from a ledger'}"


def first(texts: Sequence[str], most: int) -> list[str]:
    return [*texts[:most], *([f"{len(texts) - most:,} more"] if len(texts) > most else [])]


def _times_ms(epoch: StoredEpoch) -> tuple[int, int]:
    opened_ms = epoch.record.timestamp_ms if epoch.opened_ms is None else epoch.opened_ms
    return opened_ms, epoch.completed_ms or epoch.decided_ms or opened_ms


def clock(at_s: float) -> str:
    return f"{datetime.fromtimestamp(min(max(at_s, 0), 253_402_300_799), UTC):%Y-%m-%d %H:%M:%S}"  # up to 9999
