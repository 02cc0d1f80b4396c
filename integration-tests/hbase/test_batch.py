"""Batch runs into HBase, in each mode: each run's rows count once, and no run begins before another that was begun is
written."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness.support import CrashError, crash, failing_at, fresh
from pyspark.sql import SparkSession

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import CheckpointMismatch
from onefold.sinks import HBaseSink
from onefold.spark import BatchOutcome, EpochWriter

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

KEYS, ROWS = 4, 40
MERGE = {"row_key": "k", "merge": {"n": "sum", "id": "max"}}
MODES: list[dict[str, Any]] = [
    {"mode": "row_key", "row_key": "id"},
    {"mode": "rolling", **MERGE},
    {"mode": "incremental", "sequence": "id", **MERGE},
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["mode"])
def test_a_run_counts_once_whatever_dies_and_the_next_waits_until_it_is_written(
    spark: SparkSession,
    hbase_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: dict[str, Any],
) -> None:
    table = fresh("batch")
    cells = {name: f"f:{name} integer" for name in ("k", "id", "n") if name != mode["row_key"]}
    mapping = TableMapping.of(table, f"{mode['row_key']} integer", cells)

    def write(run: int) -> BatchOutcome:
        """As a process of its own would."""
        sink = HBaseSink(hbase_server.servers, table, family="f", **mode)
        df = spark.range(run * ROWS, (run + 1) * ROWS, 1, 3).selectExpr(f"id % {KEYS} AS k", "id", "1L AS n")
        with closing(EpochWriter(table, [sink], store=f"sqlite:///{tmp_path / 'store.db'}")) as writer:
            return writer.write_batch(df, f"night {run}")

    def counted() -> set[int]:
        """How many rows of each k the table has."""
        counts = Counter[int]()
        for part in HBaseTable(HBaseSettings(hbase_server.servers), table).scan(b"", b"", mapping.cell_columns):
            for row in mapping.decode(part.keys, part.values).to_pylist():
                counts[row["k"]] += row["n"]
        assert sorted(counts) == list(range(KEYS))
        return set(counts.values())

    of_one = ROWS // KEYS
    assert [write(0).replayed for _ in range(3)] == [False, True, True]
    assert counted() == {of_one}

    failing_at(monkeypatch, "before:Decide", crash)
    with pytest.raises(CrashError):
        write(1)
    assert counted() == {2 * of_one}, "it writes through"
    with pytest.raises(CheckpointMismatch, match=r"'night 1' was begun as epoch 2, .* Run 'night 1' again first"):
        write(2)
    assert write(0).replayed, "what is written is told as before"
    assert write(1) == BatchOutcome("night 1", 2, ROWS, replayed=False)
    assert counted() == {2 * of_one}

    failing_at(monkeypatch, "before:Complete", crash)
    with pytest.raises(CrashError):
        write(2)
    assert write(2) == BatchOutcome("night 2", 3, ROWS, replayed=True)
    assert not write(3).replayed
    assert counted() == {4 * of_one}
