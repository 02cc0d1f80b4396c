"""Which operators of a flow depend on the order of their rows, before sinks whose rows show early."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, orders
from harness.errors import raises

from onefold.core import ConfigError, SinkKind, Upsert
from onefold.flow import (
    Aggregate,
    BroadcastProcessor,
    Flow,
    StatefulProcessor,
    Stream,
    count,
    first,
    last,
    max_,
    mean,
    min_,
    sum_,
)
from onefold.flow.graph.order import check_same_again, in_fixed_order, order_dependent

SINK = AnySink("cells", SinkKind.WRITE_THROUGH, replaces=Upsert(("account",)))


class Numbered(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        del key, rows, timerValues
        return ()


class Shared(Numbered):
    def init(self, handle: Any) -> None:
        self.seen = handle.getOperatorListState("seen", "n long")


class Ruled(BroadcastProcessor):
    def init(self, handle: Any) -> None:
        self.rules = handle.getBroadcastState("rules", "account long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        del key, rows, timerValues
        return ()

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
        del rows, timerValues


def dependent(make: Callable[[Stream], Stream]) -> list[str]:
    flow, stream = orders()
    make(stream).sink(SINK)
    graph = flow.graph()
    (sink,) = [node for node, _ in graph.writings()]
    return [node.name for node in order_dependent(graph, sink)]


@pytest.mark.parametrize(
    "aggregates",
    [
        {"a": count()},
        {"a": min_("weight"), "b": max_("weight")},
        {"a": sum_("amount"), "b": mean("amount"), "c": mean("id")},
    ],
)
def test_what_is_of_the_set_of_rows_depends_on_no_order(aggregates: dict[str, Aggregate]) -> None:
    assert dependent(lambda stream: stream.key_by("account").aggregate(uid="of", **aggregates)) == []


@pytest.mark.parametrize("aggregate", [first("id"), last("id"), sum_("weight"), mean("weight")], ids=str)
def test_first_last_and_sums_of_doubles_depend_on_the_order(aggregate: Aggregate) -> None:
    assert dependent(lambda stream: stream.key_by("account").aggregate(uid="of", n=count(), a=aggregate)) == ["of"]


def test_functions_of_the_users_with_state_depend_on_the_order_and_row_by_row_ones_do_not() -> None:
    assert (
        dependent(lambda s: s.filter(pc.field("id") > 1).select("id", "account").union(s.select("id", "account"))) == []
    )
    assert dependent(lambda s: s.key_by("account").reduce(max, uid="of")) == ["of"]
    assert dependent(lambda s: s.key_by("account").process(Numbered(), "account long", uid="of")) == ["of"]
    rules = lambda s: s.key_by("account").connect(s.broadcast()).process(Ruled(), "account long", uid="of")  # noqa: E731
    assert dependent(rules) == ["of"]


def flow_of(processor: StatefulProcessor) -> Flow:
    flow, stream = orders()
    made = stream.key_by("account").process(processor, "account long", uid="of")
    made.sink(SINK)
    stream.sink(AnySink("other"))
    return flow


def test_only_what_leads_to_a_sink_that_writes_through_takes_rows_in_order() -> None:
    graph = flow_of(Numbered()).graph()
    named = {node.name for node in graph.nodes if node.number in in_fixed_order(graph, ["cells"])}
    assert named == {"orders", "of", "cells"}
    assert in_fixed_order(graph, ["other"]) == in_fixed_order(graph, []) == frozenset()


def test_state_that_a_restart_shares_out_anew_is_refused_before_a_sink_that_writes_through() -> None:
    graph = flow_of(Shared()).graph()
    with raises(ConfigError, "write-through-order", "'of'", "'seen'", "'cells'"):
        check_same_again(graph, ["cells"])
    check_same_again(graph, ["other"])
    check_same_again(flow_of(Numbered()).graph(), ["cells"])
