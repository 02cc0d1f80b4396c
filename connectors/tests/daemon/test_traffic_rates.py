"""What flows by the edges of a graph, as hosts report it."""

from __future__ import annotations

import pytest

from onefold.daemon.hosting.messages import Drawing, Flowing
from onefold.daemon.hosting.traffic_rates import EdgeRate, OperatorLoad, TrafficRates
from onefold.flow.drawing.svg import Box, Connector


def test_rates_are_of_the_last_reports_and_sums_go_on_over_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("onefold.daemon.hosting.traffic_rates.time.monotonic", lambda: now_s)
    boxes = tuple(Box(number, name, "", (), "function") for number, name in enumerate(("in", "out")))
    drawing, rates = Drawing(boxes=boxes, ways=(Connector(0, 1, "by key", True),)), TrafficRates()
    assert rates.edges() == rates.operators() == []
    rates.draw(drawing)
    assert rates.edges() == [EdgeRate("in", "out", "by key", None, None, None, None)], "nobody counts on Spark"
    for at in range(30):
        now_s = 100.0 + at
        rates.take(
            Flowing(
                ways=((at * at, 10 * at),),
                busy={1: 2 * at},
                backpressured={0: at, 1: at},
                looks=4 * at,
                state={1: (at, 8 * at)},
            )
        )
    (edge,) = rates.edges()
    assert (edge.rows, edge.bytes, edge.rows_per_s, edge.bytes_per_s) == (29 * 29, 290, (29**2 - 19**2) / 10, 10)
    assert rates.operators() == [OperatorLoad("in", 0, 0.25), OperatorLoad("out", 0.5, None, 29, 8 * 29)]
    rates.draw(drawing)
    (edge,) = rates.edges()
    assert (edge.rows, edge.rows_per_s) == (29 * 29, None)
    for _ in range(2):
        rates.take(Flowing(ways=((5, 50),), busy={}, backpressured={}, looks=4, state={}))
    assert (rates.edges()[0].rows, rates.edges()[0].rows_per_s) == (29 * 29 + 5, 0)
    now_s += 60
    (edge,) = rates.edges()
    assert (edge.rows, edge.rows_per_s, edge.bytes_per_s) == (29 * 29 + 5, None, None), "nothing flows any more"
    assert rates.operators() == [OperatorLoad("in"), OperatorLoad("out")]


def test_ways_that_nobody_counts_are_unknown_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("onefold.daemon.hosting.traffic_rates.time.monotonic", lambda: now_s)
    boxes = tuple(Box(number, name, "", (), "function") for number, name in enumerate(("in", "through", "out")))
    ways = (Connector(0, 1, "", False), Connector(1, 2, "", False))
    rates = TrafficRates()
    rates.draw(Drawing(boxes=boxes, ways=ways))
    for at in range(2):
        now_s += 1
        rates.take(Flowing(ways=(None, (3 * at, 30 * at))))
    unknown, counted = rates.edges()
    assert (unknown.rows, unknown.bytes, unknown.rows_per_s, unknown.bytes_per_s) == (None, None, None, None)
    assert (counted.rows, counted.bytes, counted.rows_per_s, counted.bytes_per_s) == (3, 30, 3, 30)
    assert [each.busy for each in rates.operators()] == [None, None, None]
    rates.end()
    assert [each.rows for each in rates.edges()] == [None, 3]
