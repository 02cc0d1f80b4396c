"""A flow as text and as a picture."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource, AnyTable, orders
from harness.errors import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.core import ConfigError, Retriable, SinkKind, Upsert
from onefold.flow import Flow, Side, Ttl, Tumbling, count, last, monotonic, sum_
from onefold.flow.drawing.svg import Box, Connector, placed

SVG = "{http://www.w3.org/2000/svg}"


def split(row: dict[str, Any]) -> Any:
    yield row
    yield Side("late <&>", row)


def shop() -> Flow:
    flow, stream = orders()
    paid = stream.filter(pc.field("amount") > Decimal(0))
    totals = paid.key_by("account").aggregate(uid="totals", total=sum_("amount"), orders=count())
    totals.sink(AnySink("table", replaces=Upsert(("account",), ("onefold_epoch",))))
    ids = paid.flat_map(split, "id long", sides={"late <&>": "id long"})
    more = flow.source(AnySource("more", on_error="dead_letter"), uid="more", dead_letters=AnySink("bad"))
    ids.union(ids.side("late <&>"), more.select("id").rebalance()).sink(
        AnySink("cells", SinkKind.WRITE_THROUGH, by=("id",), conditions=("the clock is right",))
    )
    totals.select("account").sink(AnySink("accounts", SinkKind.WRITE_THROUGH, replaces=Upsert(("account",))))
    newest = paid.key_by("account").aggregate(uid="newest", note=last("note"))
    newest.sink(AnySink("notes", SinkKind.WRITE_THROUGH, replaces=Upsert(("account",))))
    return flow


def test_the_text_names_operators_ways_columns_and_guarantees() -> None:
    text = shop().explain()
    for line in (
        "flow shop, 128 key groups",
        "orders: reads AnySource orders",
        "  gives: id int64, account int64, amount decimal128(12, 2), weight double, note string",
        "filter-1: keeps rows with (amount > 0)",
        "totals: aggregates by account: total = sum(amount), orders = count()",
        "  from filter-1, by key account",
        "table: writes rows and their epoch's number to AnySink",
        "  guarantee: model (two-phase), readers may see part of an epoch",
        "  side late <&>: id int64",
        "  from flat_map-4, side late <&>",
        "  from select-7, rebalance",
        "bad: writes dead letters to AnySink",
        "  condition: the clock is right",
        "guarantee: every record is reflected exactly once in table, cells, accounts, notes, bad, after any number"
        " of crashes",
        "condition: newest before notes takes rows in an order that is the same again, with as many workers: an epoch"
        " that was begun runs again with no other number",
    ):
        assert f"\n{line}\n" in f"\n{text}\n", line
    assert "totals before accounts" not in text
    assert "cells is written before an epoch is decided" in text


def test_a_guarantee_that_only_an_absent_server_knows_is_said_to_be_unknown() -> None:
    class Away(AnySink):
        def guarantee(self) -> Any:
            raise Retriable("away", "the server does not answer")

    flow, stream = orders()
    stream.sink(Away())
    assert "guarantee: not known: the server does not answer" in flow.explain()


def test_a_flow_of_two_sinks_that_would_both_decide_is_said_to_be_refused_at_its_start() -> None:
    flow, stream = orders()
    stream.sink(AnySink("a", SinkKind.LAST_RESOURCE))
    assert "refused" not in flow.explain()
    stream.sink(AnySink("b", SinkKind.LAST_RESOURCE))
    assert "refused at its start: the sinks a, b would each have to be the one transaction" in flow.explain()


def test_of_a_table_it_is_said_when_it_is_read_and_beside_which_sink_it_is_refused() -> None:
    flow = Flow("copy")
    flow.source(AnyTable(), uid="customers").sink(AnySink("kept"))
    others = flow.source(AnyTable("table others", is_of_one_moment=False), uid="others")
    others.sink(AnySink("shown"))
    text = flow.explain()
    assert "customers is read once, whole, in one epoch, at one moment; as it is then where" in text
    assert "others is read once, whole, in one epoch, each record at a moment of its own; as it is then" in text
    assert "refused" not in text
    others.sink(AnySink("cells", SinkKind.WRITE_THROUGH))
    assert "refused at its start: flow 'copy' reads 'table customers', and writes to 'cells' before" in flow.explain()


def test_the_picture_is_well_formed_and_names_every_node_and_way() -> None:
    flow = shop()
    picture = ET.fromstring(flow.explain("svg"))
    texts = {element.text for element in picture.iter(f"{SVG}text")}
    graph = flow.graph()
    assert {node.name for node in graph.nodes} <= texts
    assert {"by key account", "rebalance", "side late <&>", "side bad", "by key id"} <= texts
    assert len(list(picture.iter(f"{SVG}path"))) == 1 + sum(len(node.inputs) for node in graph.nodes)
    width, height = (float(picture.attrib[side]) for side in ("width", "height"))
    for element in picture.iter(f"{SVG}text"):
        assert 0 <= float(element.attrib["x"]) <= width and 0 <= float(element.attrib["y"]) <= height
    exchanges = [path for path in picture.iter(f"{SVG}path") if "exchange" in path.attrib.get("class", "")]
    assert len(exchanges) == 4


def test_the_diagram_has_every_node_and_way_and_no_character_that_mermaid_takes_for_its_own() -> None:
    flow = shop()
    head, *lines = flow.explain("mermaid").splitlines()
    graph = flow.graph()
    assert head == "flowchart LR"
    nodes = [line for line in lines if re.match(r"  n\d+[\[{]", line)]
    assert len(nodes) == len(graph.nodes) and len(lines) - len(nodes) == sum(len(node.inputs) for node in graph.nodes)
    assert '  n0[/"orders<br/>reads AnySource orders"/]' in lines
    assert '  n1 ==>|"by key account"| n2' in lines
    assert '"side late #60;#38;#62;"' in flow.explain("mermaid")
    for line in nodes:
        assert re.fullmatch(
            r'  n\d+(\[/|\[\(|\{\{|\[)"[^"<>`|\[\](){}]+<br/>[^"<>`|\[\](){}]+"(/\]|\)\]|\}\}|\])', line
        ), line
    with raises(ConfigError, "option-value"):
        flow.explain("png")  # type: ignore[arg-type]


def test_lines_go_right_and_cross_no_box() -> None:
    picture = shop().explain("svg")
    for path in re.findall(r'<path class="way[^"]*" d="([^"]+)"', picture):
        across = [float(x) for x in re.findall(r"(?:M|H)([\d.]+)", path)]
        assert across == sorted(across)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Connector]]:
    count = draw(st.integers(1, 12))
    boxes = [Box(number, str(number), "", (), "sink") for number in range(count)]
    lines = []
    for end in range(1, count):
        starts = draw(st.lists(st.integers(0, end - 1), max_size=3))
        lines += [Connector(start, end, "", False) for start in starts]
    return boxes, lines


@settings(deadline=None)
@given(graphs(), st.data())
def test_boxes_and_the_places_of_lines_do_not_overlap(
    graph: tuple[list[Box], list[Connector]], data: st.DataObject
) -> None:
    boxes, lines = graph
    heights = {box.number: data.draw(st.integers(20, 200)) for box in boxes}
    found = placed(boxes, lines, heights)
    assert sorted(slot.box.number for layer in found.layers for slot in layer if slot.box) == [*range(len(boxes))]
    for layer in found.layers:
        for one, other in combinations(layer, 2):
            assert one.y + one.height <= other.y or other.y + other.height <= one.y
    for way in found.ways:
        assert [slot.layer for slot in way] == [*range(way[0].layer, way[-1].layer + 1)]


@pytest.mark.parametrize("format_", ["text", "svg"])
def test_a_flow_is_explained_twice_alike(format_: Any) -> None:
    assert shop().explain(format_) == shop().explain(format_)


def test_how_long_state_lives_is_told() -> None:
    flow, stream = orders()
    keyed = stream.key_by("account")
    made = keyed.aggregate(uid="totals", ttl=Ttl("1 day", update="read_and_write"), n=count())
    made.sink(AnySink(replaces=Upsert(("account",), ("onefold_epoch",))))
    assert "n = count(), lives 1 day, read_and_write" in flow.explain()


def two_exchanges() -> Flow:
    flow, stream = orders()
    stream.rebalance().filter(pc.field("id") > 1).rebalance().select("id").sink(AnySink("table"))
    return flow


@pytest.mark.parametrize(
    ("alignment", "workers", "line"),
    [
        (
            "unaligned",
            2,
            "on the engine: unaligned barriers: what they overtake is stored with its epoch",
        ),
        (
            "at_least_once",
            2,
            "guarantee: at least once: after a crash records between two barriers count twice",
        ),
        (
            "at_least_once",
            1,
            "on the engine: barriers that are not aligned: exactly once",
        ),
    ],
)
def test_what_is_guaranteed_depends_on_how_barriers_are_aligned(alignment: str, workers: int, line: str) -> None:
    for format_ in ("text", "svg"):
        told = two_exchanges().explain(format_, alignment=alignment, workers=workers)  # type: ignore[arg-type]
        assert line in " ".join(told.split()) or format_ == "svg"
    assert line not in two_exchanges().explain()


@pytest.mark.parametrize("alignment", ["unaligned", "at_least_once"])
def test_a_sink_that_writes_through_refuses_barriers_that_are_not_aligned(alignment: Any) -> None:
    flow = two_exchanges()
    flow.source(AnySource("others", pa.schema({"id": pa.int64()})), uid="others").sink(
        AnySink("cells", SinkKind.WRITE_THROUGH)
    )
    refused = f"refused at its start: alignment='{alignment}' does not go with cells"
    assert refused in flow.explain(alignment=alignment) and refused not in flow.explain()


def test_a_word_that_is_no_alignment_is_refused() -> None:
    with raises(ConfigError, "option-value", "loose"):
        two_exchanges().explain(alignment="loose")


def test_operators_that_go_by_event_time_and_those_before_them_stay_aligned() -> None:
    flow = Flow("timed")
    columns = pa.schema({"id": pa.int64(), "at": pa.timestamp("us")})
    stream = flow.source(AnySource("orders", columns), uid="orders", watermarks=monotonic("at"))
    windows = stream.rebalance().filter(pc.field("id") > 1).key_by("id").window(Tumbling("1 minute"), on="at")
    windows.aggregate(uid="windows", n=count()).rebalance().filter(pc.field("n") > 1).sink(AnySink("table"))
    text = flow.explain(alignment="at_least_once", workers=2)
    assert "count twice in filter-3; filter-1, windows: aligned, for event time" in text
    assert "; filter-1: aligned, for event time" in flow.explain(alignment="unaligned", workers=2)


def test_totals_do_not_overtake_each_other_before_a_sink_that_keeps_the_last_one_of_a_key() -> None:
    flow, stream = orders()
    sink = AnySink("table", replaces=Upsert(("account",)))
    totals = stream.key_by("account").aggregate(uid="totals", n=count())
    totals.rebalance().filter(pc.field("n") > 1).sink(sink)
    text = flow.explain(alignment="unaligned", workers=2)
    assert "; filter-2: aligned, for event time, or a sink that goes by the epoch alone" in text
    for mechanism in ("transaction", "ack"):
        assert "refused at its start: sink 'table' keeps the newest row" in flow.explain(mechanism=mechanism)
    plain, rows = orders()
    rows.rebalance().filter(pc.field("account") > 1).sink(sink)
    assert "aligned, for" not in plain.explain(alignment="unaligned", workers=2), "no row is another's newer one"
