"""The HBase sink's modes that merge, on a real server: the promises of sinks that write through."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from onefold.clients.hbase import HBaseSettings, HBaseTable, table_admin
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.testing import check_sink
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.modes import appliers, rolling

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

CALLS = {"write", "prepare", "writer's abort", "announce", "seal", "commit", "bind", "write_ledger", "open", "recover"}
CODE = ("onefold.sinks.hbase", "onefold.sinks.write_through", "onefold.clients.hbase")


def one_each(ids: Sequence[int]) -> pa.RecordBatch:
    """A row of its own for each id, which counts how often it was merged."""
    ones = pa.array([1] * len(ids), pa.int64())
    return pa.record_batch({"k": pa.array(ids, pa.int64()), "n": ones, "sequence": ones})


@pytest.mark.soak
@pytest.mark.parametrize(
    "mode",
    [{"mode": "rolling", "order": "sequence"}, {"mode": "incremental", "sequence": "sequence"}],
    ids=["rolling", "incremental"],
)
def test_the_sink_keeps_its_promises(hbase_server: Any, mode: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rolling, appliers):  # so that a task of a few keys reads and writes several times
        monkeypatch.setattr(module, "KEYS_MAX", 3)
    name, servers = f"test_{uuid.uuid4().hex[:12]}", HBaseSettings(hbase_server.servers)
    merge = {"n": "sum", "sequence": "last"}
    sink = partial(HBaseSink, servers, name, row_key="k", family="f", merge=merge, **mode)
    mapping = TableMapping.of(name, "k integer", {"n": "f:n integer"}).reading()

    def ids() -> Iterator[int]:
        """Each as often as it was counted."""
        if table_admin.describe(servers, name) is not None:
            for part in HBaseTable(servers, name).scan(b"", b"", mapping.cell_columns):
                for row in mapping.decode(part.keys, part.values).to_pylist():
                    yield from [row["k"]] * row["n"]

    sibling = partial(sink, name="sibling")
    report = check_sink(sink, ids, make_batch=one_each, make_sibling=sibling, modules=CODE, steps_max=1, moments=0)
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS
