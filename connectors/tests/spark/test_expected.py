"""Which rows verify can make again, of a flow. Asks neither Spark nor a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.errors import raises

from onefold.core import ConfigError, Sink
from onefold.flow import Flow, Watermarks, count, ingestion
from onefold.flow.graph.nodes import Graph
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import IdsWithin, KafkaSource, OrderedIds
from onefold.spark.verify.expected import Expected

TABLE = PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t")
TOPIC = KafkaSink("t", bootstrap_servers="127.0.0.1:1")
ORDERED, WITHIN = OrderedIds(), IdsWithin("1 day")
Change = Callable[[Any], Any]


def graph(change: Change, sink: Sink = TABLE, watermarks: Watermarks | None = None) -> Graph:
    flow = Flow("shop")
    settings: Any = {"format": "json", "schema": "id long, n long", "columns": ["position", "key"]}
    rows = flow.source(KafkaSource("orders", bootstrap_servers="127.0.0.1:1", **settings), "in", watermarks=watermarks)
    change(rows).sink(sink)
    return flow.graph()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda rows: rows.filter("n > 0"), 1),
        (lambda rows: rows.filter("n > 0").spark_sql("SELECT id FROM source", "id long"), 1),
        (lambda rows: rows.filter("n > 0").deduplicate(ORDERED, uid="once").select("id"), 2),
        (lambda rows: rows.deduplicate(ORDERED, uid="once").map_batches(lambda batch: batch), 2),
        (lambda rows: rows.filter("n > 0").union(rows).select("id"), 1),
    ],
)
def test_rows_of_operators_without_state_and_without_repeats_are_made_again(change: Change, parts: int) -> None:
    expected = Expected.of(graph(change), "t")
    assert len(expected.plans) == parts
    assert expected.source.name == "orders"
    for plan in expected.plans:
        assert not any(node.keeps_state for node in plan.chains[0].nodes)


@pytest.mark.parametrize(
    ("change", "sink"),
    [
        (lambda rows: rows.deduplicate(WITHIN, uid="once"), TABLE),
        (lambda rows: rows.deduplicate(ORDERED, uid="once"), TOPIC),
        (lambda rows: rows.deduplicate(ORDERED, uid="once").union(rows), TABLE),
        (
            lambda rows: rows.deduplicate(ORDERED, uid="once").key_by("id").aggregate(uid="n", n=count()).select("id"),
            PostgresSink(TABLE.url, "t", mode="upsert", key="id", order="onefold_epoch"),
        ),
    ],
    ids=["by time", "into a topic", "beside repeats", "aggregated"],
)
def test_rows_that_depend_on_more_than_the_records_are_refused(change: Change, sink: Sink) -> None:
    with raises(ConfigError, "verify-unsupported", "'t'"):
        Expected.of(graph(change, sink), "t")


def test_the_time_at_which_records_were_read_is_not_made_again() -> None:
    with raises(ConfigError, "verify-unsupported", "ingestion()"):
        Expected.of(graph(lambda rows: rows.select("id"), watermarks=ingestion()), "t")
