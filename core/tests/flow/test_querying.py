"""An operator that only Spark runs: where it may stand in a flow, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource, orders, sink_node

from onefold.core import ConfigError, Upsert
from onefold.engine import recover, run
from onefold.flow import Flow, Stream, count

SQL = "SELECT account, count(*) AS n FROM source GROUP BY account"
GROUPS = "account long, n long"
BY_EPOCH = Upsert(("account",), ("onefold_epoch",))


def queried(stream: Stream, sink: str = "groups", **more: Any) -> None:
    stream.spark_sql(SQL, GROUPS).sink(AnySink(sink, **more))


def beside(flow: Flow, stream: Stream) -> None:
    del flow
    queried(stream)
    stream.sink(AnySink("rows"))


def twice(flow: Flow, stream: Stream) -> None:
    del flow
    queried(stream)
    stream.spark_dataframe(lambda df: df, GROUPS).sink(AnySink("rows"))


def behind_state(flow: Flow, stream: Stream) -> None:
    del flow
    queried(stream.key_by("account").aggregate(uid="n", n=count()))


def beside_state(flow: Flow, stream: Stream) -> None:
    del flow
    queried(stream)
    stream.key_by("account").aggregate(uid="n", n=count()).sink(AnySink("rows", replaces=BY_EPOCH))


def beside_bad_records(flow: Flow, stream: Stream) -> None:
    more = flow.source(AnySource("more", on_error="dead_letter"), uid="more")
    queried(stream.union(more))
    more.side("bad").sink(AnySink("bad"))


@pytest.mark.parametrize("stand", [beside, twice, behind_state, beside_state, beside_bad_records])
def test_it_stands_between_operators_without_state_and_the_sinks_once(stand: Callable[[Flow, Stream], None]) -> None:
    flow, stream = orders()
    stand(flow, stream)
    with pytest.raises(ConfigError) as raised:
        flow.graph()
    assert raised.value.code == "spark-operator-place"


@pytest.mark.parametrize(
    ("use", "code"),
    [
        (lambda s: s.spark_sql("", GROUPS), "option-value"),
        (lambda s: s.spark_sql(lambda df: df, GROUPS), "option-value"),
        (lambda s: s.spark_dataframe(SQL, GROUPS), "option-value"),
        (lambda s: s.spark_sql(SQL, "v variant"), "option-value"),
        (lambda s: s.spark_sql(SQL, "i interval day"), "option-value"),
        (lambda s: s.spark_sql(SQL, "id long, id long"), "column-name-twice"),
        (lambda s: s.spark_sql(SQL, None), "schema-missing"),
        (lambda s: s.spark_sql(SQL, GROUPS, "sometimes"), "option-value"),
        (lambda s: s.spark_sql(SQL, GROUPS, "complete"), "complete-mode-unsupported"),
    ],
)
def test_what_no_start_could_take_is_refused_at_once(use: Callable[[Any], Any], code: str) -> None:
    _, stream = orders()
    with pytest.raises(ConfigError) as raised:
        use(stream)
    assert raised.value.code == code


def test_all_sinks_get_the_epochs_number_where_one_orders_by_it_and_groups_change() -> None:
    for mode, number in (("update", [pa.field("onefold_epoch", pa.int64())]), ("append", [])):
        flow, stream = orders()
        rows = stream.spark_sql(SQL, GROUPS, mode)
        assert rows.schema.names == ["account", "n"]
        rows.sink(AnySink("table", replaces=BY_EPOCH))
        rows.sink(AnySink("cells", replaces=Upsert(("account",))))
        graph = flow.graph()
        for name in ("table", "cells"):
            assert graph.written(sink_node(graph, name)) == pa.schema([*rows.schema, *number])


def test_explain_says_whose_it_is_and_where_bad_records_are_found() -> None:
    flow = Flow("shop")
    source = AnySource(on_error="dead_letter")
    stream = flow.source(source, uid="orders", dead_letters=AnySink("bad"))
    queried(stream)
    text = flow.explain()
    assert f"spark-2: selects in Spark's SQL {SQL}; only Spark does, with output_mode append" in text
    assert "bad records are found before it, and are read a second time for bad" in text
    assert flow.explain("svg").startswith("<svg")


def test_the_engine_refuses_it_by_name(tmp_path: Any) -> None:
    flow, stream = orders()
    queried(stream)
    for start in (run, recover):
        with pytest.raises(ConfigError, match="'spark-1'") as raised:
            start(flow.graph(), checkpoint=tmp_path / "checkpoint")
        assert raised.value.code == "only-on-spark"
    assert list(tmp_path.iterdir()) == []
