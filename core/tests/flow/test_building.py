"""What a flow is checked for when it is built, and the graph that it makes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import ORDERS, AnySink, AnySource, orders, sink_node

from onefold.core import ConfigError, Upsert
from onefold.core.writing.dead_letters import BAD_COLUMNS, LETTER_COLUMNS
from onefold.flow import Edge, Flow, Shipping, Side, Stream, count, sum_
from onefold.flow.graph.operators import Aggregating, Reading, Selecting, Writing

LATE = pa.schema({"id": pa.int64()})
BY_ACCOUNT = Upsert(("account",), ("onefold_epoch",))


def sides_of(batch: pa.RecordBatch) -> Any:
    yield batch
    yield Side("late", batch.select(["id"]))


def refusal(does: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ConfigError) as refused:
        does()
    return refused.value.code, refused.value.message


def test_a_graph_has_the_nodes_in_order_with_their_schemas_and_ways() -> None:
    flow, stream = orders()
    paid = stream.filter(pc.field("amount") > Decimal(0))
    totals = paid.key_by("account").aggregate(uid="totals", total=sum_("amount"), orders=count())
    totals.sink(AnySink("totals", replaces=BY_ACCOUNT))
    paid.sink(AnySink("paid"))
    graph = flow.graph()
    assert [node.name for node in graph.nodes] == ["orders", "filter-1", "totals", "totals", "paid"]
    assert [node.number for node in graph.nodes] == [0, 1, 2, 3, 4]
    assert graph.nodes[2].inputs == (Edge(1, Shipping.KEYED, ("account",)),)
    assert isinstance(graph.nodes[2].operator, Aggregating)
    assert graph.nodes[2].schema == pa.schema(
        {"account": pa.int64(), "total": pa.decimal128(22, 2), "orders": pa.int64()}
    )
    assert graph.nodes[1].schema == ORDERS
    assert [(node.name, edge.shipping) for node, edge in graph.outputs(graph.nodes[1])] == [
        ("totals", Shipping.KEYED),
        ("paid", Shipping.FORWARD),
    ]


def test_a_graph_of_functions_that_pickle_pickles() -> None:
    flow, stream = orders()
    stream.filter(pc.field("id") > 1).select("id", twice=pc.field("id") * 2).sink(AnySink())
    stream.map_batches(sides_of, sides={"late": LATE}).side("late").sink(AnySink("late"))
    stream.key_by("account").aggregate(uid="n", n=count()).sink(AnySink("n", replaces=BY_ACCOUNT))
    nodes = pickle.loads(pickle.dumps(flow._nodes.made))
    assert [node.schema for node in nodes] == [node.schema for node in flow._nodes.made]


def test_columns_that_are_taken_as_they_are_keep_what_is_said_of_them() -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"unit": "piece"}), ORDERS.field("note")])
    _, stream = orders(columns)
    schema = stream.with_columns(more=pc.field("id") + 1, also=pc.field("id")).schema
    assert schema.field("id").equals(columns.field("id"), check_metadata=True)
    assert schema.field("also").equals(columns.field("id").with_name("also"), check_metadata=True)
    assert schema.field("more") == pa.field("more", pa.int64())


def test_with_columns_replaces_in_place_and_appends() -> None:
    _, stream = orders()
    schema = stream.with_columns(amount=pc.field("weight"), more=pc.field("note")).schema
    assert schema.names == [*ORDERS.names, "more"]
    assert schema.field("amount").type == pa.float64()


def test_a_source_of_dead_letters_has_them_as_a_side_output_and_its_sink_gets_them_with_their_epoch() -> None:
    flow = Flow("shop")
    flow.source(AnySource(on_error="dead_letter"), uid="orders", dead_letters=AnySink("bad")).sink(AnySink())
    graph = flow.graph()
    assert isinstance(graph.nodes[0].operator, Reading)
    assert graph.nodes[0].sides == (("bad", BAD_COLUMNS),)
    letters = sink_node(graph, "bad")
    assert letters.operator == Writing(AnySink("bad"), is_letters=True)
    assert letters.inputs == (Edge(0, output="bad"),)
    assert graph.written(letters) == LETTER_COLUMNS


def test_a_runtime_reads_a_source_as_the_pipeline_found_it_first() -> None:
    flow, stream = orders()
    stream.sink(AnySink())
    graph = flow.graph()
    ((node, reading),) = graph.readings()
    assert reading.source == AnySource()
    assert graph.resolved(node, lambda _, find: find()) == AnySource(is_resolved=True)
    before: Any = pa.schema({"id": pa.string()})
    assert refusal(lambda: graph.resolved(node, lambda *_: before))[0] == "source-schema-changed"


def test_bad_records_may_be_a_stream() -> None:
    flow = Flow("shop")
    stream = flow.source(AnySource(on_error="dead_letter"), uid="orders")
    stream.sink(AnySink())
    stream.side("bad").select("value", "reason").sink(AnySink("bad"))
    graph = flow.graph()
    assert graph.written(sink_node(graph, "bad")).names == ["value", "reason"]


def test_a_sink_that_wants_its_key_in_one_task_gets_a_keyed_edge() -> None:
    flow, stream = orders()
    stream.filter(pc.field("id") > 1).sink(AnySink(by=("account", "id")))
    edge = sink_node(flow.graph(), "archive").inputs[0]
    assert edge == Edge(1, Shipping.KEYED, ("account", "id"))


@pytest.mark.parametrize(
    ("by", "shipping"),
    [(("account",), Shipping.FORWARD), (("k",), Shipping.KEYED), (("account", "n"), Shipping.FORWARD)],
)
def test_rows_that_are_in_one_task_by_the_sinks_key_already_are_not_exchanged_again(
    by: tuple[str, ...], shipping: Shipping
) -> None:
    flow, stream = orders()
    counted = stream.key_by("account").aggregate(uid="n", n=count(), k=count("id"))
    counted.filter(pc.field("n") > 1).select("n", "k", account=pc.field("account")).sink(
        AnySink(by=by, replaces=BY_ACCOUNT)
    )
    assert sink_node(flow.graph(), "archive").inputs[0].shipping is shipping


def test_a_sink_that_wants_its_key_in_one_task_gets_it_behind_rebalance() -> None:
    flow, stream = orders()
    stream.rebalance().sink(AnySink("raw", by=("id",)))
    counted = stream.key_by("account").aggregate(uid="n", n=count())
    counted.rebalance().filter(pc.field("n") > 1).sink(AnySink("n", by=("account",), replaces=BY_ACCOUNT))
    graph = flow.graph()
    assert sink_node(graph, "raw").inputs[0] == Edge(0, Shipping.KEYED, ("id",))
    assert [node.inputs[0].shipping for node, _ in graph.writings()] == [Shipping.KEYED, Shipping.KEYED]


def test_a_sink_in_place_gets_its_rows_as_they_come() -> None:
    flow, stream = orders()
    stream.sink(AnySink(by=("id",), stays=True))
    assert sink_node(flow.graph(), "archive").inputs[0].shipping is Shipping.FORWARD


def test_a_sink_whose_order_names_the_epoch_gets_its_number() -> None:
    flow, stream = orders()
    renamed = stream.key_by("account").aggregate(uid="n", n=count()).select("n", owner=pc.field("account"))
    renamed.sink(AnySink(replaces=Upsert(("owner",), ("onefold_epoch", "n"))))
    graph = flow.graph()
    node = sink_node(graph, "archive")
    assert isinstance(node.operator, Writing) and node.operator.is_numbered
    assert graph.written(node).names == ["n", "owner", "onefold_epoch"]


@pytest.mark.parametrize(
    ("replaces", "code"),
    [
        (None, "update-into-appends"),
        (Upsert(("account",), ("n",)), "update-without-epoch"),
        (Upsert(("note",)), "update-by-values"),
        (Upsert(("account", "n")), "update-by-values"),
        (Upsert(("account",), ("n", "onefold_epoch")), "update-by-values"),
    ],
)
@pytest.mark.parametrize("makes", [lambda s: s, lambda s: s.filter(pc.field("n") > 1).select("n", "account", "note")])
def test_changing_rows_into_a_sink_that_would_keep_older_ones_are_refused(
    replaces: Upsert | None, code: str, makes: Callable[[Stream], Stream]
) -> None:
    _, stream = orders()
    counted = stream.key_by("account").aggregate(uid="n", n=count(), note=count("note"))
    assert refusal(lambda: makes(counted).sink(AnySink(replaces=replaces)))[0] == code


def test_a_key_that_lacks_a_column_of_the_groups_is_refused() -> None:
    _, stream = orders()
    counted = stream.key_by("account", "id").aggregate(uid="n", n=count())
    assert refusal(lambda: counted.sink(AnySink(replaces=Upsert(("account",)))))[0] == "update-key-too-small"


def test_an_order_may_have_columns_of_the_groups_before_the_epoch_as_on_spark() -> None:
    """The newest id of each account, and of that the newest row: both tell groups apart."""
    flow, stream = orders()
    counted = stream.key_by("account", "id").aggregate(uid="n", n=count())
    counted.sink(AnySink(replaces=Upsert(("account",), ("id", "onefold_epoch"))))
    assert flow.graph().written(sink_node(flow.graph(), "archive")).names[-1] == "onefold_epoch"


def test_a_union_is_nullable_where_one_of_its_streams_is() -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    flow, stream = orders()
    other = flow.source(AnySource("more", columns), uid="more")
    assert stream.select("id").union(other).schema == pa.schema({"id": pa.int64()})
    assert other.union(other.filter(pc.field("id") > 0)).schema == columns


def test_rebalance_and_broadcast_are_ways_of_the_next_edge() -> None:
    flow, stream = orders()
    stream.rebalance().select("id").sink(AnySink())
    assert flow.graph().nodes[1].inputs == (Edge(0, Shipping.REBALANCE),)


def views(flow: Flow) -> Stream:
    columns = pa.schema({"id": pa.int64(), "notes": pa.list_(pa.string_view())})
    return flow.source(AnySource("views", columns), uid="views")


REFUSED: dict[str, tuple[Callable[[Flow, Stream], object], str]] = {
    "a column that is not there": (lambda _, s: s.filter(pc.field("amout") > Decimal(0)), "no-such-column"),
    "a name that is not there": (lambda _, s: s.select("idd"), "no-such-column"),
    "a key that is not there": (lambda _, s: s.key_by("acount"), "no-such-column"),
    "an aggregate's column that is not there": (
        lambda _, s: s.key_by("id").aggregate(uid="x", x=sum_("amout")),
        "no-such-column",
    ),
    "types that do not go together": (lambda _, s: s.filter(pc.field("note") > 1), "expression-type"),
    "a decimal and an int": (lambda _, s: s.filter(pc.field("amount") > 0), "expression-type"),
    "a filter of text that is a view": (lambda f, _: views(f).filter(pc.field("id") > 1), "column-not-filterable"),
    "an exchange of text that is a view": (
        lambda f, _: views(f).key_by("id").reduce(max, uid="x"),
        "column-not-filterable",
    ),
    "a sink's exchange of such text": (lambda f, _: views(f).rebalance().sink(AnySink()), "column-not-filterable"),
    "a condition that is none": (lambda _, s: s.filter(pc.field("id")), "expression-type"),
    "an aggregate as an expression": (lambda _, s: s.select(x=pc.sum(pc.field("id"))), "expression-type"),
    "a number as an expression": (lambda _, s: s.with_columns(x=1), "expression-type"),
    "no column": (lambda _, s: s.select(), "option-value"),
    "a column twice": (lambda _, s: s.select("id", id=pc.field("id")), "option-value"),
    "a name that is no text": (lambda _, s: s.select(pc.field("id")), "option-value"),
    "a function that fails without rows": (lambda _, s: s.map_batches(lambda b: b["x"]), "function-fails-empty"),
    "a function that gives nothing without rows": (lambda _, s: s.map_batches(lambda _: []), "schema-missing"),
    "a function of another schema": (lambda _, s: s.map_batches(lambda b: b, "id long"), "function-schema"),
    "a function that gives no batch": (lambda _, s: s.map_batches(lambda _: [1], "id long"), "function-schema"),
    "a side that was not declared": (lambda _, s: s.map_batches(sides_of), "side-not-declared"),
    "a side that there is not": (lambda _, s: s.side("late"), "side-not-declared"),
    "a schema that is none": (lambda _, s: s.flat_map(lambda row: [row], "id longer"), "option-value"),
    "a schema of another kind": (lambda _, s: s.flat_map(lambda row: [row], 5), "schema-missing"),
    "a schema with a column twice": (lambda _, s: s.flat_map(lambda row: [row], "a int, a int"), "column-name-twice"),
    "a key twice": (lambda _, s: s.key_by("id", "id"), "option-value"),
    "no key": (lambda _, s: s.key_by(), "option-value"),
    "a float as key": (lambda _, s: s.key_by("weight"), "key-type"),
    "nanoseconds as key": (lambda _, s: s.select(at=pc.scalar(0).cast(pa.timestamp("ns"))).key_by("at"), "key-type"),
    "a time of nanoseconds as key": (
        lambda _, s: s.select(at=pc.scalar(0).cast(pa.time64("ns"))).key_by("at"),
        "key-type",
    ),
    "durations of nanoseconds as key": (
        lambda _, s: s.select(at=pc.scalar(0).cast(pa.duration("ns"))).key_by("at"),
        "key-type",
    ),
    "an hour that comes twice as key": (
        lambda _, s: s.select(at=pc.scalar(0).cast(pa.timestamp("us", "Europe/Berlin"))).key_by("at"),
        "key-type",
    ),
    "state without uid": (lambda _, s: s.key_by("id").reduce(lambda a, _: a), "uid-missing"),
    "a uid twice": (lambda _, s: s.key_by("id").aggregate(uid="orders", n=count()), "uid-twice"),
    "a uid with a blank": (lambda _, s: s.key_by("id").aggregate(uid="a b", n=count()), "uid-value"),
    "no aggregate": (lambda _, s: s.key_by("id").aggregate(uid="x"), "option-missing"),
    "an aggregate that is none": (lambda _, s: s.key_by("id").aggregate(uid="x", n="count"), "option-value"),
    "an aggregate that the type lacks": (
        lambda _, s: s.key_by("id").aggregate(uid="x", n=sum_("note")),
        "aggregate-type",
    ),
    "an aggregate by a key's name": (lambda _, s: s.key_by("id").aggregate(uid="x", id=count()), "column-name-taken"),
    "other columns": (lambda _, s: s.union(s.select("id")), "union-schemas"),
    "columns in another order": (lambda _, s: s.select("id", "note").union(s.select("note", "id")), "union-schemas"),
    "another flow's stream": (lambda _, s: s.union(orders()[1]), "stream-of-another-flow"),
    "another flow's broadcast stream": (
        lambda _, s: s.key_by("id").connect(orders()[1].broadcast()),
        "stream-of-another-flow",
    ),
    "a stream that is not broadcast": (lambda _, s: s.key_by("id").connect(s), "stream-not-broadcast"),
    "a source without uid": (lambda f, _: f.source(AnySource("b")), "uid-missing"),
    "a source twice": (lambda f, _: f.source(AnySource(), uid="b"), "source-twice"),
    "a source of equal columns": (
        lambda f, _: f.source(AnySource("b", pa.schema([ORDERS.field(0), ORDERS.field(0)])), uid="b"),
        "column-name-twice",
    ),
    "dead letters that do not come": (
        lambda f, _: f.source(AnySource("b"), uid="b", dead_letters=AnySink()),
        "dead-letters-mismatch",
    ),
    "two sinks of one name": (lambda _, s: [s.sink(AnySink()), s.sink(AnySink())], "sink-names"),
    "a sink by the state's name": (lambda _, s: s.sink(AnySink("state")), "sink-names"),
    "a sink's key that is not there": (lambda _, s: s.sink(AnySink(by=("ids",))), "no-such-column"),
    "a sink's key of floats": (lambda _, s: s.sink(AnySink(by=("weight",))), "key-type"),
    "a sink of order after rebalance": (
        lambda _, s: s.rebalance().map_batches(lambda b: b).union(s).sink(AnySink(stays=True)),
        "sink-rebalanced",
    ),
    "a flow without sinks": (lambda f, _: f.graph(), "sink-names"),
    "a stream that goes nowhere": (lambda f, s: [s.select("id"), s.sink(AnySink()), f.graph()], "stream-unused"),
    "a side that goes nowhere": (
        lambda f, s: [s.map_batches(sides_of, sides={"late": LATE}).sink(AnySink()), f.graph()],
        "stream-unused",
    ),
    "bad records that go nowhere": (
        lambda f, s: [
            s.sink(AnySink()),
            f.source(AnySource("b", on_error="dead_letter"), uid="b").sink(AnySink("b")),
            f.graph(),
        ],
        "stream-unused",
    ),
    "a name with a blank": (lambda *_: Flow("a b"), "pipeline-name"),
    "no key group": (lambda *_: Flow("a", max_parallelism=0), "max-parallelism"),
    "too many key groups": (lambda *_: Flow("a", max_parallelism=32_769), "max-parallelism"),
    "an unknown format": (lambda f, s: [s.sink(AnySink()), f.explain("png")], "option-value"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_flow_refuses(what: str) -> None:
    does, code = REFUSED[what]
    flow, stream = orders()
    assert refusal(lambda: does(flow, stream))[0] == code


def test_an_unknown_column_is_answered_with_the_nearest() -> None:
    _, stream = orders()
    for does in (lambda: stream.filter(pc.field("amout") > 1), lambda: stream.key_by("amout")):
        assert "did you mean 'amount'?" in refusal(does)[1]
    assert "Decimal(0)" in refusal(lambda: stream.filter(pc.field("amount") > 0))[1]


def test_select_of_a_nested_column_takes_it_out() -> None:
    columns = pa.schema({"who": pa.struct({"name": pa.string()})})
    _, stream = orders(columns)
    selected = stream.select(name=pc.field("who", "name"))
    assert selected.schema == pa.schema({"name": pa.string()})
    assert isinstance(selected._nodes.made[-1].operator, Selecting)
    assert refusal(lambda: stream.select(name=pc.field("who", "nam")))[0] == "no-such-column"


def test_run_hands_the_graph_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.engine.run", lambda graph, **given: (graph.flow, given))
    flow, stream = orders()
    stream.sink(AnySink())
    assert flow.run(checkpoint="c", workers=2, retain=5) == ("shop", {"checkpoint": "c", "workers": 2, "retain": 5})


def test_a_flow_is_imported_and_built_without_a_runtime() -> None:
    does = "import sys, onefold.flow as f; f.Flow('a'); print([m for m in sys.modules if m.startswith(FOREIGN)])"
    foreign = "('onefold.engine', 'onefold.spark', 'pyspark')"
    made = subprocess.run([sys.executable, "-c", does.replace("FOREIGN", foreign)], capture_output=True, check=True)
    assert made.stdout.strip() == b"[]"
