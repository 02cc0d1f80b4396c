"""An SVG of boxes and lines, without any other program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from onefold.flow.drawing.layers import Box, Connector, LayerLayout, Slot, placed

__all__ = ["drawn"]

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
