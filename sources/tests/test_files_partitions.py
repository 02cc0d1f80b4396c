"""Columns that stand in the names of folders."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.errors import raises

from onefold.core.errors import BadRecord
from onefold.core.positions import Positions, Range
from onefold.core.source import Part
from onefold.sources import FileSource

DAY = dt.date(2026, 1, 1)


def put(folder: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    elif kind == "json":
        (folder / "a.json").write_text("".join(f"{row}\n".replace("'", '"') for row in rows))
    else:
        (folder / "a.csv").write_text("".join(",".join(map(str, row.values())) + "\n" for row in rows))


def parts_of(folder: Path, kind: str, schema: str, **more: Any) -> list[Part]:
    of = FileSource(str(folder), format=kind, schema=schema, **more)  # type: ignore[arg-type]
    planner = of.planner()
    splits = planner.splits(Range(Positions(), planner.latest(Positions())))
    return [part for split in splits for part in of.read(split)]


def rows_of(folder: Path, kind: str, schema: str, **more: Any) -> list[dict[str, Any]]:
    return [row for part in parts_of(folder, kind, schema, **more) for row in part.rows.to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_a_folders_column_has_its_type_at_its_place_in_the_schema(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "day=2026-01-01" / "shop=a%3Ab%2F\u00e9" / "other=1", kind, [{"id": 1}, {"id": 2}])
    schema = "day date, id long NOT NULL, shop string"
    assert rows_of(tmp_path, kind, schema) == [{"day": DAY, "id": at, "shop": "a:b/\u00e9"} for at in (1, 2)]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_hives_name_for_null_is_a_null_and_not_where_the_schema_says_not_null(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "n=__HIVE_DEFAULT_PARTITION__", kind, [{"id": 1}])
    assert rows_of(tmp_path, kind, "id long, n int") == [{"id": 1, "n": None}]
    with raises(BadRecord, "partition-mismatch"):
        rows_of(tmp_path, kind, "id long, n int NOT NULL")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("n=1.0", "int"),
        ("n=2026-13-01", "date"),
        ("n=", "int"),
        ("n=x", "array<int>"),
        ("N=1", "int"),
        ("n=0.105", "decimal(12,2)"),
    ],
)
def test_a_folder_whose_name_is_not_of_the_columns_type_or_case_is_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    put(tmp_path / name, "parquet", [{"id": 1}])
    with raises(BadRecord, "partition-mismatch"):
        rows_of(tmp_path, "parquet", f"id long, n {kind}", on_error="skip")


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_record_that_has_the_folders_column_too_has_the_same_value_or_is_bad(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "n=1", kind, [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3}])
    good, bad = [], []
    for part in parts_of(tmp_path, kind, "id long, n int", on_error="dead_letter"):
        good += part.rows.to_pylist()
        bad += part.bad["reason"].to_pylist()
    assert good == [{"id": 1, "n": 1}, {"id": 3, "n": 1}]
    assert bad == ["its n is 2, and the folder's is 1"]


def test_a_csv_file_has_the_other_columns_also_in_its_header(tmp_path: Path) -> None:
    put(tmp_path / "n=1", "csv", [{"a": "id", "b": "v"}, {"a": 5, "b": "x"}])
    schema = "id long, n int, v string"
    assert rows_of(tmp_path, "csv", schema, csv_header=True) == [{"id": 5, "n": 1, "v": "x"}]
    put(tmp_path / "n=1", "csv", [{"a": "id", "b": "n", "c": "v"}])
    with raises(BadRecord, "csv-header-mismatch"):
        rows_of(tmp_path, "csv", schema, csv_header=True)


def test_a_file_may_have_nothing_but_the_folders_columns(tmp_path: Path) -> None:
    put(tmp_path / "n=1", "parquet", [{"id": 1}, {"id": 2}])
    assert rows_of(tmp_path, "parquet", "n int") == [{"n": 1}, {"n": 1}]
    put(tmp_path / "n=1", "csv", [{"id": 1}])
    with raises(BadRecord, "partition-mismatch"):
        rows_of(tmp_path, "csv", "n int", pattern="*.csv")
