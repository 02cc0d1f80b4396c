"""Where boxes stand that lines join: in layers from left to right, so that every line goes right.

A line over several layers has a place of its own in each of those between, so that it crosses no box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Box", "Connector", "LayerLayout", "Slot", "placed"]

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
