"""Where the figures stand in docs/mechanisms.md, between two marks, and the pictures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.drawing import bars, lines, strips
from bench.compare.figures import Fast, Lived, percentile

__all__ = ["BEGINS", "ENDS", "Alignments", "Found", "written"]

BEGINS, ENDS = "<!-- figures: begin, by make compare -->", "<!-- figures: end -->"
STRETCH_S = 0.25
HEADS = (
    "promises",
    "M records/s",
    "CPU us a record",
    "p50, p99 ms",
    "bytes a record",
    "recovery median, p95 s",
    "through kills: lost, doubled, wrong totals",
)
Alignments = Mapping[str, Sequence[tuple[float, float]]]
"""Of each alignment, behind a slow subtask: when an epoch ended, and how long it took from its barrier on."""


@dataclass(frozen=True)
class Found:
    """Of one contestant; None for a round that was left out."""

    guarantee: str
    fast: Fast | None = None
    steady: Lived | None = None
    killed: Lived | None = None


def written(page: Path, images: Path, about: str, found: Mapping[str, Found], slow: Alignments) -> list[Path]:
    """Puts the figures into the page, between its marks, and the pictures into the folder. Returns what was written.
    Raises ValueError where the page has no marks."""
    text = page.read_text()
    between = re.compile(re.escape(BEGINS) + ".*?" + re.escape(ENDS), re.DOTALL)
    if not between.search(text):
        raise ValueError(f"{page} has no lines {BEGINS} and {ENDS}")
    pictures = dict(_pictures(found, slow))
    parts = [BEGINS, about, *_table(found)]
    parts += [f"![{title}]({images.name}/{name}.svg)" for name, (title, _) in pictures.items()]
    inside = "\n\n".join([*parts, ENDS])
    page.write_text(between.sub(lambda _: inside, text))
    images.mkdir(exist_ok=True)
    for name, (_, picture) in pictures.items():
        (images / f"{name}.svg").write_text(picture)
    return [page, *(images / f"{name}.svg" for name in pictures)]


def _pictures(found: Mapping[str, Found], slow: Alignments) -> Iterator[tuple[str, tuple[str, str]]]:
    """By their files' names: what they show, and the SVG."""
    killed = {name: of.killed for name, of in found.items() if of.killed is not None}
    if killed:
        title = "latency of records through kills (dashed), each quarter second's slowest"
        points = {name: of.slowest(STRETCH_S) for name, of in killed.items()}
        marks = {name: of.killed_s for name, of in killed.items()}
        yield "mechanisms-latency", (title, strips(title, points, marks, _ms))
        title = "recovery: from a kill until every partition has a newer row, median"
        recovered = {name: of.recovery_median_s for name, of in killed.items() if of.recovered_s}
        yield "mechanisms-recovery", (title, bars(title, recovered, lambda s: f"{s:.2f} s"))
    steady = {name: of.steady.bytes_a_record for name, of in found.items() if of.steady is not None}
    rates = {
        name: of.fast.rows_per_s / 1e6
        for name, of in found.items()
        if of.fast is not None and of.fast.rows_per_s is not None
    }
    if rates:
        title = "throughput, M records a second"
        yield "mechanisms-throughput", (title, bars(title, rates, lambda rate: f"{rate:.2f}"))
    if steady:
        title = "bytes written a record, at a steady rate"
        yield "mechanisms-bytes", (title, bars(title, steady, lambda size: f"{size:,.0f}"))
    if slow:
        title = "how long an epoch takes behind a slow subtask"
        yield "mechanisms-alignment", (title, lines(title, slow, lambda s: f"{s:g} s"))


def _table(found: Mapping[str, Found]) -> Iterator[str]:
    rows = ["| | " + " | ".join(HEADS) + " |", "| --- " * (len(HEADS) + 1) + "|"]
    rows += ["| " + " | ".join([name, of.guarantee, *_cells(of)]) + " |" for name, of in found.items()]
    yield "\n".join(rows)


def _cells(of: Found) -> Iterator[str]:
    fast, steady, killed = of.fast, of.steady, of.killed
    yield "-" if fast is None or fast.rows_per_s is None else f"{fast.rows_per_s / 1e6:.3f}"
    yield "-" if fast is None or fast.cpu_us is None else f"{fast.cpu_us:.2f}"
    yield "-" if steady is None else f"{steady.latency_ms(0.5):,.0f}, {steady.latency_ms(0.99):,.0f}"
    yield "-" if steady is None else f"{steady.bytes_a_record:,.0f}"
    if killed is None:
        yield from ("-", "-")
        return
    recovered = killed.recovered_s
    yield f"{killed.recovery_median_s:.2f}, {percentile(recovered, 0.95):.2f}" if recovered else "-"
    yield f"{killed.audit.lost:,}, {killed.audit.doubled:,}, {killed.audit.wrong_totals:,}"


def _ms(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
