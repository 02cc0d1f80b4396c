"""`PostgresSource` as the contract's `Source`, on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from harness.errors import raises

from onefold.core import BadRecord, ConfigError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.source import ReadOnce
from onefold.core.testing import Promise, check_source
from onefold.sources import PostgresSource

pytestmark = pytest.mark.servers

EPOCH = Range(Positions.of({"@table numbers/0": 0}), Positions.of({"@table numbers/0": 1}))


@pytest.fixture
def numbers(postgres_url: str) -> str:
    """A table of some blocks: each row has a kilobyte."""
    sql(postgres_url, "CREATE TABLE numbers (id bigint, text text)")
    return postgres_url


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def put(url: str, ids: Sequence[int]) -> None:
    sql(url, f"INSERT INTO numbers SELECT n, repeat('x', 900) FROM generate_series({ids[0]}, {ids[-1]}) AS n")


def held(url: str) -> int:
    """How many transactions hold a snapshot for others to read."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%export_snap%'"
    ((count,),) = sql(url, f"{asked} AND state = 'idle in transaction'")
    return int(count)


@pytest.mark.parametrize("more", [{}, {"splits": 1}, {"split_by": "id", "splits": 4}], ids=str)
def test_it_keeps_every_promise_of_a_source_that_is_read_once(numbers: str, more: dict[str, Any]) -> None:
    def make(on_error: str, bad_records_max: int) -> PostgresSource:
        assert (on_error, bad_records_max) == ("fail", 0)
        return PostgresSource(numbers, "numbers", **more)

    report = check_source(make, lambda ids: put(numbers, ids))
    assert Promise.SOURCE_ONCE in report.promises
    assert held(numbers) == 0


def test_a_snapshot_is_held_from_the_plan_of_an_attempt_to_the_next_one_or_the_end_of_its_epoch(numbers: str) -> None:
    put(numbers, range(3_000))
    source = PostgresSource(numbers, "numbers", splits=3).resolved(lambda _, find: find())
    planner = source.planner()
    first = planner.splits(EPOCH)
    assert len(first) == 3
    assert held(numbers) == 1
    again = planner.splits(EPOCH)
    assert held(numbers) == 1
    with raises(Retriable, "snapshot-not-held"):
        list(source.read(first[0]))
    assert sum(part.rows.num_rows for split in again for part in source.read(split)) == 3_000
    planner.completed(EPOCH.start)
    assert held(numbers) == 1
    planner.completed(EPOCH.end)
    assert held(numbers) == 0
    planner.splits(EPOCH)
    planner.close()
    assert held(numbers) == 0


def test_columns_that_a_schemas_text_has_no_name_for_are_texts_and_a_schema_is_read_as_it_is(postgres_url: str) -> None:
    sql(
        postgres_url,
        "CREATE TABLE times (at time, took interval, several time[], price numeric(10, 2))",
        "INSERT INTO times VALUES ('12:00:01.5', '1 month 2 hours', '{00:00,24:00}', 12.50)",
    )
    found = PostgresSource(postgres_url, "times").resolved(lambda _, find: find())
    assert found.schema == "at string, took string, several array<string>, price decimal(10,2)"
    read = {"at": "12:00:01.5", "took": "P1MT2H", "several": ["00:00:00", "24:00:00"], "price": Decimal("12.50")}
    assert rows(found) == [read]
    given = PostgresSource(postgres_url, "times", schema="price decimal(12,4)").resolved(lambda _, find: find())
    assert [str(row["price"]) for row in rows(given)] == ["12.5000"]
    with raises(ConfigError, "schema-unsuitable"):
        rows(PostgresSource(postgres_url, "times", schema="price int"))
    with raises(BadRecord, "value-not-readable"):
        rows(PostgresSource(postgres_url, "times", schema="price int", narrowing="check"))


def rows(source: PostgresSource) -> list[dict[str, Any]]:
    planner = source.planner()
    try:
        splits = planner.splits(Range(planner.initial(), planner.latest(planner.initial())))
        return [row for split in splits for part in source.read(split) for row in part.rows.to_pylist()]
    finally:
        planner.close()


@pytest.mark.parametrize("snapshot", ["each", "00000003-00000002-1"])
def test_a_flow_takes_snapshots_of_its_own(snapshot: str) -> None:
    source = PostgresSource("postgresql://localhost:1/x", "orders", snapshot=snapshot, schema="id long")
    for ask in (source.arrow_schema, lambda: source.resolved(lambda _, find: find())):
        with raises(ConfigError, "option-not-allowed"):
            ask()
    assert isinstance(source, ReadOnce)
