"""Which rows go to which subtask."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onefold.engine.dataflow import outbound
from onefold.engine.dataflow.chains import plan
from onefold.engine.dataflow.outbound import Outbound
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import FileSource


def sent(rows: int, cut: int, tmp_path: object) -> dict[int, list[int]]:
    """The rows that subtask 1 of 3 sends to each of them, in batches of `cut`."""
    flow = Flow("shop")
    numbers = flow.source(FileSource(f"{tmp_path}/*.json", format="json", schema="n long"), uid="numbers")
    numbers.rebalance().sink(PostgresSink("postgresql://localhost/x", "t"))
    chain = plan(flow.graph()).chains[0]
    out, found = Outbound(chain, 1, 3, 128), dict[int, list[int]]()
    whole = pa.RecordBatch.from_pydict({"n": range(rows)})
    for at in range(0, rows, cut):
        for send in out.batch(chain.nodes[-1].number, None, whole.slice(at, cut)):
            assert isinstance(send.item, pa.RecordBatch)
            found.setdefault(send.to, []).extend(send.item["n"].to_pylist())
    return found


@pytest.mark.parametrize("cut", [1, 3, 10, 64])
def test_rebalanced_rows_go_where_they_go_however_they_are_batched(
    cut: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "_TURN_ROWS", 10)
    found = sent(64, cut, tmp_path)
    assert found == {
        1: [*range(10), *range(30, 40), *range(60, 64)],
        2: [*range(10, 20), *range(40, 50)],
        0: [*range(20, 30), *range(50, 60)],
    }
