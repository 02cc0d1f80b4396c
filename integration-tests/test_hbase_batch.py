"""Batch runs into HBase, in the modes that merge: each run's rows are merged once, and no run begins before another
that was begun is written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import CrashError, crash, failing_at, fresh

from onefold.core import CheckpointMismatch
from onefold.hbase import HBaseSettings, HBaseTable
from onefold.hbase.mapping import TableMapping
from onefold.local import HBaseServer
from onefold.sinks import HBaseSink
from onefold.spark import BatchOutcome, Pipeline

pytestmark = pytest.mark.servers

KEYS, ROWS = 4, 40


@pytest.mark.parametrize("mode", [{"mode": "rolling"}, {"mode": "incremental", "id": "id"}], ids=lambda m: m["mode"])
def test_a_run_is_merged_once_whatever_dies_and_the_next_waits_until_it_is_written(
    spark: SparkSession,
    hbase_server: HBaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: dict[str, str],
) -> None:
    table = fresh("batch")
    mapping = TableMapping.of(table, "k integer", {"n": "f:n integer", "id": "f:id integer"})

    def write(run: int) -> BatchOutcome:
        """As a process of its own would."""
        merge = {"n": "sum", "id": "max"}
        sink = HBaseSink(hbase_server.servers, table, row_key="k", family="f", merge=merge, **mode)
        df = spark.range(run * ROWS, (run + 1) * ROWS, 1, 3).selectExpr(f"id % {KEYS} AS k", "id", "1L AS n")
        with closing(Pipeline(table, [sink], store=f"sqlite:///{tmp_path / 'store.db'}")) as pipeline:
            return pipeline.write_batch(df, f"night {run}")

    def merged() -> set[int]:
        """How many rows the table's rows are of."""
        parts = HBaseTable(HBaseSettings(hbase_server.servers), table).scan(b"", b"", mapping.cell_columns)
        rows = [row for part in parts for row in mapping.decode(part.keys, part.values).to_pylist()]
        assert [row["k"] for row in rows] == list(range(KEYS))
        return {row["n"] for row in rows}

    of_one = ROWS // KEYS
    assert [write(0).replayed for _ in range(3)] == [False, True, True]
    assert merged() == {of_one}

    failing_at(monkeypatch, "before:Decide", crash)
    with pytest.raises(CrashError):
        write(1)
    assert merged() == {2 * of_one}, "it writes through"
    with pytest.raises(CheckpointMismatch, match=r"'night 1' was begun as epoch 2, .* Run 'night 1' again first"):
        write(2)
    assert write(0).replayed, "what is written is told as before"
    assert write(1) == BatchOutcome("night 1", 2, ROWS, replayed=False)
    assert merged() == {2 * of_one}

    failing_at(monkeypatch, "before:Complete", crash)
    with pytest.raises(CrashError):
        write(2)
    assert write(2) == BatchOutcome("night 2", 3, ROWS, replayed=True)
    assert not write(3).replayed
    assert merged() == {4 * of_one}
