"""A pipeline's graph, with what flows in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from pydantic import Field

from onefold.daemon.api.model import Model
from onefold.daemon.hosting.traffic_rates import EdgeRate, OperatorLoad, TrafficRates
from onefold.flow.drawing.svg import drawn
from onefold.flow.time.told import moment


class EdgeModel(Model):
    """An edge of the pipeline's graph, with what has flowed by it since the daemon was started; counted on the engine.
    What an epoch that runs again processes counts again."""

    source: str
    target: str
    label: str
    rows: int | None
    bytes: int | None
    rows_per_s: float | None = Field(description="of the last ten seconds, about")
    bytes_per_s: float | None


class OperatorModel(Model):
    name: str
    busy: float | None = Field(description="the share of the workers' time that was spent in its code, lately: 0 to 1")
    backpressured: float | None = Field(
        description="the share of the time in which it waited to hand a batch on to other workers, lately: 0 to 1"
    )
    state_entries: int | None = Field(description="that it keeps by key, about")
    state_bytes: int | None = Field(description="of its last snapshot, about")
    watermark: datetime | None = Field(
        description="of event time; null while it is not known, and once its sources have ended"
    )
    waits_for: str | None = Field(description="the partition that holds the watermark back, and since when")
    late_rows: int | None = Field(description="that came too late for it, since its run began")

    @classmethod
    def of(cls, load: OperatorLoad) -> OperatorModel:
        clock = load.clock
        return cls(
            name=load.name,
            busy=load.busy,
            backpressured=load.backpressured,
            state_entries=load.state_entries,
            state_bytes=load.state_bytes,
            watermark=None if clock is None or clock.us is None else moment(clock.us),
            waits_for=None if clock is None else clock.waits_for,
            late_rows=None if clock is None else clock.late,
        )


class ElementModel(Model):
    """Of an SVG."""

    tag: str
    attributes: dict[str, str]
    children: list[ElementModel | str]

    @classmethod
    def of(cls, svg: str) -> ElementModel:
        """A picture of our own."""
        return _element(ElementTree.fromstring(svg))


class GraphModel(Model):
    svg: ElementModel | None = Field(
        description="the pipeline's graph, with what flows in it; null before its first start"
    )

    @classmethod
    def of(cls, traffic: TrafficRates) -> GraphModel:
        drawing = traffic.drawing
        if drawing is None:
            return cls(svg=None)
        boxes = [
            replace(box, figures=tuple(_figures(each)))
            for box, each in zip(drawing.boxes, traffic.operators(), strict=True)
        ]
        ways = [
            replace(way, label=", ".join(filter(None, [way.label.removeprefix("by "), _rate(each)])))
            for way, each in zip(drawing.ways, traffic.edges(), strict=True)
        ]
        return cls(svg=ElementModel.of(drawn("", boxes, ways, (), is_styled=False)))


def _element(found: Element) -> ElementModel:
    texts = [found.text, *(child.tail for child in found)]
    children: list[ElementModel | str] = []
    for text, child in zip(texts, [*found, None], strict=True):
        children += [text] if text and not text.isspace() else []
        children += [] if child is None else [_element(child)]
    attributes = {name: value for name, value in found.attrib.items() if not name.startswith("{")}  # but xml:space
    return ElementModel(tag=found.tag.rpartition("}")[2], attributes=attributes, children=children)


def _figures(load: OperatorLoad) -> Iterator[str]:
    """As wide as they ever are, so that a picture does not move with them."""
    shares = {"busy": load.busy, "backpressured": load.backpressured}
    if known := [f"{share:4.0%} {name}" for name, share in shares.items() if share is not None]:
        yield ", ".join(known)
    if load.state_entries is not None and load.state_bytes is not None:
        yield f"{load.state_entries:,} entries, {load.state_bytes / 1e6:,.1f} MB"
    if (clock := load.clock) is not None:
        yield from clock.parts()
        if clock.late:
            yield f"{clock.late:,} late rows"


def _rate(edge: EdgeRate) -> str:
    if edge.rows_per_s is None or edge.bytes_per_s is None:
        return ""
    return f"{edge.rows_per_s:,.0f} rows/s, {edge.bytes_per_s / 1e6:,.1f} MB/s"
