"""What of a flow Spark cannot run is refused when it starts, by the operator's uid; no Spark is needed to say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest
from harness.errors import raises

from onefold.core import CheckpointMismatch, ConfigError
from onefold.core.contract import EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.dataflow.chains import Plan, plan
from onefold.flow import (
    BroadcastProcessor,
    Flow,
    KeyedStream,
    StatefulProcessor,
    Stream,
    Tumbling,
    Watermarks,
    bounded,
    count,
    ingestion,
    max_,
    monotonic,
    sum_,
)
from onefold.flow.graph.nodes import Graph
from onefold.flow.processing.mechanisms import marked
from onefold.sinks import PostgresSink
from onefold.sources import FileSource, KafkaSource, PostgresSource
from onefold.spark.flows.flow_writer import FlowWriter, start
from onefold.spark.flows.refusals import check_flow, check_kept, check_reached

NO_SPARK: Any = SimpleNamespace()


def source(topic: str = "orders", schema: str = "id long, account long", **more: Any) -> KafkaSource:
    return KafkaSource(topic, bootstrap_servers="localhost:1", format="json", schema=schema, **more)


class Asking(StatefulProcessor):
    """Asks for the state that it is made with."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask

    def init(self, handle: Any) -> None:
        self.ask(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del key, rows, timerValues
        return ()


class Rules(BroadcastProcessor):
    def init(self, handle: Any) -> None:
        self.rules = handle.getBroadcastState("rules", "id long", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del key, rows, timerValues
        return ()

    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: Any) -> None:  # noqa: N802, N803
        del rows, timerValues


def flow_with(use: Callable[[KeyedStream], Stream], given: Any = None) -> Flow:
    flow = Flow("shop")
    orders = flow.source(given or source(), uid="orders")
    use(orders.key_by("account")).sink(PostgresSink("postgresql://localhost/x", "t"))
    return flow


def processed(ask: Callable[[Any], Any]) -> Flow:
    return flow_with(lambda keyed: keyed.process(Asking(ask), "id long", uid="visits"))


def refusal(flow: Flow) -> str:
    with pytest.raises(ConfigError) as raised:
        start(flow.graph(), NO_SPARK, checkpoint="/nowhere")
    assert raised.value.code == "flow-not-on-spark"
    return raised.value.message


def test_spark_connect_is_refused_also_where_spark_makes_the_rows() -> None:
    flow = Flow("shop")
    rows = flow.source(source(), uid="orders").spark_sql("SELECT id FROM source", schema="id long")
    rows.sink(PostgresSink("postgresql://localhost/x", "t"))
    assert "Spark Connect" in refusal(flow)


def test_state_by_key_is_not_refused() -> None:
    for ask in (
        lambda handle: handle.getValueState("s", "id long"),
        lambda handle: handle.getListState("s", "id long"),
        lambda handle: handle.getMapState("s", "id long", "id long"),
        lambda handle: handle.getBytesState("s"),
    ):
        check_flow(processed(ask).graph())


def test_timers_of_event_time_are_not_refused() -> None:
    flow = Flow("shop")
    orders = flow.source(source(schema="id long, account long, at timestamp"), uid="orders", watermarks=monotonic("at"))
    made = orders.key_by("account").process(Asking(lambda _: None), "id long", uid="visits", timers="event")
    made.sink(PostgresSink("postgresql://localhost/x", "t"))
    check_flow(flow.graph())


def test_windows_are_not_refused() -> None:
    flow = Flow("shop")
    orders = flow.source(source(schema="id long, account long, at timestamp"), uid="orders", watermarks=monotonic("at"))
    made = orders.key_by("account").window(Tumbling("1 minute")).aggregate(uid="minutes", orders=count())
    made.sink(PostgresSink("postgresql://localhost/x", "t"))
    check_flow(flow.graph())


def test_sources_that_wait_for_each_other_are_refused() -> None:
    flow = Flow("f")
    of = [flow.source(source(name, "id long, at timestamp"), uid=name, watermarks=monotonic("at")) for name in "ab"]
    flow.align("5 minutes", *of)
    of[0].union(of[1]).key_by("id").window(Tumbling("1 minute")).aggregate(uid="n", n=count()).sink(
        PostgresSink("postgresql://localhost/none", table="t")
    )
    with raises(ConfigError, "flow-not-on-spark", "'a'", "align()"):
        check_flow(flow.graph())


@pytest.mark.parametrize(
    ("watermarks", "what"),
    [
        (ingestion(), "ingestion()"),
        (bounded("at", "1 second", when_silent="advance"), "when_silent='advance'"),
    ],
    ids=["ingestion", "advance"],
)
def test_watermarks_that_move_without_records_are_refused(watermarks: Watermarks, what: str) -> None:
    flow = Flow("shop")
    orders = flow.source(source(schema="id long, account long, at timestamp"), uid="orders", watermarks=watermarks)
    made = orders.key_by("account").window(Tumbling("1 minute")).aggregate(uid="minutes", orders=count())
    made.sink(PostgresSink("postgresql://localhost/x", "t"))
    with raises(ConfigError, "flow-not-on-spark", "'orders'", what):
        check_flow(flow.graph())


def test_state_of_no_key_is_refused() -> None:
    said = refusal(processed(lambda handle: handle.getOperatorListState("seen", "id long")))
    assert "'visits' has 'seen', a state of no key" in said
    assert "flow.run" in said


def test_a_processor_that_is_told_of_snapshots_is_refused() -> None:
    class Told(Asking):
        def onSnapshot(self) -> None: ...  # noqa: N802

    told = Told(lambda _: None)
    assert "'visits' has onSnapshot()" in refusal(flow_with(lambda keyed: keyed.process(told, "id long", uid="visits")))


def test_a_broadcast_stream_is_refused() -> None:
    flow = Flow("shop")
    orders = flow.source(source(), uid="orders")
    both = orders.key_by("account").connect(orders.broadcast())
    both.process(Rules(), "id long", uid="over").sink(PostgresSink("postgresql://localhost/x", "t"))
    assert "'over' connects with a broadcast stream" in refusal(flow)


def test_a_state_of_earlier_code_cannot_be_deleted() -> None:
    assert "'visits' deletes the state 'old' of earlier code" in refusal(processed(lambda h: h.deleteIfExists("old")))


def test_operators_with_state_stay_as_they_were_when_the_flow_began() -> None:
    pins: dict[str, str] = {}

    def pin(name: str, find: Callable[[], str]) -> str:
        return pins.setdefault(name, find())

    def begun(*uids: str) -> Plan:
        stream: Any = None
        flow = Flow("shop")
        orders = flow.source(source(), uid="orders")
        for uid in uids:
            stream = (orders if stream is None else stream).key_by("account").aggregate(uid=uid, n=count())
            stream = stream.select("account", id=pc.field("n"))
        settings: Any = {"mode": "upsert", "key": "account", "order": "onefold_epoch"}
        stream.sink(PostgresSink("postgresql://localhost/x", "t", **settings))
        return plan(flow.graph(), sinks_apart=True)

    check_kept(pin, begun("a", "b"))
    check_kept(pin, begun("a", "b"))
    for uids in (("a",), ("a", "c"), ("b", "a"), ("a", "b", "c")):
        with raises(CheckpointMismatch, "state-operators-changed") as raised:
            check_kept(pin, begun(*uids))
        assert raised.value.code == "state-operators-changed"


@pytest.mark.parametrize(
    "changed",
    [
        {"key": "decimal(12,3)"},
        {"number": "double"},
        {"of": "decimal(5,2)"},
        {"of": "struct<y: long, x: long>"},
        {"aggregate": max_("number")},
    ],
    ids=str,
)
def test_state_is_not_read_as_that_of_other_keys_and_types(changed: dict[str, Any]) -> None:
    pins: dict[str, str] = {}

    def pin(name: str, find: Callable[[], str]) -> str:
        assert len(name) <= 100, "names of pins have a limit"
        return pins.setdefault(name, find())

    def begun(
        key: str = "decimal(12,2)",
        number: str = "long",
        of: str = "struct<x: long, y: long>",
        aggregate: Any = sum_("number"),  # noqa: B008  # frozen
    ) -> Plan:
        flow = Flow("shop")
        rows = flow.source(source(schema=f"key {key}, number {number}"), uid="orders").key_by("key")
        asking = Asking(lambda handle: handle.getMapState("seen", f"of {of}", "n long"))
        rows.process(asking, "id long", uid="visits").sink(PostgresSink("postgresql://localhost/x", "t"))
        settings: Any = {"mode": "upsert", "key": "key", "order": "onefold_epoch"}
        rows.aggregate(uid="totals", n=aggregate).sink(
            PostgresSink("postgresql://localhost/x", "u", name="u", **settings)
        )
        return plan(flow.graph(), sinks_apart=True)

    check_kept(pin, begun())
    check_kept(pin, begun())
    with raises(CheckpointMismatch, "state-operators-changed") as raised:
        check_kept(pin, begun(**changed))
    assert raised.value.code == "state-operators-changed"


def test_a_folder_of_this_machine_is_refused_where_tasks_run_elsewhere() -> None:
    def reading(path: str) -> Graph:
        flow = Flow("shop")
        files: Any = FileSource(path, format="json", schema="id long")
        flow.source(files.bounded(), uid="in").sink(PostgresSink("postgresql://localhost/x", "t"))
        return flow.graph()

    check_reached(reading("/data/in"), None)
    check_reached(reading("s3://bucket/in"), "the master is 'spark://a:7077'")
    for path in ("/data/in", "file:///data/in"):
        with pytest.raises(ConfigError) as raised:
            check_reached(reading(path), "the master is 'spark://a:7077'")
        assert raised.value.code == "flow-not-on-spark"
        assert "'in' reads a folder of this machine" in raised.value.message


def test_spark_connect_is_refused() -> None:
    assert "Spark Connect" in refusal(processed(id))


@pytest.mark.parametrize(
    ("given", "trigger", "ends"),
    [
        (PostgresSource("postgresql://localhost/x", "t", schema="id long, account long"), None, True),
        (
            PostgresSource("postgresql://localhost/x", "t", schema="id long, account long"),
            {"processingTime": "1 s"},
            False,
        ),
        (source(), {"availableNow": True}, True),
        (source(), None, False),
    ],
)
def test_a_query_of_tables_alone_ends_by_itself_unless_a_trigger_says_otherwise(
    given: Any, trigger: Any, ends: bool
) -> None:
    writer = FlowWriter(
        flow_with(lambda keyed: keyed.process(Asking(lambda _: None), "id long", uid="n"), given).graph()
    )
    with raises(ConfigError, "flow-not-on-spark"):
        writer.start(NO_SPARK, "/nowhere", trigger)
    assert writer.ends is ends


def test_a_flow_whose_state_another_mechanism_has_is_not_begun_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Positions.of({"t/0": 1})
    record = EpochRecord("p", 1, 1, EpochState.COMPLETE, Range(at, at), 0, "p", 1, marked("0123", "ack"))
    session: Any = SimpleNamespace(
        prepare_workers=lambda *_: None, refuse_second_query=lambda _: None, facts=lambda: StoreFacts("s", 1, record)
    )
    monkeypatch.setattr(FlowWriter, "_session", lambda _: session)
    monkeypatch.setattr(FlowWriter, "_check_access", lambda *_: None)
    writer = FlowWriter(flow_with(lambda keyed: keyed.process(Asking(lambda _: None), "id long", uid="n")).graph())
    with raises(ConfigError, "mechanism-changed", "'ack'"):
        writer._splits(SimpleNamespace(streams=SimpleNamespace(active=[])), {})  # type: ignore[arg-type]
