"""The blocks of docs/flows.md, docs/engine.md, docs/windows.md, docs/joins.md and docs/state.md, one after another.
They reach no server."""

from __future__ import annotations

import inspect
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import onefold.engine
from onefold import flow as flows
from onefold.core.errors import Retriable
from onefold.flow import Flow, Graph
from onefold.pipeline import Engine, Pipeline, StateReader
from onefold.sinks import SqlSink
from onefold.sources import FileSource

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "flows.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the page's blocks leave behind."""
    graphs: list[Graph] = []
    monkeypatch.setattr(Flow, "run", lambda flow, **_: graphs.append(flow.graph()))
    monkeypatch.chdir(tmp_path)
    page = ModuleType("flows_page")  # which pickles name for its classes
    monkeypatch.setitem(sys.modules, page.__name__, page)
    found: dict[str, Any] = page.__dict__
    found["graphs"] = graphs
    for number, block in enumerate(BLOCK.findall(PAGE.read_text())):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), found)
    return found


def test_the_blocks_of_the_page_build_a_flow(names: dict[str, Any]) -> None:
    first, *_ = names["graphs"]
    assert [node.name for node in first.nodes] == ["orders", "filter-1", "totals", "totals"]
    schema = first.written(first.nodes[3])
    assert schema == pa.schema(
        {"account": pa.int64(), "total": pa.decimal128(22, 2), "orders": pa.int64(), "onefold_epoch": pa.int64()}
    )
    uids = {node.uid for node in names["flow"].graph().nodes if node.uid}
    assert uids == {"orders", "totals", "newest", "jumps", "over", "limits", "customers"}
    assert Path("totals.svg").read_text() == names["flow"].explain(format="svg")


def test_the_block_of_the_engines_page_builds_the_flow_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Graph, dict[str, Any]]] = []
    monkeypatch.setattr(Flow, "run", lambda flow, **settings: ran.append((flow.graph(), settings)))
    (block,) = BLOCK.findall((DOCS / "engine.md").read_text())
    exec(compile(block, "engine.md", "exec"), {})
    ((graph, settings),) = ran
    assert [node.name for node in graph.nodes] == ["orders", "totals", "totals"]
    inspect.signature(onefold.engine.run).bind(graph, **settings)


def test_the_block_of_the_page_of_joins_builds_a_flow() -> None:
    found: dict[str, Any] = {}
    (block,) = BLOCK.findall((DOCS / "joins.md").read_text())
    exec(compile(block, "joins.md", "exec"), found)
    told = dict(re.findall(r"^# (\w+)\.schema: (.*)$", block, re.MULTILINE))
    assert {name: ", ".join(found[name].schema.names) for name in ("paid", "valued", "paired")} == told
    found["flow"].graph()


def test_the_blocks_of_the_page_of_windows_build_a_flow() -> None:
    found: dict[str, Any] = {}
    for number, block in enumerate(BLOCK.findall((DOCS / "windows.md").read_text())):
        exec(compile(block, f"windows.md, block {number}", "exec"), found)
    assert found["minutes"].schema.names == ["account", "window_start", "window_end", "total", "orders"]
    assert found["busiest"].schema.names == ["account", "window_start", "window_end", "most", "orders", "emission"]
    uids = {node.uid for node in found["flow"].graph().nodes if node.uid}
    further = {"daily", "hundreds", "medians", "last_ten"}
    assert uids == {"orders", "minutes", "hours", "busiest", "so_far", "visits", *further}


def test_the_blocks_of_the_page_of_state_build_a_flow_and_ask_for_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *blocks, asking = BLOCK.findall((DOCS / "state.md").read_text())
    found: dict[str, Any] = {name: getattr(flows, name) for name in flows.__all__}
    source = FileSource(str(tmp_path), format="json", schema="account string, amount decimal(12,2)")
    for number, block in enumerate(blocks):
        flow = Flow("orders")
        found["orders"] = flow.source(source, uid="in")
        exec(compile(block, f"state.md, block {number}", "exec"), found)
    assert found["flow"].evolution.columns == {"totals.amt": "amount"}
    found["totals"].sink(
        SqlSink(f"sqlite:///{tmp_path}/totals.db", "totals", mode="upsert", key=["account"], order="onefold_epoch")
    )
    running = Pipeline(flow, runtime=Engine(), checkpoint=str(tmp_path))
    monkeypatch.setattr("onefold.pipeline.StateReader", partial(StateReader, wait_s=0.0))
    with pytest.raises(Retriable, match="does not run with"):
        exec(compile(asking, "state.md", "exec"), found | {"pipeline": running})
