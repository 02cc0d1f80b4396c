"""Processors in a flow: what they may ask for, which is learned when the flow is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource, orders
from harness.errors import raises

from onefold.core import ConfigError
from onefold.flow import BroadcastProcessor, Edge, ProcessorHandle, Shipping, StatefulProcessor, TimerValues, Ttl
from onefold.flow.graph.operators import Connecting, Processing
from onefold.flow.processing.declaring import DeclaredKind, StateDeclaration, declared_states

SEEN = pa.schema({"n": pa.int64()})


class Counting(StatefulProcessor):
    def init(self, handle: ProcessorHandle) -> None:
        self.closed = False
        self.seen = handle.getValueState("seen", "n long")
        self.items = handle.getListState("items", SEEN)
        self.by_name = handle.getMapState("by_name", "name string", "n long")
        self.raw = handle.getBytesState("raw")
        self.workers = handle.getOperatorListState("workers", "n long", "union")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]:
        raise NotImplementedError(key, rows, timerValues)


class Judging(BroadcastProcessor):
    def init(self, handle: ProcessorHandle) -> None:
        self.rules = handle.getBroadcastState("rules", "account long", "limit long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]:
        raise NotImplementedError(key, rows, timerValues)

    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: TimerValues) -> None:
        raise NotImplementedError(rows, timerValues)


class Asking(StatefulProcessor):
    def __init__(self, asks: Any) -> None:
        self.asks = asks

    def init(self, handle: ProcessorHandle) -> None:
        self.asks(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]:
        raise NotImplementedError(key, rows, timerValues)


def test_a_process_node_says_which_states_its_processor_asks_for() -> None:
    flow, stream = orders()
    processor = Counting()
    made = stream.key_by("account").process(
        processor, "account long, n long", uid="counting", sides={"late": "account long"}
    )
    made.sink(AnySink())
    made.side("late").sink(AnySink("late"))
    node = flow.graph().nodes[1]
    assert node.inputs == (Edge(0, Shipping.KEYED, ("account",)),)
    assert (node.uid, node.schema, node.sides) == (
        "counting",
        pa.schema({"account": pa.int64(), "n": pa.int64()}),
        (("late", pa.schema({"account": pa.int64()})),),
    )
    assert isinstance(node.operator, Processing) and node.operator.processor is processor
    assert node.operator.states == (
        StateDeclaration("seen", DeclaredKind.VALUE, SEEN),
        StateDeclaration("items", DeclaredKind.LIST, SEEN),
        StateDeclaration("by_name", DeclaredKind.MAP, SEEN, pa.schema({"name": pa.string()})),
        StateDeclaration("raw", DeclaredKind.BYTES, None),
        StateDeclaration("workers", DeclaredKind.OPERATOR_UNION, SEEN),
    )


def test_the_processor_that_runs_is_not_the_one_that_was_asked() -> None:
    processor = Counting()
    declared_states(processor, "it")
    assert vars(processor) == {}


def test_a_connected_node_has_a_keyed_and_a_broadcast_input() -> None:
    flow, stream = orders()
    rules = flow.source(AnySource("rules"), uid="rules").select("account")
    stream.key_by("account").connect(rules.broadcast()).process(Judging(), "id long", uid="judging").sink(AnySink())
    node = flow.graph().nodes[3]
    assert node.inputs == (Edge(0, Shipping.KEYED, ("account",)), Edge(2, Shipping.BROADCAST))
    assert isinstance(node.operator, Connecting) and node.operator.key == ("account",)
    assert [state.kind for state in node.operator.states] == [DeclaredKind.BROADCAST]


REFUSED = {
    "two states of one name": (
        lambda h: (h.getValueState("a", "n long"), h.getListState("a", "n long")),
        "state-name-twice",
    ),
    "a schema that is none": (lambda h: h.getValueState("a", "n longer"), "option-value"),
    "a third redistribution": (lambda h: h.getOperatorListState("a", "n long", "merge"), "option-value"),
    "broadcast state": (lambda h: h.getBroadcastState("a", "n long", "n long"), "broadcast-state-unconnected"),
    "a state used at once": (lambda h: h.getValueState("a", "n long").get(), "state-used-early"),
    "a timer": (lambda h: h.registerTimer(1), "state-used-early"),
    "its timers": (lambda h: h.listTimers(), "state-used-early"),
    "a timer that goes": (lambda h: h.deleteTimer(1), "state-used-early"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_processor_is_refused_that_asks_in_init_for(what: str) -> None:
    asks, code = REFUSED[what]
    _, stream = orders()
    with pytest.raises(ConfigError) as refused:
        stream.key_by("id").process(Asking(asks), "id long", uid="asking")
    assert refused.value.code == code


def test_a_state_that_is_deleted_is_not_kept() -> None:
    states = declared_states(Asking(lambda h: (h.getValueState("a", "n long"), h.deleteIfExists("a"))), "it")
    assert [(state.name, state.kind) for state in states] == [("a", DeclaredKind.DELETED)]


@pytest.mark.parametrize("processor", [Judging(), Counting, None])
def test_process_refuses_what_is_no_processor_for_it(processor: Any) -> None:
    _, stream = orders()
    with raises(ConfigError, "processor-kind"):
        stream.key_by("id").process(processor, "id long", uid="x")


def test_connect_refuses_a_processor_without_broadcast() -> None:
    _, stream = orders()
    with raises(ConfigError, "processor-kind"):
        stream.key_by("id").connect(stream.broadcast()).process(Counting(), "id long", uid="x")  # type: ignore[arg-type]


def test_a_time_to_live_is_declared_in_milliseconds_as_on_spark_or_as_a_ttl() -> None:
    (one, two) = declared_states(
        Asking(
            lambda handle: (
                handle.getValueState("one", "id long", 1_000),
                handle.getMapState("two", "id long", "id long", ttl=Ttl("1 day", clock="event")),
            )
        ),
        "'visits'",
    )
    assert (one.ttl, two.ttl) == (Ttl("1000 milliseconds"), Ttl("1 day", clock="event"))


@pytest.mark.parametrize(
    "asks",
    [
        lambda handle: handle.getValueState("last", "id long", 0),
        lambda handle: handle.getListState("last", "id long", ttlDurationMs="1 day"),
        lambda handle: handle.getMapState("last", "id long", "id long", 1_000, Ttl("1 day")),
        lambda handle: handle.getBytesState("last", ttl=1_000),
    ],
)
def test_a_time_to_live_that_is_none_is_refused_where_the_flow_is_built(asks: Any) -> None:
    with raises(ConfigError, "option-value", "'last'"):
        declared_states(Asking(asks), "'visits'")


@pytest.mark.parametrize("given", [("0 days",), ("1 moon",), ("1 day", "read"), ("1 day", "write", "never")])
def test_a_ttl_says_what_it_takes(given: Any) -> None:
    with raises(ConfigError, "option-value"):
        Ttl(*given)


def test_event_time_needs_watermarks() -> None:
    _, stream = orders()
    with raises(ConfigError, "watermarks-missing"):
        stream.key_by("account").reduce(lambda kept, _: kept, uid="x", ttl=Ttl("1 day", clock="event"))
