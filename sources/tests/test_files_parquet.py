"""Parquet files: columns by rules, values exactly, old calendars, and bounds."""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.positions import Positions, Range
from onefold.core.source import Part
from onefold.sources import FileSource
from onefold.sources.files.parquet import parquet_rows as rows_module
from onefold.sources.files.parquet import sizes
from onefold.sources.files.parquet.old_times import AmbiguousCalendar, calendar_of, rebased

MIDNIGHT = dt.datetime(9999, 12, 31)
INT96 = {"use_deprecated_int96_timestamps": True}


def source(folder: Path, schema: str | None, **more: Any) -> FileSource:
    return FileSource(str(folder), format="parquet", schema=schema, **more)


def parts_of(of: FileSource, *, guarded: bool = False) -> list[Part]:
    planner = of.planner()
    splits = planner.splits(Range(Positions(), planner.latest(Positions())))
    return [part for split in splits for part in of.read(split, guarded=guarded)]


def rows_of(of: FileSource) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for part in parts_of(of) for row in part.rows.to_pylist()]


def bad_of(of: FileSource) -> list[dict[str, Any]]:
    return [row for part in parts_of(of) for row in part.bad.to_pylist()]


def put(folder: Path, name: str = "a.parquet", how: dict[str, Any] | None = None, **columns: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name, **(how or {}))


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([0.105]), "decimal(12,2)"),
        (pa.array([Decimal("0.12345678901234567890")]), "double"),
        (pa.array([dt.datetime(2026, 1, 2, 23, 59)]), "date"),
        (pa.array([dt.datetime(2026, 1, 2)]), "timestamp"),
        (pa.array([dt.datetime(2026, 1, 2)], pa.timestamp("us", "UTC")), "timestamp_ntz"),
        (pa.array([1.0]), "long"),
        (pa.array([2]), "boolean"),
        (pa.array([True]), "long"),
        (pa.array([dt.time(1, 2)]), "long"),
        (pa.array([7]), "string"),
        (pa.array(["0x10"]), "long"),
        (pa.array(["1e-999999999"]), "decimal(12,2)"),  # pyarrow's cast ends the process
        (pa.array([{"a": 1, "b": 2}]), "struct<a: bigint>"),
    ],
)
def test_a_type_that_the_column_does_not_take_refuses_the_file_by_name(
    tmp_path: Path, array: pa.Array, kind: str
) -> None:
    put(tmp_path, v=array)
    for on_error in ("fail", "skip"):
        with raises(BadRecord, "parquet-columns-mismatch", "'v'"):
            rows_of(source(tmp_path, f"v {kind}", on_error=on_error))


@pytest.mark.parametrize(
    ("values", "kind", "good", "wrong"),
    [
        (pa.array([0.5, 0.1]), "float", 0.5, "0.1"),
        (pa.array([1, 2**53 + 1]), "double", 1.0, "9007199254740993"),
        (pa.array([1, 2**64 - 1], pa.uint64()), "long", 1, "18446744073709551615"),
        (pa.array([Decimal("1.000"), Decimal("1.005")]), "decimal(12,2)", Decimal("1.00"), "1.005"),
        (pa.array([1, 10**15]), "decimal(12,2)", Decimal("1.00"), "1000000000000000"),
        (pa.array([b"a", b"\xff"]), "string", "a", "xff"),
        (pa.array([1000, 1001], pa.timestamp("ns")), "timestamp_ntz", dt.datetime(1970, 1, 1, 0, 0, 0, 1), "000001001"),
        (pa.array([0, 4_000_000], pa.date32()), "date", dt.date(1970, 1, 1), "years 1 to 9999"),
        (pa.array([[0.5], [0.5, 0.1]]), "array<float>", [0.5], "0.1"),
        (pa.array([1, None]), "long NOT NULL", 1, "NOT NULL"),
        (pa.array([1000, 1001], pa.timestamp("ns")), "timestamp", None, "nanoseconds"),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_a_bad_record(
    tmp_path: Path, values: pa.Array, kind: str, good: Any, wrong: str
) -> None:
    put(tmp_path, how=INT96 if good is None else None, v=values)
    good = dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC) if good is None else good
    with raises(BadRecord, "record-unreadable"):
        rows_of(source(tmp_path, f"v {kind}"))
    of = source(tmp_path, f"v {kind}", on_error="dead_letter")
    assert rows_of(of) == [(good,)]
    (bad,) = bad_of(of)
    assert (bad["source_topic"], bad["source_offset"]) == (f"{tmp_path}/a.parquet", 1)
    assert json.loads(bad["value"]).keys() == {"v"}
    assert wrong in bad["reason"]


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        (pa.array([1, None], pa.int32()), "long", [1, None]),
        (pa.array([1], pa.uint32()), "decimal(12,2)", [Decimal("1.00")]),
        (pa.array(["a", None, "é"]).dictionary_encode(), "string", ["a", None, "é"]),
        (pa.array(["a"], pa.large_string()), "binary", [b"a"]),
        (pa.array([dt.date(2026, 1, 2)], pa.date64()), "date", [dt.date(2026, 1, 2)]),
        (pa.array([{"b": 1, "a": 2}]), "struct<a: bigint, b: bigint, c: string>", [{"a": 2, "b": 1, "c": None}]),
        (pa.array([[1, None]], pa.large_list(pa.int32())), "array<bigint>", [[1, None]]),
        (pa.nulls(2), "decimal(12,2)", [None, None]),
        (
            pa.array([2_000], pa.timestamp("ns", "America/New_York")),
            "timestamp",
            [dt.datetime(1970, 1, 1, 0, 0, 0, 2, dt.UTC)],
        ),
    ],
)
def test_what_loses_nothing_is_read(tmp_path: Path, values: pa.Array, kind: str, wanted: Sequence[Any]) -> None:
    put(tmp_path, v=values)
    assert [value for (value,) in rows_of(source(tmp_path, f"v {kind}"))] == wanted


def test_a_timestamp_of_96_bits_is_an_instant_or_none_as_the_schema_says(tmp_path: Path) -> None:
    put(tmp_path, how=INT96, v=pa.array([MIDNIGHT, dt.datetime(1, 1, 1), None]))
    assert rows_of(source(tmp_path, "v timestamp_ntz")) == [(MIDNIGHT,), (dt.datetime(1, 1, 1),), (None,)]
    assert rows_of(source(tmp_path, "v timestamp"))[0] == (MIDNIGHT.replace(tzinfo=dt.UTC),)
    with raises(BadRecord, "parquet-columns-mismatch"):
        rows_of(source(tmp_path, "v date"))


def test_timestamps_of_96_bits_within_others_are_instants_too_and_lose_no_nanoseconds(tmp_path: Path) -> None:
    put(tmp_path, how=INT96, v=pa.array([[MIDNIGHT], None]), s=pa.array([{"a": MIDNIGHT, "b": 1}, None]))
    schema = "v array<timestamp>, s struct<a: timestamp_ntz, b: bigint>"
    wanted = ([MIDNIGHT.replace(tzinfo=dt.UTC)], {"a": MIDNIGHT, "b": 1})
    assert rows_of(source(tmp_path, schema)) == [wanted, (None, None)]
    put(tmp_path, how=INT96, v=pa.array([[1000], [1000, 1001], [2000]], pa.list_(pa.timestamp("ns"))))
    of = source(tmp_path, "v array<timestamp>", on_error="dead_letter")
    assert len(rows_of(of)) == 2
    assert [(row["source_offset"], "nanoseconds" in row["reason"]) for row in bad_of(of)] == [(1, True)]


@pytest.mark.parametrize("rows", [2, 5_000])  # as texts, and as indices of a dictionary
def test_texts_that_are_no_utf_8_are_bad_records_at_their_rows(tmp_path: Path, rows: int) -> None:
    ends = pa.array([0, 2, 3], pa.int32()).buffers()[1]
    two = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"\xff\xfea")])
    at = pa.array([1] * (rows - 1) + [0], pa.int32())
    pq.write_table(
        pa.table({"v": two.take(at), "l": pa.array([[0]] * rows), "id": range(rows)}), tmp_path / "a.parquet"
    )
    of = source(tmp_path, "v string, id long", on_error="dead_letter")
    assert rows_of(of) == [("a", number) for number in range(rows - 1)]
    assert [(row["source_offset"], "xff" in row["reason"]) for row in bad_of(of)] == [(rows - 1, True)]
    pq.write_table(
        pa.table({"v": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), two)}), tmp_path / "a.parquet"
    )
    assert [row["source_offset"] for row in bad_of(source(tmp_path, "v array<string>", on_error="skip"))] == [0]


def test_columns_are_those_of_exactly_the_same_name(tmp_path: Path) -> None:
    put(tmp_path, id=[1], other=["x"])
    assert rows_of(source(tmp_path, "id long, later string")) == [(1, None)]
    for schema, said in (
        ("ID long", "differ in case"),
        ("v long, w string", "no column of the schema: it has id, other"),
        ("id long, later string NOT NULL", "no column 'later'"),
    ):
        with raises(BadRecord, "parquet-columns-mismatch", f"{said}"):
            rows_of(source(tmp_path, schema, on_error="skip"))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([10]), pa.array([100])], names=["id", "v", "v"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with raises(BadRecord, "parquet-columns-mismatch", "'v'"):
        rows_of(source(tmp_path, "id long, v long"))
    assert rows_of(source(tmp_path, "id long")) == [(1,)]
    with raises(BadRecord, "parquet-columns-mismatch", "'v'"):
        source(tmp_path, None).resolved(lambda _, find: find())


def test_a_schema_is_inferred_where_each_column_has_a_type_and_refused_by_name_elsewhere(tmp_path: Path) -> None:
    put(
        tmp_path, "day=1/a.parquet", a=pa.array([1], pa.uint32()), b=pa.array([["x"]], pa.large_list(pa.large_string()))
    )
    of = source(tmp_path, None).resolved(lambda _, find: find())
    assert of.schema == "a bigint, b array<string>, day string"
    assert rows_of(of) == [(1, ["x"], "1")]
    for array in (pa.nulls(1), pa.array([dt.time(1)])):
        put(tmp_path, "day=1/a.parquet", v=array)
        with raises(ConfigError, "schema-not-inferred", "'v'"):
            source(tmp_path, None).resolved(lambda _, find: find())


def test_dates_of_the_julian_calendar_are_the_same_dates() -> None:
    # Day numbers by the formula for Julian dates, of which Spark 2 and Hive count their days.
    def julian(day: dt.date) -> int:
        back = (14 - day.month) // 12
        year, month = day.year + 4800 - back, day.month + 12 * back - 3
        return day.day + (153 * month + 2) // 5 + 365 * year + year // 4 - 32083 - 2_440_588

    @given(st.dates(max_value=dt.date(1582, 10, 4)), st.dates(min_value=dt.date(1582, 10, 15)))
    def check(old: dt.date, new: dt.date) -> None:
        since = (new - dt.date(1970, 1, 1)).days
        days = pa.array([julian(old), None, since], pa.int32()).view(pa.date32())
        assert rebased(days, "julian").to_pylist() == [old, None, new]
        assert rebased(days, "new") is days
        with pytest.raises(AmbiguousCalendar):
            rebased(days, "unknown")

    check()


@pytest.mark.parametrize(
    ("metadata", "created_by", "dates", "int96"),
    [
        ({}, "parquet-cpp-arrow version 26", "new", "new"),
        ({b"org.apache.spark.version": b"3.5.1"}, "parquet-mr", "new", "new"),
        ({b"org.apache.spark.version": b"3.0.0"}, "parquet-mr", "new", "julian"),
        ({b"org.apache.spark.version": b"2.4.8"}, "parquet-mr", "julian", "julian"),
        ({b"org.apache.spark.version": b"4.0.0", b"org.apache.spark.legacyDateTime": b""}, "", "julian", "new"),
        ({b"org.apache.spark.version": b"4.0.0", b"org.apache.spark.legacyINT96": b""}, "", "new", "julian"),
        ({b"org.apache.spark.sql.parquet.row.metadata": b"{}"}, "parquet-mr version 1.10.1", "julian", "julian"),
        ({b"writer.date.proleptic": b"true"}, "parquet-mr version 1.12", "new", "unknown"),
        ({b"writer.date.proleptic": b"false"}, "parquet-mr version 1.12", "julian", "unknown"),
        ({b"parquet.avro.schema": b"{}"}, "parquet-mr version 1.12", "new", "new"),
        ({}, "parquet-mr version 1.8.1", "unknown", "unknown"),
    ],
)
def test_a_file_says_which_calendar_it_has(
    metadata: dict[bytes, bytes], created_by: str, dates: str, int96: str
) -> None:
    found = calendar_of(metadata, created_by)
    assert (found.dates, found.int96) == (dates, int96)


def test_old_times_of_unknown_zones_are_bad_records_and_dates_are_rebased(tmp_path: Path) -> None:
    days = pa.array([-353_920 + 6, 0], pa.int32()).view(pa.date32())  # 1001-01-07, of which Spark 2 says 1001-01-01
    table = pa.table({"d": days, "at": pa.array([dt.datetime(1899, 12, 31), MIDNIGHT], pa.timestamp("us"))})
    legacy = {b"org.apache.spark.version": b"4.0.0", b"org.apache.spark.legacyDateTime": b""}
    pq.write_table(table.replace_schema_metadata(legacy), tmp_path / "a.parquet")
    wanted = days.to_pylist()[0] - dt.timedelta(days=6)
    assert rows_of(source(tmp_path, "d date")) == [(wanted,), (dt.date(1970, 1, 1),)]
    of = source(tmp_path, "d date, at timestamp_ntz", on_error="dead_letter")
    assert rows_of(of) == [(dt.date(1970, 1, 1), MIDNIGHT)]
    assert "before 1900" in bad_of(of)[0]["reason"]
    for nested in (
        pa.array([[days[0]]]),
        pa.array([{"x": days[0]}]),
        pa.array([[(1, days[0])]], pa.map_(pa.int64(), pa.date32())),
    ):
        kind = {"list": "array<date>", "struct": "struct<x: date>", "map": "map<bigint, date>"}[
            str(nested.type).split("<")[0]
        ]
        pq.write_table(pa.table({"d": nested}).replace_schema_metadata(legacy), tmp_path / "a.parquet")
        assert [row["source_offset"] for row in bad_of(source(tmp_path, f"d {kind}", on_error="skip"))] == [0]


def bomb(folder: Path, mib: int, rows: int) -> None:
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows + [1], pa.int32()), pa.array(["x" * (mib << 20), "small"])
    )
    pq.write_table(
        pa.table({"id": range(rows + 1), "v": texts}),
        folder / "a.parquet",
        compression="zstd",
        dictionary_pagesize_limit=1 << 30,
        write_statistics=False,
        store_schema=False,
    )


def test_a_value_that_a_file_has_once_for_many_rows_is_a_bad_record_in_each_and_takes_no_memory(tmp_path: Path) -> None:
    bomb(tmp_path, 2, 4_000)  # 8 GiB
    assert (tmp_path / "a.parquet").stat().st_size < 50_000
    of = source(tmp_path, "id long, v string", on_error="skip", record_bytes_max=1 << 20, bad_records_max=10_000)
    was = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(was)
    pa.set_memory_pool(counted)
    try:
        assert rows_of(of) == [(4_000, "small")]
    finally:
        pa.set_memory_pool(was)
    assert counted.max_memory() < 1 << 28
    with raises(BadRecord, "too-many-bad-records"):
        rows_of(source(tmp_path, "v string", on_error="skip", record_bytes_max=1 << 20))


def test_values_within_the_bound_come_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_PIECE_BYTES", 4 << 20)
    bomb(tmp_path, 1, 20)
    parts = parts_of(source(tmp_path, "id long, v string"))
    assert max(part.rows.nbytes for part in parts) < 5 << 20
    assert [row["id"] for part in parts for row in part.rows.to_pylist()] == [*range(21)]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    plain=st.lists(st.integers(0, 40), min_size=30, max_size=30),
    most=st.integers(1, 60),
    piece=st.integers(1, 100),
)
def test_pieces_are_all_rows_and_name_those_that_are_too_large(
    lengths: list[int], plain: list[int], most: int, piece: int
) -> None:
    packed = pa.array(["x" * length for length in lengths]).dictionary_encode()
    texts = pa.array(["y" * length for length in plain[: len(lengths)]], pa.string())
    batch = pa.RecordBatch.from_arrays([packed, texts], names=["a", "b"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "_PIECE_BYTES", piece)
        found = list(sizes.pieces_of(batch, most))
    sizes_ = [length + texts.slice(at, 1).nbytes for at, length in enumerate(lengths)]
    assert [start + at for start, _, known in found for at in known] == [
        at for at, size in enumerate(sizes_) if size > most
    ]
    assert [row for _, rows, _ in found for row in rows.to_pylist()] == batch.to_pylist()


def test_after_a_worker_died_a_process_of_its_own_decodes_a_file_first_and_refuses_it_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, v=[1, 2])
    of = source(tmp_path, "v long")
    assert [part.rows.to_pylist() for part in parts_of(of, guarded=True)] == [[{"v": 1}, {"v": 2}]]

    def die(*_: Any, use_threads: bool = True) -> None:
        if not use_threads:
            signal.raise_signal(signal.SIGSEGV)

    with monkeypatch.context() as patch:
        patch.setattr(rows_module._Opened, "batches", die)
        with raises(BadRecord, "data-file-unreadable"):
            parts_of(of, guarded=True)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * (1 << 20)]))
    put(tmp_path, how={"store_schema": False}, v=pa.ListArray.from_arrays(pa.array([0, 2000], pa.int32()), texts))
    monkeypatch.setattr(rows_module, "_GUARDED_BYTES", 16 << 20)
    with raises(BadRecord, "data-file-unreadable"):
        parts_of(source(tmp_path, "v array<string>"), guarded=True)


def test_a_file_whose_metadata_is_no_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, v=[1])
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"parquet-cpp-arrow", b"parquet-\xff\x80p-arrow"))
    with raises(BadRecord, "data-file-unreadable"):
        rows_of(source(tmp_path, "v long"))
