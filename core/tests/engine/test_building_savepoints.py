"""Which states are made of tables, and what such a table becomes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySource
from harness.errors import raises

from onefold.core import ConfigError
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.building import form_of
from onefold.engine.savepoints.saved_tables import entries_of
from onefold.engine.state.arrow_entries import Entries
from onefold.engine.state.codec import encode
from onefold.engine.state.operator_state import Shape
from onefold.flow import Flow, Graph, StatefulProcessor, Stream, Ttl, Tumbling, bounded, count_distinct, sum_

ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def planned(of: Callable[[Stream], Stream]) -> Plan:
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    flow = Flow("shop")
    of(flow.source(source, uid="rows", watermarks=bounded("at", "5 seconds")))
    return plan(Graph("shop", tuple(flow._nodes.made)))


def test_rows_of_a_reduce_are_its_table() -> None:
    of = planned(lambda rows: rows.key_by("key").reduce(lambda a, _: a, uid="it"))
    table = pa.table({"n": [1, 2], "key": ["a", "b"], "at": pa.nulls(2, ROWS.field("at").type)})
    (saved,) = form_of(of, "it", "reduced").saved(table)
    saved.check()
    entries = entries_of(saved.table)
    assert (entries.keys, entries.values) == ([("a",), ("b",)], [("a", None, 1), ("b", None, 2)])


@pytest.mark.parametrize(
    ("of", "name", "because"),
    [
        (
            lambda rows: rows.key_by("key").window(Tumbling("1 hour")).aggregate(uid="it", n=sum_("n")),
            None,
            "of a window, which goes by the times",
        ),
        (lambda rows: rows.key_by("key").aggregate(uid="it", ttl=Ttl("1 day"), n=sum_("n")), "aggregates", "to live"),
        (lambda rows: rows.key_by("key").reduce(lambda a, _: a, uid="it", ttl=Ttl("1 day")), "reduced", "to live"),
    ],
)
def test_state_that_goes_by_times_is_made_of_no_table(of: Any, name: str | None, because: str) -> None:
    from onefold.engine.workers.describing import described

    there = planned(of)
    head = next(chain.head for chain in there.chains if chain.uid == "it")
    names = [state.name for state in described(there.graph, head).states if state.name[:1] != "$"]
    for each in [name] if name else names:
        with raises(ConfigError, "savepoint-table", because):
            form_of(there, "it", each)


class Times(StatefulProcessor):
    """Texts by a time and by a list of numbers."""

    def init(self, handle: Any) -> None:
        text = pa.schema([pa.field("text", pa.string(), nullable=False)])
        handle.getMapState("times", pa.schema([ROWS.field("at")]), text)
        handle.getMapState("lists", pa.schema({"of": pa.list_(pa.int64())}), text)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
        yield (1,)


def of_processor(name: str, place: str, places: pa.Array, texts: list[str | None]) -> Entries:
    of = planned(lambda rows: rows.key_by("key").process(Times(), uid="it", schema="n long"))
    given = pa.table({"key.key": ["a"] * len(texts), place: places, "value.text": pa.array(texts, pa.string())})
    (saved,) = form_of(of, "it", name).saved(given)
    return entries_of(saved.table)


def test_a_processor_finds_what_a_table_has_by_a_time() -> None:
    (found,) = of_processor("times", "map.at", pa.array([7], ROWS.field("at").type), ["x"]).subs
    by = Shape("it", "times", pa.schema([ROWS.field("at")]), is_key=True)
    asked = by.checked((datetime.fromtimestamp(0, UTC) + timedelta(microseconds=7),))
    assert encode(found) == encode(asked)  # by which RocksDB finds it: other zones' equal times have other bytes


def test_lists_are_places_of_a_map() -> None:
    kind = pa.list_(pa.int64())
    found = of_processor("lists", "map.of", pa.array([[1, None], [1]], kind), ["x", "y"])
    assert found.subs == [((1, None),), ((1,),)]
    with raises(ConfigError, "savepoint-table", "more than one row of the same key.key, map.of"):
        of_processor("lists", "map.of", pa.array([[1], [1]], kind), ["x", "y"])


def test_a_null_that_the_state_does_not_take_is_refused() -> None:
    with raises(ConfigError, "savepoint-table", "NOT NULL"):
        of_processor("lists", "map.of", pa.array([[1]], pa.list_(pa.int64())), [None])


def test_values_that_a_table_has_twice_are_counted_once() -> None:
    of = planned(lambda rows: rows.key_by("key").aggregate(uid="it", different=count_distinct("n")))
    form, kind = form_of(of, "it", "aggregates"), pa.large_list(pa.int64())
    (saved,) = form.saved(pa.table({"key": ["a", "b"], "different": pa.array([[3, 1, 1], []], kind)}))
    assert sorted(map(len, saved.table.column("different.values").to_pylist())) == [0, 2]
    for nulls in ([None], [[1, None]]):
        with raises(ConfigError, "savepoint-table", "has nulls in different.values"):
            form.saved(pa.table({"key": ["a"], "different": pa.array(nulls, kind)}))
