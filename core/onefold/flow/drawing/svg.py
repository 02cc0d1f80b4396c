"""Pictures of boxes and lines, as SVG, without any other program. Knows no flow.

Boxes stand in layers from left to right, so that every line goes right. A line over several layers has a place of its
own in each of those between, so that it crosses no box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap

COLOURS = {  # of the border, of the inside
    "source": ("#2f855a", "#f0fff4"),
    "function": ("#718096", "#f7fafc"),
    "state": ("#b7791f", "#fffff0"),
    "sink": ("#2b6cb0", "#ebf8ff"),
}
CHARACTER, LINE, PAD = 6.7, 16, 10  # pixels: a character's width, a line's height, the space inside of a box
CHARACTERS_MAX, CHARACTERS_MIN, LINES_MAX = 38, 16, 10  # of a line of text in a box, and of columns shown
LABEL = 5.6  # a label's character
MARGIN, TITLE = 24, 34
COLUMN_GAP = 64

STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#2d3748}"
    ".title{font-weight:bold;font-size:12px}.flow{font-weight:bold;font-size:15px}.column{fill:#718096}"
    ".label{font-size:9.5px;fill:#4a5568;paint-order:stroke;stroke:white;stroke-width:3px}.way{fill:none;stroke:#718096;stroke-width:1.4}"
    ".exchange{stroke:#c05621;stroke-width:2;stroke-dasharray:6 3}.ground{fill:white}.box{stroke-width:1.5}"
    + "".join(f".{kind}{{stroke:{border};fill:{inside}}}" for kind, (border, inside) in COLOURS.items())
)
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    ' markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" fill="#4a5568"/></marker>'
)
SWEEPS = 8  # over all layers, each ordering a layer by its neighbours
GAP = 22  # between boxes of a layer, in pixels
MIDDLE = 14  # the height of a line's place between boxes


@dataclass(frozen=True, slots=True)
class Box:
    """`number` is its own, and `kind` its colour's; `figures` stand below its title."""

    number: int
    title: str
    says: str
    lines: tuple[str, ...]
    kind: str
    figures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Connector:
    """From one box to one with a higher number. `is_exchange`: between tasks."""

    start: int
    end: int
    label: str
    is_exchange: bool


@dataclass(slots=True)
class Slot:
    """A place in a layer: a box's, or one that a line passes (`box` is None)."""

    layer: int
    box: Box | None
    height: float
    y: float = 0


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """The layers, from left to right, each from top to bottom; and of each line the slots that it joins, in order."""

    layers: list[list[Slot]]
    ways: list[list[Slot]]


def placed(boxes: Sequence[Box], lines: Sequence[Connector], heights: Mapping[int, float]) -> LayerLayout:
    """The boxes and lines in their places; heights in pixels, y from 0 on."""
    depth = _depths(boxes, lines)
    own = {box.number: Slot(depth[box.number], box, heights[box.number]) for box in boxes}
    layers: list[list[Slot]] = [[] for _ in range(max(depth.values()) + 1)]
    for box in boxes:
        layers[depth[box.number]].append(own[box.number])
    ways = []
    for line in lines:
        between = [Slot(layer, None, MIDDLE) for layer in range(depth[line.start] + 1, depth[line.end])]
        for slot in between:
            layers[slot.layer].append(slot)
        ways.append([own[line.start], *between, own[line.end]])
    _order(layers, ways)
    return LayerLayout(layers, ways)


def _depths(boxes: Sequence[Box], lines: Sequence[Connector]) -> dict[int, int]:
    """Each box's layer: one further than the last of those before it; sources just before who reads them."""
    depth = {box.number: 0 for box in boxes}
    for box in sorted(boxes, key=lambda box: box.number):
        depth[box.number] = max((depth[line.start] + 1 for line in lines if line.end == box.number), default=0)
    ends = {line.end for line in lines}
    for box in boxes:
        after = [depth[line.end] for line in lines if line.start == box.number]
        if box.number not in ends and after:
            depth[box.number] = min(after) - 1
    return depth


def _order(layers: list[list[Slot]], ways: Sequence[Sequence[Slot]]) -> None:
    before, after = defaultdict[int, list[Slot]](list), defaultdict[int, list[Slot]](list)
    for way in ways:
        for left, right in pairwise(way):
            before[id(right)].append(left)
            after[id(left)].append(right)
    for layer in layers:
        _stack(layer)
    for sweep in range(SWEEPS):
        near, order = (before, layers) if sweep % 2 == 0 else (after, layers[::-1])
        for layer in order:
            layer.sort(key=lambda slot: _middle(near[id(slot)], slot))
            _stack(layer)
    tallest = max(layer[-1].y + layer[-1].height for layer in layers)
    for layer in layers:
        shift = (tallest - layer[-1].y - layer[-1].height) / 2
        for slot in layer:
            slot.y += shift


def _middle(near: Sequence[Slot], slot: Slot) -> float:
    chosen = near or [slot]
    return sum(each.y + each.height / 2 for each in chosen) / len(chosen)


def _stack(layer: Sequence[Slot]) -> None:
    y = 0.0
    for slot in layer:
        slot.y = y
        y += slot.height + GAP


def drawn(
    title: str, boxes: Sequence[Box], lines: Sequence[Connector], notes: Sequence[str], is_styled: bool = True
) -> str:
    """The picture, with notes below it. Without a style of its own it has that of the page around it."""
    texts = {box.number: _texts(box) for box in boxes}
    heights = {number: len(text) * LINE + 2 * PAD for number, text in texts.items()}
    found = placed(boxes, lines, heights)
    widths = [_width(layer, texts) for layer in found.layers]
    gaps = _gaps(found, lines)
    lefts = [MARGIN + sum(widths[:at]) + sum(gaps[:at]) for at in range(len(widths))]
    width = lefts[-1] + widths[-1] + MARGIN
    below = max(slot.y + slot.height for layer in found.layers for slot in layer) + TITLE + 2 * MARGIN
    said = [part for note in notes for part in wrap(note, max(60, int((width - 2 * MARGIN) / CHARACTER)))]
    width = max(width, 2 * MARGIN + max(map(len, [title, *said])) * CHARACTER)
    height = below + len(said) * LINE + MARGIN
    style = f"<style>{STYLE}</style>" if is_styled else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}"><title>{escape(title, quote=False)}</title>{style}<defs>{ARROW}</defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" class="ground"/>',
        _text(MARGIN, MARGIN + 8, title, "flow"),
    ]
    ports = _ports(found)
    for at, (line, way) in enumerate(zip(lines, found.ways, strict=True)):
        parts += _line(line, way, ports[at], lefts, widths)
    for at, layer in enumerate(found.layers):
        for slot in layer:
            if slot.box is not None:
                parts += _box(slot, slot.box, texts[slot.box.number], lefts[at], widths[at])
    parts += [_text(MARGIN, below + at * LINE, line, "column") for at, line in enumerate(said)]
    return "\n".join([*parts, "</svg>", ""])


def _texts(box: Box) -> list[tuple[str, str]]:
    """The lines of a box, each with its class."""
    columns = (
        box.lines if len(box.lines) <= LINES_MAX else (*box.lines[: LINES_MAX - 1], f"... {len(box.lines)} columns")
    )
    return [
        (_cut(box.title), "title"),
        *((_cut(figure), "figure") for figure in box.figures),
        *((part, "") for part in wrap(box.says, CHARACTERS_MAX)[:4]),
        *((_cut(column), "column") for column in columns),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 3]}..."


def _width(layer: Sequence[Slot], texts: dict[int, list[tuple[str, str]]]) -> float:
    longest = [len(text) for slot in layer if slot.box is not None for text, _ in texts[slot.box.number]]
    return max([CHARACTERS_MIN, *longest]) * CHARACTER + 2 * PAD


def _gaps(found: LayerLayout, lines: Sequence[Connector]) -> list[float]:
    """The space behind each layer: room for the labels of the lines that end behind it."""
    gaps = [float(COLUMN_GAP)] * len(found.layers)
    for line, way in zip(lines, found.ways, strict=True):
        at = way[-1].layer - 1
        gaps[at] = max(gaps[at], len(line.label) * LABEL + 34)
    return gaps


def _ports(found: LayerLayout) -> list[tuple[float, float]]:
    """Where each line leaves its first box and enters its last one, so that those of one box stand apart."""
    leaving, entering = defaultdict[int, list[tuple[float, int]]](list), defaultdict[int, list[tuple[float, int]]](list)
    for at, way in enumerate(found.ways):
        leaving[id(way[0])].append((way[1].y + way[1].height / 2, at))
        entering[id(way[-1])].append((way[-2].y + way[-2].height / 2, at))

    def port(slot: Slot, of_slot: list[tuple[float, int]], at: int) -> float:
        place = [line for _, line in sorted(of_slot)].index(at)
        return slot.y + slot.height * (place + 1) / (len(of_slot) + 1)

    return [
        (port(way[0], leaving[id(way[0])], at), port(way[-1], entering[id(way[-1])], at))
        for at, way in enumerate(found.ways)
    ]


def _line(
    line: Connector, way: Sequence[Slot], ports: tuple[float, float], lefts: Sequence[float], widths: Sequence[float]
) -> Iterator[str]:
    middles = [ports[0], *(slot.y + slot.height / 2 for slot in way[1:-1]), ports[1]]
    path, right, before = "", 0.0, 0.0
    for slot, y in zip(way, middles, strict=True):
        middle, left = TITLE + MARGIN + y, lefts[slot.layer]
        if not path:
            path = f"M{left + widths[slot.layer]:.1f} {middle:.1f}"
        else:
            bend = (right + left) / 2
            path += f"C{bend:.1f} {before:.1f} {bend:.1f} {middle:.1f} {left:.1f} {middle:.1f}"
            if slot.box is None:
                path += f"H{left + widths[slot.layer]:.1f}"
        right, before = left + widths[slot.layer], middle
    kind = "way exchange" if line.is_exchange else "way"
    yield f'<path class="{kind}" d="{path}" marker-end="url(#arrow)"/>'
    if line.label:
        x = lefts[way[-1].layer] - len(line.label) * LABEL - 12
        comes_from_above = middles[-2] < middles[-1] - 6
        yield _text(x, before + (14 if comes_from_above else -6), line.label, "label")


def _box(slot: Slot, box: Box, texts: Sequence[tuple[str, str]], left: float, width: float) -> Iterator[str]:
    top = TITLE + MARGIN + slot.y
    yield (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{slot.height:.1f}" rx="6"'
        f' class="box {box.kind}"/>'
    )
    for at, (text, kind) in enumerate(texts):
        yield _text(left + PAD, top + PAD + at * LINE + 11, text, kind)


def _text(x: float, y: float, text: str, kind: str) -> str:
    of_class = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of_class} xml:space="preserve">{escape(text, quote=False)}</text>'
