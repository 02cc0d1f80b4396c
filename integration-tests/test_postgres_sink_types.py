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
import sqlalchemy as sa

from onefold.core.contract import Committable, Decided, EpochRecord, EpochState, LastResource, LedgerEntry, TaskId
from onefold.core.errors import BadRecord, SchemaMismatch
from onefold.core.positions import Positions, Range
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers

UTC = dt.UTC
D = decimal.Decimal


def load(url: str, table: str, batch: pa.RecordBatch, delivery: str, batches: int = 1) -> PostgresSink:
    """One whole epoch of one task, up to visible rows."""
    sink = PostgresSink(url, table, delivery=delivery)
    committer = sink.open("types", batch.schema)
    writer = sink.writer(TaskId("types", 1, 1, 1000, uuid.uuid4()))
    for _ in range(batches):
        writer.write(batch)
    prepared = writer.prepare()
    assert prepared is not None
    assert prepared.rows == batch.num_rows * batches
    committer.verify([prepared])
    record = _record(prepared)
    entry = LedgerEntry(1, 1, 1000, Positions(), "store")
    if delivery == "staged":
        assert isinstance(committer, LastResource)
        store = sink.store_url()
        assert store is not None
        engine = sa.create_engine(store)
        with engine.begin() as connection:
            committer.merge(connection, record, record.manifest, entry)
        engine.dispose()
    committer.commit(Decided(record), record.manifest)
    committer.write_ledger(entry)
    committer.close()
    return sink


def _record(prepared: Committable) -> EpochRecord:
    range_ = Range(Positions(), Positions.of({"t/0": 5}))
    return EpochRecord("types", 1, 1, EpochState.DECIDED, range_, 1000, "q", 0, "f", (prepared,), (prepared.sink,))


@pytest.fixture(params=["two_phase", "staged"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


NESTED = pa.struct(
    [("a", pa.int64()), ("d", pa.decimal128(38, 18)), ("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.string()))]
)
NESTED_VALUE = {
    "a": 2**63 - 1,
    "d": D("1.000000000000000001"),
    "t": dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
    "l": ['é"\\\n', None],
}
NESTED_JSON = {
    "a": 2**63 - 1,
    "d": D("1.000000000000000001"),
    "t": "2024-02-29T01:02:03.000004Z",
    "l": ['é"\\\n', None],
}

# name, Arrow type, values, the type of the column that is created, what is read back (None: the values themselves)
CASES: list[tuple[str, pa.DataType, list[Any], str, list[Any] | None]] = [
    ("boolean", pa.bool_(), [True, False, None], "boolean", None),
    ("byte", pa.int8(), [-128, 127, None], "smallint", None),
    ("short", pa.int16(), [-(2**15), 2**15 - 1, None], "smallint", None),
    ("integer", pa.int32(), [-(2**31), 2**31 - 1, None], "integer", None),
    ("long", pa.int64(), [-(2**63), 2**63 - 1, None], "bigint", None),
    ("uint64", pa.uint64(), [0, 2**64 - 1, None], "numeric(20,0)", None),
    ("float", pa.float32(), [1.5, -0.0, math.inf, None], "real", None),
    ("double", pa.float64(), [0.1, 5e-324, -math.inf, None], "double precision", None),
    ("decimal", pa.decimal128(38, 18), [D("99999999999999999999.999999999999999999"), D("-0.000000000000000001"), D(0), None], "numeric(38,18)", None),
    ("money", pa.decimal128(12, 2), [D("1234567890.12"), D("-0.01"), None], "numeric(12,2)", None),
    ("decimal0", pa.decimal128(38, 0), [D("9" * 38), None], "numeric(38,0)", None),
    ("string", pa.string(), ["", "naïve ☃ 🙂", "a\tb\nc\\", None], "text", None),
    ("large_string", pa.large_string(), ["x" * 100_000, None], "text", None),
    ("binary", pa.binary(), [b"", b"\x00\xff", None], "bytea", None),
    ("large_binary", pa.large_binary(), [b"x", None], "bytea", None),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), None], "date", None),
    ("timestamp", pa.timestamp("us", "UTC"), [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC), None], "timestamp with time zone", None),
    ("zoned", pa.timestamp("us", "America/New_York"), [dt.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC), None], "timestamp with time zone", None),
    ("timestamp_ntz", pa.timestamp("us"), [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1969, 12, 31), None], "timestamp without time zone", None),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None], "time without time zone", None),
    ("interval", pa.duration("us"), [dt.timedelta(40, 1, 7), dt.timedelta(microseconds=-3), None], "interval", None),
    ("void", pa.null(), [None, None], "text", None),
    ("longs", pa.list_(pa.int64()), [[1, None, 2**63 - 1], [], None], "bigint[]", None),
    ("strings", pa.list_(pa.string()), [["a", None, "{\"}"], [], None], "text[]", None),
    ("decimals", pa.list_(pa.decimal128(10, 2)), [[D("1.20"), None], [], None], "numeric[]", None),
    ("dates", pa.list_(pa.date32()), [[dt.date(2020, 1, 1), None], None], "date[]", None),
    ("instants", pa.list_(pa.timestamp("us", "UTC")), [[dt.datetime(2020, 1, 1, 0, 0, 0, 5, UTC), None, dt.datetime(1900, 1, 1, tzinfo=UTC)], [], None, [None]], "timestamp with time zone[]", None),
    ("times_ntz", pa.list_(pa.timestamp("us")), [[dt.datetime(2020, 1, 1), None], []], "timestamp without time zone[]", None),
    ("binaries", pa.list_(pa.binary()), [[b"\x00", None], []], "bytea[]", None),
    ("bools", pa.list_(pa.bool_()), [[True, None, False]], "boolean[]", None),
    ("doubles", pa.large_list(pa.float64()), [[0.5, None]], "double precision[]", None),
    ("struct", NESTED, [NESTED_VALUE, None], "jsonb", [NESTED_JSON, None]),
    ("map", pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], [], None], "jsonb", [{"k": 1, "l": None}, {}, None]),
    ("structs", pa.list_(NESTED), [[NESTED_VALUE, None], [], None], "jsonb", [[NESTED_JSON, None], [], None]),
    ("matrix", pa.list_(pa.list_(pa.int32())), [[[1], [], None]], "jsonb", [[[1], [], None]]),
    ("dictionary", pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a", None], "text", None),
]  # fmt: skip


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
    with pytest.raises(SchemaMismatch, match="cannot take every such value") as caught:
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
