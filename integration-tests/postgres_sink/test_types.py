"""Every Arrow type that Spark can produce goes into Postgres and comes back, in both deliveries."""

# ruff: noqa: E501 - one line for each type
from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import uuid
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.tables.postgres_types import CASES, load

from onefold.core.errors import BadRecord, SchemaMismatch
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers

UTC = dt.UTC
D = decimal.Decimal


@pytest.fixture(params=["two_phase", "staged"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(url: str, query: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        connection.execute("SET timezone = 'UTC'")
        psycopg.types.json.set_json_loads(lambda text: json.loads(text, parse_float=D), connection)
        return [row[0] for row in connection.execute(query)]  # type: ignore[call-overload]


@pytest.mark.parametrize(("name", "kind", "values", "created", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_created_table_gives_every_value_back(
    postgres_url: str,
    delivery: str,
    name: str,
    kind: pa.DataType,
    values: list[Any],
    created: str,
    expected: list[Any] | None,
) -> None:
    array = pa.array(values, kind)
    padded = pa.concat_arrays([pa.array([values[0]], kind), array]) if not pa.types.is_dictionary(kind) else None
    ids = pa.array(range(len(values)))
    batch = pa.record_batch({"id": ids, name: padded.slice(1) if padded is not None else array})
    load(postgres_url, "t", batch, delivery)
    types = read(
        postgres_url,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum = 2",
    )
    assert types == [created]
    got = read(postgres_url, f'SELECT "{name}" FROM t ORDER BY id')
    assert got == (values if expected is None else expected)
    assert [type(a) for a in got] == [type(b) for b in (values if expected is None else expected)] or name == "uint64"


def test_not_a_number_goes_through_both_float_types(postgres_url: str) -> None:
    batch = pa.record_batch({"f": pa.array([math.nan], pa.float32()), "d": pa.array([math.nan])})
    load(postgres_url, "t", batch, "two_phase")
    assert read(postgres_url, "SELECT f = 'NaN' AND d = 'NaN' FROM t") == [True]


EXISTING: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.int8(), -128, "integer", -128),
    (pa.int16(), 7, "bigint", 7),
    (pa.int32(), 7, "numeric(10,0)", D(7)),
    (pa.int64(), 2**63 - 1, "numeric", D(2**63 - 1)),
    (pa.int32(), 7, "double precision", 7.0),
    (pa.float32(), 0.5, "double precision", 0.5),
    (pa.decimal128(10, 2), D("1.20"), "numeric", D("1.20")),
    (pa.decimal128(10, 2), D("1.20"), "numeric(12,4)", D("1.2000")),
    (pa.string(), "abc", "varchar(3)", "abc"),
    (pa.string(), "abc", "char(5)", "abc  "),
    (pa.string(), '{"a": [1]}', "json", {"a": [1]}),
    (pa.string(), '{"a": [1]}', "jsonb", {"a": [1]}),
    (pa.string(), "8C8E0A3B-5b1c-4a6e-9d0f-112233445566", "uuid", uuid.UUID("8c8e0a3b-5b1c-4a6e-9d0f-112233445566")),
    (pa.binary(16), bytes(range(16)), "uuid", uuid.UUID(bytes=bytes(range(16)))),
    (pa.struct([("a", pa.int32())]), {"a": 1}, "json", {"a": 1}),
    (pa.list_(pa.int32()), [1, None], "bigint[]", [1, None]),
    (pa.list_(pa.int32()), [1, None], "jsonb", [1, None]),
    (pa.null(), None, "uuid", None),
    (pa.string(), "red", "colour", "red"),
    (pa.int32(), 5, "small", 5),
    (pa.int32(), 5, "smaller", 5),
    (
        pa.timestamp("ms"),
        dt.datetime(2024, 1, 2, 3, 4, 5, 678000),
        "timestamp(3)",
        dt.datetime(2024, 1, 2, 3, 4, 5, 678000),
    ),
]


@pytest.mark.parametrize(("kind", "value", "declared", "expected"), EXISTING, ids=lambda x: str(x) if isinstance(x, str | pa.DataType) else "")  # fmt: skip
def test_an_existing_column_takes_what_it_can_hold_without_loss(
    postgres_url: str, delivery: str, kind: pa.DataType, value: Any, declared: str, expected: Any
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TYPE colour AS ENUM ('red', 'green')")
        connection.execute("CREATE DOMAIN small AS integer CHECK (value < 10)")
        connection.execute("CREATE DOMAIN smaller AS small CHECK (value < 9)")
        connection.execute(f"CREATE TABLE t (other text DEFAULT 'x', c {declared})")
    load(postgres_url, "t", pa.record_batch({"c": pa.array([value, None, value], kind)}), delivery)
    assert read(postgres_url, "SELECT c FROM t") == [expected, None, expected]


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.int64(), "integer"),
        (pa.int32(), "smallint"),
        (pa.int64(), "double precision"),
        (pa.int64(), "numeric(18,0)"),
        (pa.float64(), "real"),
        (pa.float64(), "numeric"),
        (pa.decimal128(12, 2), "numeric(12,4)"),
        (pa.decimal128(12, 4), "numeric(12,2)"),
        (pa.decimal128(12, 2), "double precision"),
        (pa.string(), "integer"),
        (pa.string(), "bytea"),
        (pa.timestamp("us"), "timestamptz"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us", "UTC"), "date"),
        (pa.timestamp("us"), "timestamp(3)"),
        (pa.timestamp("us", "UTC"), "timestamptz(0)"),
        (pa.time64("us"), "time(2)"),
        (pa.duration("us"), "interval day"),
        (pa.list_(pa.timestamp("us")), "timestamp(3)[]"),
        (pa.struct([("a", pa.int32())]), "text"),
        (pa.list_(pa.string()), "varchar[]"),
        (pa.list_(pa.int64()), "integer[]"),
        (pa.list_(pa.int64()), "text"),
        (pa.bool_(), "integer"),
    ],
    ids=str,
)
def test_a_type_that_could_lose_something_is_refused_by_the_columns_name(
    postgres_url: str, kind: pa.DataType, declared: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE t (fine text, "Odd" {declared})')
    with raises(SchemaMismatch, "table-mismatch") as caught:
        PostgresSink(postgres_url, "t").open("p", pa.schema([("fine", pa.string()), ("Odd", kind)]))
    assert [line.split()[1] for line in str(caught.value).splitlines() if line.startswith("  !")] == ["Odd"]


@pytest.mark.parametrize(
    ("array", "declared", "message"),
    [
        (pa.array(["a\0b"]), "text", "column c"),
        (pa.array([{"s": "a\0b"}]), "jsonb", "column c"),
        (pa.array(["toolong"]), "varchar(3)", "value too long"),
        (pa.array([1]), "bigint CONSTRAINT positive CHECK (c > 5)", "positive"),
        (pa.array([None], pa.int64()), "bigint NOT NULL DEFAULT 1", '"c"'),
        (pa.array([-(2**62)], pa.timestamp("us")), "timestamp", "out of range"),
        (pa.array([-(2**63)], pa.timestamp("us")), "timestamp", "sink 't' of pipeline 'types', epoch 1"),
        (pa.array([-(2**31)], pa.int32()).view(pa.date32()), "date", "cannot hold"),
        (pa.array(["no uuid"]), "uuid", "column c: 'no uuid' is not a UUID"),
        (pa.array(["{"]), "jsonb", "invalid input syntax for type json"),
    ],
    ids=str,
)
def test_a_row_that_postgres_refuses_is_a_bad_record_that_says_where(
    postgres_url: str, array: pa.Array, declared: str, message: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (c {declared})")
    with pytest.raises(BadRecord, match="epoch 1") as caught:
        load(postgres_url, "t", pa.record_batch({"c": array}), "two_phase")
    assert message in str(caught.value)
    assert read(postgres_url, "SELECT count(*) FROM t") == [0]
    assert read(postgres_url, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []


def test_many_batches_make_one_copy(postgres_url: str, delivery: str) -> None:
    batch = pa.record_batch({"id": pa.array(range(10_000)), "name": pa.array([f"name {n}" for n in range(10_000)])})
    load(postgres_url, "t", batch, delivery, batches=25)
    assert read(postgres_url, "SELECT count(*) FROM t WHERE name = 'name ' || id") == [250_000]
