"""Which states are made of tables, and what such a table becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySource
from harness.errors import raises

from onefold.core import ConfigError
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.building import form_of
from onefold.engine.savepoints.saved_tables import entries_of
from onefold.flow import Flow, Graph, Stream, Ttl, Tumbling, bounded, sum_

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
