"""SqlSink's versions and deletes, on SQLite, MariaDB and Postgres alike; the databases are asked, not our objects."""

from __future__ import annotations

import random
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.tables.sql_bench import DELETES, NOW_MS, PIPELINE, UPSERT, Make, rows

from onefold.core import BadRecord, ConfigError, SchemaMismatch
from onefold.sinks import SqlSink

pytestmark = pytest.mark.servers


def test_the_newest_version_of_a_key_wins_within_and_across_epochs(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, **UPSERT)
    b.epoch(rows((1, 5, "new"), (1, 3, "old"), (2, 1, "x")), rows((1, 4, "older")))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 5, "new"), (2, 1, "x")]
    b.epoch(rows((1, 4, "late"), (2, 2, None), (3, 1, "y")))
    b.epoch(rows((1, 5, "equal"), (2, 2, "equal")))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 5, "new"), (2, 2, None), (3, 1, "y")]
    assert b.staged() == 0


def test_a_null_order_in_the_table_is_the_oldest_and_several_columns_order_in_turn(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, mode="upsert", key=("id",), order=("major", "minor"))
    b.do(
        "CREATE TABLE t (id BIGINT NOT NULL, major BIGINT, minor BIGINT, UNIQUE (id))",
        "INSERT INTO t VALUES (1, NULL, 9), (2, 1, NULL), (3, 1, 5), (4, 2, 0)",
    )
    four = [(1, 0, 0), (2, 1, 0), (3, 1, 6), (4, 1, 9)]
    columns = zip(*four, strict=True)
    names = ("id", "major", "minor")
    b.epoch(pa.record_batch({name: pa.array(column) for name, column in zip(names, columns, strict=True)}))
    assert b.ask("SELECT id, major, minor FROM t ORDER BY id") == [(1, 0, 0), (2, 1, 0), (3, 1, 6), (4, 2, 0)]


@pytest.mark.parametrize("row", [(None, 1, "a"), (1, None, "a")], ids=["key", "order"])
def test_a_row_without_key_or_order_is_a_bad_record(sql_url: str, bench: Make, row: tuple[Any, ...]) -> None:
    with raises(BadRecord, "value-not-storable"):
        bench(sql_url, **UPSERT).epoch(rows((7, 7, "b"), row))


@pytest.mark.slow
def test_a_delete_takes_what_is_not_newer_and_a_late_older_record_does_not_bring_it_back(
    sql_url: str, bench: Make
) -> None:
    b = bench(sql_url, **DELETES)
    b.epoch(rows((1, 5, "a", False), (2, 5, "b", None), (3, 5, "c", False)))
    assert [c["name"] for c in sa.inspect(b.engine).get_columns("t")] == ["id", "v", "name"]
    b.epoch(rows((1, 5, None, True), (2, 4, None, True), (3, 6, None, True), (4, 9, None, True)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(2, 5, "b")]
    b.epoch(rows((1, 5, "late", False), (3, 5, "late", False), (4, 8, "late", False), (4, 9, "equal", False)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(2, 5, "b")]
    b.epoch(rows((1, 6, "again", False), (4, 10, "again", False), (4, 10, None, True)))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 6, "again"), (2, 5, "b")]


@pytest.mark.slow
def test_a_delete_is_forgotten_after_its_time_by_the_epochs_own_clock(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, **DELETES, deletes_kept_s=60)
    b.epoch(rows((1, 5, None, True)), now_ms=NOW_MS)
    b.epoch(rows((1, 4, "late", False)), now_ms=NOW_MS + 60_000)
    assert b.ask("SELECT * FROM t") == []
    b.epoch(rows((2, 1, "other", False)), now_ms=NOW_MS + 60_001)
    b.epoch(rows((1, 4, "late", False)), now_ms=NOW_MS + 60_002)
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(1, 4, "late"), (2, 1, "other")]


@pytest.mark.slow
def test_a_delete_is_remembered_when_its_columns_become_wider(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, **DELETES)
    gone = rows((1, 5, None, True), (2, 5, None, True))
    narrow = gone.schema.set(1, pa.field("v", pa.int32()))
    b.epoch(gone.cast(narrow))
    wider = {"mariadb": "ALTER TABLE t MODIFY v BIGINT", "postgresql": "ALTER TABLE t ALTER v TYPE bigint"}
    b.do(*(statement for dialect, statement in wider.items() if dialect == b.engine.dialect.name))
    b.open(gone.schema)
    b.epoch(rows((1, 4, "late", False), (2, 6, "newer", False)))
    assert b.ask("SELECT id, v, name FROM t") == [(2, 6, "newer")]


@pytest.mark.slow
def test_random_epochs_give_what_a_model_of_them_gives(sql_url: str, bench: Make) -> None:
    b, chance = bench(sql_url, **DELETES), random.Random(20_26)
    seen: dict[int, tuple[int, bool]] = {}  # the newest of each key; among equals, the delete
    for _ in range(12):
        some = [
            (chance.randrange(9), chance.randrange(12), chance.random() < 0.3) for _ in range(chance.randrange(1, 20))
        ]
        for key, version, gone in some:
            seen[key] = max(seen.get(key, (-1, False)), (version, gone))
        batch = rows(*((key, version, f"{key}.{version}", gone) for key, version, gone in some))
        b.epoch(batch.slice(0, len(some) // 2 or 1), *([batch.slice(len(some) // 2)] if len(some) > 1 else []))
        living = sorted((key, v, f"{key}.{v}") for key, (v, gone) in seen.items() if not gone)
        assert b.ask("SELECT id, v, name FROM t ORDER BY id") == living


@pytest.mark.slow
def test_keys_that_differ_in_case_or_blanks_are_different_rows_and_may_be_of_several_kinds(
    sql_url: str, bench: Make
) -> None:
    b = bench(sql_url, mode="upsert", key=("k", "day"), order=("at",), delete_when_true="gone")
    texts = ["a", "A", "a ", "ä", "'"]
    batch = pa.record_batch(
        {
            "k": pa.array(texts),
            "day": pa.array([date(2024, 1, 1)] * 5),
            "at": pa.array([datetime(2024, 1, 1, 0, 0, 0, i) for i in range(5)], pa.timestamp("us", "UTC")),
            "gone": pa.array([False, False, True, False, False]),
        }
    )
    b.epoch(batch)
    b.epoch(batch)
    assert sorted(k for (k,) in b.ask("SELECT k FROM t")) == sorted(["a", "A", "ä", "'"])


IGNORING_CASE = {  # Postgres needs ICU for it, and may be built without
    "sqlite": "VARCHAR(20) COLLATE NOCASE",
    "mariadb": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}


@pytest.mark.slow
@pytest.mark.parametrize("sql_url", IGNORING_CASE, indirect=True)
def test_keys_are_equal_where_the_table_takes_them_for_equal(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, mode="upsert", key=("k",), order=("v",), delete_when_true="gone")
    b.do(f"CREATE TABLE t (k {IGNORING_CASE[b.engine.dialect.name]} PRIMARY KEY, v BIGINT)")

    def versions(*found: tuple[str, int, bool]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(("k", "v", "gone"), one, strict=True)) for one in found])

    b.epoch(versions(("a", 1, False), ("b", 1, False)))
    b.epoch(versions(("A", 3, False), ("a", 2, False), ("C", 1, False), ("c", 2, False)))
    assert b.ask("SELECT lower(k), v FROM t ORDER BY v, lower(k)") == [("b", 1), ("c", 2), ("a", 3)]
    b.epoch(versions(("B", 1, True), ("a", 2, True)), versions(("c", 4, True), ("C", 3, False)))
    b.epoch(versions(("b", 1, False), ("C", 4, False)))
    assert b.ask("SELECT lower(k), v FROM t") == [("a", 3)]


def test_a_key_of_another_collation_than_the_databases_is_compared_by_its_own(postgres_url: str, bench: Make) -> None:
    b = bench(postgres_url, 'shop."% Orders"', **UPSERT | {"key": ("name",)})
    b.do("CREATE SCHEMA shop", 'CREATE TABLE shop."% Orders" (id BIGINT, v BIGINT, name TEXT COLLATE "C" PRIMARY KEY)')
    b.epoch(rows((1, 1, "a"), (2, 2, "a"), (3, 1, "A")))
    b.epoch(rows((4, 1, "a"), (5, 2, "A")))
    assert b.ask('SELECT id FROM shop."% Orders" ORDER BY id') == [(2,), (5,)]
    staged = "SELECT collation_name FROM information_schema.columns WHERE table_name LIKE 'onefold_stage%' AND {}"
    assert b.ask(staged.format("column_name = 'name' AND collation_name IS NOT NULL")) == [("C",)]


def test_an_upsert_needs_a_unique_index_of_exactly_its_key(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, **UPSERT)
    b.do("CREATE TABLE t (id BIGINT, v BIGINT, name VARCHAR(20), UNIQUE (id, v))")
    with raises(ConfigError, "unique-index-missing"):
        b.open(rows((1, 1, "a")).schema)
    b.do("CREATE UNIQUE INDEX by_id ON t (id)")
    b.epoch(rows((1, 1, "a")))


def test_columns_that_are_not_there_or_do_not_order_are_config_errors(sql_url: str, bench: Make) -> None:
    with raises(ConfigError, "column-missing"):
        bench(sql_url, **UPSERT).open(pa.schema({"id": pa.int64()}))
    if sql_url.startswith("postgres"):
        return  # texts have an order there
    with raises(ConfigError, "order-not-comparable"):
        bench(sql_url, "u", mode="upsert", key=("id",), order=("name",)).open(rows((1, 1, "a")).schema)


@pytest.mark.parametrize("name", ["onefold_attempt", "onefold_row", "onefold_rank", "onefold_timestamp_ms"])
def test_columns_named_as_the_sinks_own_are_config_errors(tmp_path: Path, bench: Make, name: str) -> None:
    with raises(ConfigError, "column-name-taken", f"{name}"):
        bench(f"sqlite:///{tmp_path / 'x.db'}", **DELETES).open(
            rows((1, 1, "a", True)).schema.append(pa.field(name, pa.int64()))
        )


def test_a_table_that_requires_the_column_that_marks_deletes_is_refused(tmp_path: Path, bench: Make) -> None:
    b = bench(f"sqlite:///{tmp_path / 'x.db'}", **DELETES)
    b.do("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, name TEXT, gone BOOLEAN NOT NULL)")
    with raises(SchemaMismatch, "table-mismatch"):
        b.open(rows((1, 1, "a", True)).schema)


def test_a_row_without_a_value_deletes_its_keys_row_where_null_means_that(sql_url: str, bench: Make) -> None:
    b = bench(sql_url, **UPSERT, delete_when_null="name")
    b.epoch(rows((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    b.epoch(rows((1, 2, None), (2, 0, None)))
    b.epoch(rows((1, 1, "late"), (3, 2, "d")))
    assert b.ask("SELECT id, v, name FROM t ORDER BY id") == [(2, 1, "b"), (3, 2, "d")]


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)
def test_remembered_deletions_are_not_forgotten_for_a_driver_that_goes_by_another_key(
    sql_url: str, bench: Make
) -> None:
    b = bench(sql_url, **DELETES)
    b.do("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL, name TEXT, UNIQUE (v))")
    b.epoch(rows((1, 5, "a", True)))
    zombie = SqlSink(sql_url, "t", **{**DELETES, "key": ("v",), "order": ("id",)})
    with raises(ConfigError, "tombstones-of-another-key"):
        zombie.open(PIPELINE, rows((1, 1, "a", True)).schema)
    b.epoch(rows((1, 4, "late", False)))
    assert b.ask("SELECT id FROM t") == []
