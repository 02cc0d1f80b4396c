"""What `deduplicate` is refused for when a flow is built, and what the flow says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, orders

from onefold.core import ConfigError, SinkKind
from onefold.flow import Flow, IdsWithin, OrderedIds, Shipping, Stream
from onefold.flow.graph.operators import Deduplicating
from onefold.flow.graph.order import in_fixed_order, order_dependent
from onefold.sources import KafkaSource

WITHIN = IdsWithin("2 hours", id="id")


def kafka(*columns: Any, **settings: Any) -> Stream:
    settings = {"format": "json", "schema": "id long, till string, n long, ratio double"} | settings
    source = KafkaSource("orders", bootstrap_servers="broker:9092", columns=columns, **settings)
    return Flow("shop").source(source, uid="orders")


def once(stream: Stream) -> Deduplicating:
    operator = stream._nodes.made[-1].operator
    assert isinstance(operator, Deduplicating)
    return operator


def refused(does: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        does()
    return error.value.code


def test_ids_are_in_the_key_a_header_a_column_or_two() -> None:
    place = ("kafka_topic", "kafka_partition", "kafka_offset")
    for ids, id in (
        (OrderedIds(), ("kafka_key",)),
        (OrderedIds(id="header:id"), ("onefold_id",)),
        (OrderedIds(id="till"), ("till",)),
        (OrderedIds(source="till", sequence="n"), ("till", "n")),
    ):
        before = kafka("position", "key", "headers")
        after = before.deduplicate(ids, uid="once")
        assert (once(after), after.schema) == (Deduplicating(ids, place[:-1], id, place), before.schema)
    for within, name in ((IdsWithin("1 day"), "kafka_key"), (IdsWithin("1 day", id="header:id"), "onefold_id")):
        after = kafka("position", "key", "headers").deduplicate(within, uid="once")
        assert once(after) == Deduplicating(within, (name,), (name,), place)
    raw = kafka(format="raw", schema=None).deduplicate(OrderedIds(), uid="once")
    assert once(raw) == Deduplicating(OrderedIds(), ("topic", "partition"), ("key",), ("topic", "partition", "offset"))


def test_columns_may_be_chosen_renamed_and_computed_before() -> None:
    stream = kafka("position", "key").filter(pc.field("n") > 1).with_columns(n=pc.field("n") + 1)
    chosen = stream.select("n", p=pc.field("kafka_partition"), t=pc.field("kafka_topic"), o=pc.field("kafka_offset"))
    assert once(chosen.deduplicate(OrderedIds(source="t", sequence="n"), uid="once")).place == ("t", "p", "o")
    assert refused(lambda: chosen.deduplicate(OrderedIds(), uid="twice")) == "no-such-column"
    moved = stream.with_columns(kafka_partition=pc.field("kafka_partition") + 1)
    assert refused(lambda: moved.deduplicate(OrderedIds(), uid="twice")) == "position-columns-missing"


def test_ids_within_a_span_may_be_a_column_of_any_stream() -> None:
    flow, stream = orders()
    for number, any_stream in enumerate(
        (stream, stream.rebalance(), stream.union(stream), stream.map_batches(lambda batch: batch))
    ):
        after = any_stream.deduplicate(WITHIN, uid=f"once{number}")
        assert once(after) == Deduplicating(WITHIN, ("id",), ("id",), ())
        (edge,) = flow._nodes.made[-1].inputs
        assert (edge.shipping, edge.key) == (Shipping.KEYED, ("id",))


def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize(
    ("way", "named"),
    [
        (lambda s: s.rebalance(), "rebalance()"),
        (lambda s: s.filter(pc.field("n") > 1).rebalance().select(*s.schema.names), "rebalance()"),
        (lambda s: s.union(s), "union-1"),
        (lambda s: s.map_batches(mapped).filter(pc.field("n") > 1), "map_batches-1"),
        (lambda s: s.flat_map(lambda row: [row], s.schema), "flat_map-1"),
        (lambda s: s.key_by("till").reduce(lambda kept, _: kept, uid="newest"), "newest"),
        (lambda s: s.deduplicate(WITHIN, uid="first"), "first"),
    ],
)
def test_ordered_ids_are_refused_where_the_order_of_a_partition_may_be_lost(
    way: Callable[[Stream], Stream], named: str
) -> None:
    stream = way(kafka("position", "key"))
    with pytest.raises(ConfigError) as error:
        stream.deduplicate(OrderedIds(), uid="once")
    assert error.value.code == "partition-order-lost"
    assert f"which {named} may" in error.value.message


def test_what_cannot_be_deduplicated_is_refused_when_the_flow_is_built() -> None:
    whole = kafka("position", "key")
    for stream, ids, code in (
        (kafka("key"), OrderedIds(), "position-columns-missing"),
        (kafka("position"), OrderedIds(), "no-such-column"),
        (kafka("position"), IdsWithin("1 day"), "no-such-column"),
        (whole, OrderedIds(id="header:id"), "no-such-column"),
        (whole, OrderedIds(id="none"), "no-such-column"),
        (whole, OrderedIds(id="n"), "id-column-type"),
        (whole, OrderedIds(source="till", sequence="ratio"), "id-column-type"),
        (whole, OrderedIds(source="n", sequence="n"), "id-column-type"),
        (whole, OrderedIds(source="till", sequence="none"), "no-such-column"),
        (whole, IdsWithin("1 day", id="ratio"), "key-type"),
        (whole, "key", "option-value"),
    ):
        given: Any = ids
        assert refused(lambda: stream.deduplicate(given, uid="once")) == code  # noqa: B023
    assert refused(lambda: whole.deduplicate(OrderedIds())) == "uid-missing"
    bad = kafka("position", "key", on_error="dead_letter").side("bad")
    assert refused(lambda: bad.deduplicate(OrderedIds(), uid="once")) == "partition-order-lost"


def test_only_which_row_of_an_id_is_the_first_depends_on_the_order() -> None:
    for ids, dependent in ((OrderedIds(), []), (IdsWithin("1 day"), ["once"])):
        stream = kafka("position", "key")
        flow = Flow("shop")
        flow._nodes = stream._nodes
        stream.deduplicate(ids, uid="once").sink(AnySink("cells", SinkKind.WRITE_THROUGH))
        graph = flow.graph()
        assert [node.name for node in order_dependent(graph, graph.nodes[-1])] == dependent
        assert bool(in_fixed_order(graph, ["cells"])) is bool(dependent)
        assert "once: drops rows whose id was seen" in flow.explain()


def test_the_text_of_a_flow_says_what_is_remembered() -> None:
    flow, stream = orders()
    stream.deduplicate(WITHIN, uid="once").sink(AnySink())
    assert "once: drops rows whose id was seen within 2 hours: the id (id); state: ids of that time" in flow.explain()
