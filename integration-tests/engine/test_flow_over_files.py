"""Flows over files that are not as the source says: no row that nobody wrote, and none that was changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from harness.errors import raises

from onefold.core.errors import BadRecord
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource


def run(folder: Path, **source: Any) -> list[tuple[Any, ...]]:
    """The table after a flow over all files of the folder."""
    flow = Flow("files")
    of = FileSource(str(folder / "in"), **source)
    flow.source(of.bounded(), uid="in").sink(SqlSink(f"sqlite:///{folder}/out.db", "rows"))
    flow.run(checkpoint=str(folder / "checkpoint"))
    return rows(folder)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "out.db")) as connection:
        return connection.execute("SELECT * FROM rows ORDER BY 1").fetchall()


def test_line_breaks_in_quotes_end_the_flow_without_a_row_until_it_is_told_to_read_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text('1,plain,10\n2,"dear all,\n99,was never ordered,1000000\nregards",20\n')
    source: dict[str, Any] = {"format": "csv", "schema": "id long, note string, amount long", "on_error": "skip"}
    with raises(BadRecord, "csv-quotes-torn"):
        run(tmp_path, **source)
    assert rows(tmp_path) == []
    assert run(tmp_path, **source, csv_multiline=True) == [
        (1, "plain", 10),
        (2, "dear all,\n99,was never ordered,1000000\nregards", 20),
    ]


def test_parquet_rows_that_a_column_cannot_hold_are_skipped_and_the_day_is_in_the_folders_name(tmp_path: Path) -> None:
    (tmp_path / "in/day=2026-01-01").mkdir(parents=True)
    amounts = pa.array([Decimal("1.500"), Decimal("1.005"), None])
    pq.write_table(pa.table({"id": [1, 2, 3], "amount": amounts}), tmp_path / "in/day=2026-01-01/a.parquet")
    found = run(tmp_path, format="parquet", schema="id long, amount decimal(12,2), day string", on_error="skip")
    assert [(number, day) for number, _, day in found] == [(1, "2026-01-01"), (3, "2026-01-01")]


def test_a_text_for_a_decimal_is_an_error_by_name_and_ends_no_worker(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "amount": ["1.50", "1e-999999999"]}), tmp_path / "in/a.parquet")
    with raises(BadRecord, "parquet-columns-mismatch", "'amount'"):
        run(tmp_path, format="parquet", schema="id long, amount decimal(12,2)", on_error="skip")
