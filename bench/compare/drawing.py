"""Bars, strips over time and lines, as SVG, without any other program. Knows no contestant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

__all__ = ["bars", "lines", "strips"]

WIDTH, LEFT, RIGHT, TITLE = 820, 210, 90, 44
BAR, STRIP, GAP, PLOT = 22, 54, 10, 260
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f", "#c53030", "#2c7a7b", "#4a5568")
STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#2d3748}"
    ".title{font-weight:bold;font-size:14px}.small{font-size:9.5px;fill:#718096}.ground{fill:white}"
    ".grid{stroke:#e2e8f0}.kill{stroke:#c53030;stroke-dasharray:2 2;opacity:.6}"
)


def bars(title: str, values: Mapping[str, float], told: Callable[[float], str]) -> str:
    """A bar each, from 0 on, with its value in words."""
    longest = max(values.values(), default=0.0) or 1.0

    def drawn() -> Iterator[str]:
        for row, (name, value) in enumerate(values.items()):
            y, width = TITLE + row * (BAR + GAP), value / longest * (WIDTH - LEFT - RIGHT)
            yield _text(LEFT - 8, y + BAR * 0.7, name, anchor="end")
            yield f'<rect x="{LEFT}" y="{y}" width="{max(width, 1):.1f}" height="{BAR}" fill="{_colour(row)}"/>'
            yield _text(LEFT + width + 6, y + BAR * 0.7, told(value))

    return _picture(title, TITLE + len(values) * (BAR + GAP), drawn())


def strips(
    title: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, Sequence[float]],
    told: Callable[[float], str],
) -> str:
    """A strip each over one axis of seconds: the value as a line on one logarithmic scale, marks as upright lines."""
    every = [y for each in points.values() for _, y in each]
    low, high = _decades(every)
    end_s = max((x for each in points.values() for x, _ in each), default=0.0) or 1.0

    def x_of(at_s: float) -> float:
        return LEFT + at_s / end_s * (WIDTH - LEFT - RIGHT)

    def drawn() -> Iterator[str]:
        for row, (name, each) in enumerate(points.items()):
            top = TITLE + row * (STRIP + GAP)
            yield _text(LEFT - 8, top + STRIP / 2, name, anchor="end")
            for decade in range(low, high + 1):
                y = top + STRIP * (1 - (decade - low) / (high - low))
                yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
                yield _text(WIDTH - RIGHT + 6, y + 3, told(10.0**decade), kind="small")
            for at_s in marks.get(name, ()):
                x = x_of(at_s)
                yield f'<line class="kill" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + STRIP}"/>'
            way = " ".join(f"{x_of(x):.1f},{_height(y, low, high, top, STRIP):.1f}" for x, y in each)
            yield f'<polyline points="{way}" fill="none" stroke="{_colour(row)}" stroke-width="1.3"/>'
        bottom = TITLE + len(points) * (STRIP + GAP)
        yield from _seconds(end_s, x_of, bottom + 8)

    return _picture(title, TITLE + len(points) * (STRIP + GAP) + 16, drawn())


def lines(title: str, points: Mapping[str, Sequence[tuple[float, float]]], told: Callable[[float], str]) -> str:
    """All in one plot, over one axis of seconds and one logarithmic scale; the names stand below it."""
    low, high = _decades([y for each in points.values() for _, y in each])
    end_s = max((x for each in points.values() for x, _ in each), default=0.0) or 1.0

    def x_of(at_s: float) -> float:
        return LEFT + at_s / end_s * (WIDTH - LEFT - RIGHT)

    def drawn() -> Iterator[str]:
        for decade in range(low, high + 1):
            y = _height(10.0**decade, low, high, TITLE, PLOT)
            yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            yield _text(LEFT - 8, y + 3, told(10.0**decade), anchor="end")
        for row, (name, each) in enumerate(points.items()):
            way = " ".join(f"{x_of(x):.1f},{_height(y, low, high, TITLE, PLOT):.1f}" for x, y in each)
            yield f'<polyline points="{way}" fill="none" stroke="{_colour(row)}" stroke-width="1.6"/>'
            for x, y in each:
                height = _height(y, low, high, TITLE, PLOT)
                yield f'<circle cx="{x_of(x):.1f}" cy="{height:.1f}" r="2" fill="{_colour(row)}"/>'
            at = TITLE + PLOT + 36 + row * 16
            yield f'<rect x="{LEFT}" y="{at - 9}" width="10" height="10" fill="{_colour(row)}"/>'
            yield _text(LEFT + 16, at, name)
        yield from _seconds(end_s, x_of, TITLE + PLOT + 14)

    return _picture(title, TITLE + PLOT + 36 + len(points) * 16, drawn())


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around them."""
    above = [value for value in values if value > 0]
    low = math.floor(math.log10(min(above))) if above else 0
    high = math.ceil(math.log10(max(above))) if above else 1
    return low, max(high, low + 1)


def _height(value: float, low: int, high: int, top: float, height: float) -> float:
    share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
    return top + height * (1 - share)


def _seconds(end_s: float, x_of: Callable[[float], float], y: float) -> Iterator[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000) if end_s / s <= 12)
    for number in range(int(end_s / step) + 1):
        yield _text(x_of(number * step), y, f"{number * step} s", anchor="middle", kind="small")


def _colour(row: int) -> str:
    return COLOURS[row % len(COLOURS)]


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, height: float, drawn: Iterator[str]) -> str:
    size = f'width="{WIDTH}" height="{height + 10:.0f}" viewBox="0 0 {WIDTH} {height + 10:.0f}"'
    head = f'xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}"'
    ground = f'<rect class="ground" width="{WIDTH}" height="{height + 10:.0f}"/>'
    parts = [f"<svg {head}>", f"<style>{STYLE}</style>", ground, _text(16, 24, title, kind="title"), *drawn]
    return "\n".join([*parts, "</svg>", ""])
