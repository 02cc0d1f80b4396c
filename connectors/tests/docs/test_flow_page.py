"""docs/flows.md: its blocks, one after another. Up to `run` a flow reaches no server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onefold.flow import Flow, Graph

PAGE = Path(__file__).parents[3] / "docs/flows.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the page's blocks leave behind."""
    graphs: list[Graph] = []
    monkeypatch.setattr(Flow, "run", lambda flow, **_: graphs.append(flow.graph()))
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"graphs": graphs}
    for number, block in enumerate(BLOCK.findall(PAGE.read_text())):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), found)
    return found


def test_the_blocks_of_the_page_build_a_flow(names: dict[str, Any]) -> None:
    (first,) = names["graphs"]
    assert [node.name for node in first.nodes] == ["orders", "filter-1", "totals", "totals"]
    schema = first.written(first.nodes[3])
    assert schema == pa.schema(
        {"account": pa.int64(), "total": pa.decimal128(22, 2), "orders": pa.int64(), "onefold_epoch": pa.int64()}
    )
    uids = {node.uid for node in names["flow"].graph().nodes if node.uid}
    assert uids == {"orders", "totals", "newest", "jumps", "over", "limits"}
    assert Path("totals.svg").read_text() == names["flow"].explain(format="svg")
