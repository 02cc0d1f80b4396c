"""Which sinks take the results of windows: those that come once, those that come again, and those in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flow_parts import AnySink, AnySource, sink_node
from harness.errors import raises
from timed_rows import ROWS

from onefold.core import ConfigError, SinkKind, Upsert
from onefold.flow import EachEpoch, Every, Flow, Session, Stream, Tumbling, count, last, monotonic, sum_
from onefold.flow.graph.nodes import Shipping
from onefold.flow.graph.order import order_dependent

AGAIN: dict[str, Any] = {"lateness": "1 second"}
PARTS: dict[str, Any] = {**AGAIN, "results": "discarding"}
OF_WINDOWS = ("key", "window_start")


def counted(is_keyed: bool = True, **given: Any) -> tuple[Flow, Stream]:
    flow = Flow("windows")
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    rows = flow.source(source, uid="rows", watermarks=monotonic("at"))
    windowed = (rows.key_by("key") if is_keyed else rows).window(Tumbling("1 minute"), **given)
    return flow, windowed.aggregate(uid="n", n=count())


def check(upsert: Upsert | None, makes: Callable[[Stream], Stream] = lambda stream: stream, **given: Any) -> None:
    _, stream = counted(**given)
    makes(stream).sink(AnySink(replaces=upsert))


def test_results_that_come_once_go_into_any_sink() -> None:
    check(None)
    check(Upsert(OF_WINDOWS))
    check(Upsert(OF_WINDOWS, ("onefold_epoch",)))
    check(Upsert(("key", "window_end"), ("onefold_epoch",)))
    check(Upsert(("key",), ("window_end",)))
    check(Upsert(("window_start",), ("onefold_epoch",)), is_keyed=False)
    with raises(ConfigError, "epoch-order-ties"):  # of several windows of a key in one epoch
        check(Upsert(("key",), ("onefold_epoch",)))


def test_results_that_come_again_go_into_sinks_that_replace_them() -> None:
    for order in (("emission",), ("onefold_epoch",), ("emission", "onefold_epoch"), ("window_end", "emission"), ()):
        check(Upsert(OF_WINDOWS, order), **AGAIN)
    check(Upsert(("key", "window_end"), ("emission",)), **AGAIN)
    check(Upsert((*OF_WINDOWS, "window_end"), ("emission",)), **AGAIN)
    check(Upsert(OF_WINDOWS, ("number",)), lambda of: of.select("key", "window_start", "n", number="emission"), **AGAIN)
    check(Upsert(OF_WINDOWS, ("onefold_epoch",)), lambda of: of.filter("n > 1").select(*OF_WINDOWS, "n"), **AGAIN)


@pytest.mark.parametrize(
    ("upsert", "code"),
    [
        (None, "update-into-appends"),
        (Upsert(OF_WINDOWS, ("n",)), "update-without-epoch"),
        (Upsert((*OF_WINDOWS, "n"), ("emission",)), "update-by-values"),
        (Upsert((*OF_WINDOWS, "emission")), "update-by-values"),
        (Upsert(OF_WINDOWS, ("n", "emission")), "update-by-values"),
        (Upsert(("key",), ("emission",)), "update-key-too-small"),
        (Upsert(("window_start",), ("emission",)), "update-key-too-small"),
    ],
)
def test_other_sinks_are_refused_for_them(upsert: Upsert | None, code: str) -> None:
    with raises(ConfigError, code):
        check(upsert, **AGAIN)


def test_parts_of_results_go_into_sinks_that_keep_each_of_them() -> None:
    check(None, **PARTS)
    check(Upsert((*OF_WINDOWS, "emission")), **PARTS)
    with raises(ConfigError, "window-parts-replaced"):
        check(Upsert(OF_WINDOWS, ("emission",)), **PARTS)
    check(Upsert(OF_WINDOWS, ("onefold_epoch",)), results="discarding")  # there is one part


def test_late_rows_are_rows_as_any() -> None:
    flow, stream = counted(late="late", **AGAIN)
    stream.sink(AnySink("results", replaces=Upsert(OF_WINDOWS)))
    stream.side("late").sink(AnySink("late"))
    assert flow.graph().written(sink_node(flow.graph(), "late")) == ROWS
    with raises(ConfigError, "epoch-order-ties"):
        stream.side("late").sink(AnySink("latest", replaces=Upsert(("key",), ("onefold_epoch",))))


def test_rows_of_a_window_are_in_the_task_of_their_key() -> None:
    flow, stream = counted()
    stream.sink(AnySink("by key", by=("key", "window_start")))
    stream.sink(AnySink("by window", by=("window_start",)))
    shippings = [sink_node(flow.graph(), name).inputs[0].shipping for name in ("by key", "by window")]
    assert shippings == [Shipping.FORWARD, Shipping.KEYED]


def test_aggregates_of_an_order_are_told_before_a_sink_that_writes_through() -> None:
    flow = Flow("windows")
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    windowed = flow.source(source, uid="rows", watermarks=monotonic("at")).key_by("key").window(Tumbling("1 minute"))
    for aggregate in (last("amount"), sum_("amount")):
        windowed.aggregate(uid=str(aggregate).partition("(")[0], of=aggregate).sink(
            AnySink(f"of {aggregate}", kind=SinkKind.WRITE_THROUGH)
        )
    graph = flow.graph()
    found = [
        node.name for name in ("last", "sum") for node in order_dependent(graph, sink_node(graph, f"of {name}(amount)"))
    ]
    assert found == ["last"]


def visits(upsert: Upsert | None, makes: Callable[[Stream], Stream] = lambda stream: stream, **given: Any) -> None:
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    rows = Flow("windows").source(source, uid="rows", watermarks=monotonic("at")).key_by("key")
    makes(rows.window(Session("1 minute"), **given).aggregate(uid="n", n=count())).sink(AnySink(replaces=upsert))


def test_sessions_that_come_again_go_into_sinks_that_delete_the_rows_of_those_that_are_gone() -> None:
    visits(Upsert(OF_WINDOWS, ("emission",), "retracts"), **AGAIN)
    visits(
        Upsert(OF_WINDOWS, ("emission",), "gone"),
        lambda of: of.select(*OF_WINDOWS, "emission", gone="retracts"),
        **AGAIN,
    )
    visits(None)
    visits(None, results="discarding")  # there is one part
    for deletes in (None, "n"):
        with raises(ConfigError, "session-rows-stale"):
            visits(Upsert(OF_WINDOWS, ("emission",), deletes), **AGAIN)
    with raises(ConfigError, "session-rows-stale"):
        visits(Upsert(OF_WINDOWS, ("emission",)), lambda of: of.select(*OF_WINDOWS, "emission"), **AGAIN)
    with raises(ConfigError, "update-into-appends"):
        visits(None, **AGAIN)
    for key in (("key", "window_end"), (*OF_WINDOWS, "window_end")):  # the end changes with each row
        with raises(ConfigError, "update-by-values"):
            visits(Upsert(key, ("emission",), "retracts"), **AGAIN)
    with raises(ConfigError, "session-parts"):
        visits(None, **PARTS)


def test_results_that_take_rows_back_go_into_sinks_that_keep_each_row() -> None:
    back: dict[str, Any] = {**AGAIN, "results": "retracting"}
    check(None, **back)
    visits(None, **back)
    for make in (check, visits):
        with raises(ConfigError, "retractions-replaced"):
            make(Upsert(OF_WINDOWS, ("emission",), "retracts"), **back)


def test_early_results_go_into_sinks_that_replace_them() -> None:
    early: dict[str, Any] = {"trigger": EachEpoch()}
    panes: dict[str, Any] = {"trigger": Every("5 seconds")}
    for given in (early, panes):
        check(Upsert(OF_WINDOWS, ("emission",)), **given)
        check(None, **given, results="discarding")
        check(None, **given, results="retracting")
        with raises(ConfigError, "update-into-appends"):
            check(None, **given)
        with raises(ConfigError, "window-parts-replaced"):
            check(Upsert(OF_WINDOWS, ("emission",)), **given, results="discarding")
        with raises(ConfigError, "retractions-replaced"):
            check(Upsert(OF_WINDOWS, ("emission",)), **given, results="retracting")
    for order in ((), ("onefold_epoch",)):
        check(Upsert(OF_WINDOWS, order), **early)  # one an epoch
        with raises(ConfigError, "early-results-order"):
            check(Upsert(OF_WINDOWS, order), **panes)
        with raises(ConfigError, "early-results-order"):  # it has lost their numbers
            check(Upsert(OF_WINDOWS, order), lambda of: of.select(*OF_WINDOWS, "n"), **panes)
    visits(Upsert(OF_WINDOWS, ("emission",), "retracts"), **early)
    with raises(ConfigError, "session-rows-stale"):
        visits(Upsert(OF_WINDOWS, ("emission",)), **early)
