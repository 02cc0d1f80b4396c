"""What the Postgres sink can write comes back exactly from the Postgres source; what cannot come exactly is refused."""

# ruff: noqa: E501 - one line for each type
from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.tables.postgres_types import CASES, load

from onefold.core.errors import BadRecord, SchemaMismatch
from onefold.sources import PostgresSource
from onefold.sources.postgres import plan, read

pytestmark = pytest.mark.servers

D = decimal.Decimal
UTC = dt.UTC


def rows(source: PostgresSource, schema: pa.Schema | None = None) -> pa.Table:
    parts = plan(source, schema)
    return pa.Table.from_batches([batch for part in parts for batch in read(part)], parts[0].schema)


def query(url: str, select: str, **more: Any) -> PostgresSource:
    return PostgresSource(url, query=select, snapshot="each", **more)


# Where Postgres has no column for an Arrow type, it comes back as the one that the column holds. jsonb is text.
BY_ITSELF: dict[str, pa.DataType] = {
    "byte": pa.int16(),
    "uint64": pa.decimal128(20, 0),
    "large_string": pa.string(),
    "large_binary": pa.binary(),
    "zoned": pa.timestamp("us", "UTC"),
    "void": pa.string(),
    "doubles": pa.list_(pa.float64()),
    "decimals": pa.list_(pa.string()),  # the table has numeric[], without bounds
    **dict.fromkeys(("struct", "map", "structs", "matrix"), pa.string()),
}


def test_every_type_that_the_sink_writes_is_read_back_exactly(postgres_url: str) -> None:
    cases = {name: (kind, values) for name, kind, values, *_ in CASES if not pa.types.is_dictionary(kind)}
    longest = max(len(values) for _, values in cases.values())
    padded = {name: pa.array([*v, *[None] * (longest - len(v))], kind) for name, (kind, v) in cases.items()}
    load(postgres_url, "t", pa.record_batch(padded), "two_phase")
    source = PostgresSource(postgres_url, "t", snapshot="each", narrowing="check")
    found = rows(source)
    for name, (kind, _) in cases.items():
        assert found.schema.field(name).type == BY_ITSELF.get(name, kind), name
    assert found.column("map").to_pylist()[:3] == ['{"k": 1, "l": null}', "{}", None]
    # As it was written, wherever a Spark schema can say it.
    as_written = pa.schema(
        [
            (name, kind if name in ("byte", "void", "decimals") else BY_ITSELF.get(name, kind))
            for name, (kind, _) in cases.items()
        ]
    )
    back = rows(source, as_written)
    assert back.schema == as_written
    for name in cases.keys() - {"struct", "map", "structs", "matrix"}:
        assert back.column(name).to_pylist() == padded[name].to_pylist(), name


# The expression, what it is by itself, and the value.
VALUES: list[tuple[str, pa.DataType, Any]] = [
    ("'-Infinity'::float4", pa.float32(), -math.inf),
    ("1.20::numeric(12,4)", pa.decimal128(12, 4), D("1.2000")),
    ("1200::numeric(3,-2)", pa.decimal128(5, 0), D(1200)),
    ("0.00012::numeric(3,5)", pa.decimal128(5, 5), D("0.00012")),
    ("1::numeric(39,0)", pa.string(), "1"),
    ("1.200::numeric", pa.string(), "1.200"),
    ("'NaN'::numeric", pa.string(), "NaN"),
    ("''", pa.string(), ""),
    ("E'a\\nb\\r\\n\"c\" \\\\N \\\\. ,\\t'", pa.string(), 'a\nb\r\n"c" \\N \\. ,\t'),
    ("NULL::text", pa.string(), None),
    ("'abc'::char(5)", pa.string(), "abc  "),
    ("'abc'::varchar(5)", pa.string(), "abc"),
    ("'abc'::name", pa.string(), "abc"),
    ("'red'::colour", pa.string(), "red"),
    ("5::small", pa.int32(), 5),
    ("'x'::code", pa.string(), "x"),
    ("'\\x00ff5c'::bytea", pa.binary(), b"\x00\xff\\"),
    ("date '9999-12-31'", pa.date32(), dt.date(9999, 12, 31)),
    ("time '23:59:59.999999'", pa.time64("us"), dt.time(23, 59, 59, 999999)),
    ("timetz '01:00+02'", pa.string(), "01:00:00+02"),
    ("timestamptz '2024-01-01 02:00:00.000005+02'", pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 1, 0, 0, 0, 5, UTC)),
    ("interval '-40 days 1.000001 s'", pa.duration("us"), dt.timedelta(-40, 1, 1)),
    ("NULL::interval", pa.duration("us"), None),
    ("'00000000-0000-0000-0000-00000000000f'::uuid", pa.string(), "00000000-0000-0000-0000-00000000000f"),
    ("'{\"b\": 1.10,  \"a\":2}'::json", pa.string(), '{"b": 1.10,  "a":2}'),
    ("'{\"b\": 1.10,  \"a\":2}'::jsonb", pa.string(), '{"a": 2, "b": 1.10}'),
    ("ARRAY['red', NULL]::colour[]", pa.list_(pa.string()), ["red", None]),
    ("ARRAY[1.5, NULL]::numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), [D("1.50"), None]),
    ("ARRAY[interval '1 s', NULL]", pa.list_(pa.duration("us")), [dt.timedelta(seconds=1), None]),
    ("'{}'::text[]", pa.list_(pa.string()), []),
    ("NULL::text[]", pa.list_(pa.string()), None),
    ("4294967295::oid", pa.string(), "4294967295"),
    ("12.5::money", pa.string(), "$12.50"),
    ("inet '10.0.0.1'", pa.string(), "10.0.0.1/32"),
    ("int4range(1, 5)", pa.string(), "[1,5)"),
    ("ROW(1, 'a b')", pa.string(), '(1,"a b")'),
    ("point '(1,2)'", pa.string(), "(1,2)"),
]  # fmt: skip


@pytest.fixture
def typed_url(postgres_url: str) -> str:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TYPE colour AS ENUM ('red', 'green')")
        connection.execute("CREATE DOMAIN small AS integer CHECK (value < 10)")
        connection.execute("CREATE DOMAIN code AS text")
        # Nothing of how the role likes to see things may show in texts.
        connection.execute("ALTER DATABASE " + postgres_url.rpartition("/")[2] + " SET datestyle = 'SQL, DMY'")
    return postgres_url


def test_each_type_comes_as_documented_and_each_as_a_string_if_asked(typed_url: str) -> None:
    select = ", ".join(f"{expression} AS c{i}" for i, (expression, *_) in enumerate(VALUES))
    found = rows(query(typed_url, f"SELECT {select}"))
    assert found.schema.types == [kind for _, kind, _ in VALUES]
    for i, (expression, _, value) in enumerate(VALUES):
        assert found.column(i).to_pylist() == [value], expression
    not_a_number = rows(query(typed_url, "SELECT 'NaN'::float8 AS d, 'NaN'::float4 AS f"))
    assert all(math.isnan(not_a_number.column(name)[0].as_py()) for name in ("d", "f"))
    texts = rows(
        query(
            typed_url,
            "SELECT date '-infinity' AS d, interval '1 mon' AS i, '{{1},{2}}'::int[] AS a, '\\xff'::bytea AS b",
        ),
        pa.schema({name: pa.string() for name in "diab"}),
    )
    assert texts.to_pylist() == [{"d": "-infinity", "i": "P1M", "a": "{{1},{2}}", "b": "\\xff"}]


NO_PLACE = [
    ("date 'infinity'", "a date outside of the years 1 to 9999"),
    ("date '4713-01-01 BC'", "a date outside"),
    ("date '10000-01-01'", "a date outside"),
    ("timestamp '-infinity'", "a timestamp outside of the years 1 to 9999"),
    ("timestamptz '294276-01-01'", "a timestamp outside"),
    ("time '24:00'", "the time 24:00:00"),
    ("interval '1 month'", "an interval with months"),
    ("interval '9000000 hours'", "cannot be read"),
    ("ARRAY[[1, 2], [3, 4]]", "an array of several dimensions"),
    ("ARRAY[date '2020-01-01', 'infinity']", "a date outside"),
]


@pytest.mark.parametrize(("expression", "message"), NO_PLACE, ids=lambda x: x)
def test_a_value_that_arrow_or_spark_has_no_place_for_is_an_error_and_not_another_value(
    postgres_url: str, expression: str, message: str
) -> None:
    values = f"SELECT CASE WHEN i = 900 THEN {expression} END AS c FROM generate_series(1, 1000) AS i"
    with raises(BadRecord, "value-not-readable") as caught:
        rows(query(postgres_url, values))
    assert message in str(caught.value)
    assert "as a string" in str(caught.value)


NARROWER: list[tuple[str, pa.DataType, str, Any, str]] = [
    ("bigint", pa.int32(), "2147483647", 2147483647, "2147483648"),
    ("smallint", pa.int8(), "-128", -128, "128"),
    ("numeric", pa.decimal128(38, 18), "0.000000000000000001", D("0.000000000000000001"), "0.0000000000000000001"),
    ("numeric", pa.decimal128(38, 18), "99999999999999999999.5", D("99999999999999999999.5"), "532905379348671959597860.777210"),
    ("numeric(38,2)", pa.decimal128(38, 18), "99999999999999999999.5", D("99999999999999999999.5"), "99083161861181103869257.05"),
    ("numeric", pa.decimal128(4, 2), "-99.990", D("-99.99"), "100"),
    ("numeric", pa.decimal128(5, 2), "1.50", D("1.50"), "'NaN'"),
    ("numeric(12,2)", pa.decimal128(10, 0), "7.00", D(7), "7.01"),
    ("numeric", pa.int64(), "9223372036854775807.0", 2**63 - 1, "9223372036854775808"),
    ("float8", pa.float32(), "0.5", 0.5, "0.1"),
    ("float8", pa.int32(), "7", 7, "7.5"),
    ("text", pa.null(), "NULL", None, "'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("there", "kind", "fits", "value", "not_fits"), NARROWER, ids=str)
def test_a_narrower_type_is_refused_or_each_value_is_checked(
    postgres_url: str, there: str, kind: pa.DataType, fits: str, value: Any, not_fits: str
) -> None:
    schema = pa.schema({"c": kind})
    fitting = f"SELECT {fits}::{there} AS c"
    with raises(SchemaMismatch, "schema-unsuitable", "narrowing='check'"):
        plan(query(postgres_url, fitting), schema)
    assert rows(query(postgres_url, fitting, narrowing="check"), schema).column("c").to_pylist() == [value]
    with raises(BadRecord, "value-not-readable"):
        rows(query(postgres_url, f"{fitting} UNION ALL SELECT {not_fits}::{there}", narrowing="check"), schema)


def test_wider_types_are_read_and_others_refused_with_both_schemas_beside_each_other(postgres_url: str) -> None:
    select = "SELECT 1::int2 AS a, 2::int4 AS b, 0.5::float4 AS f, 1.5::numeric(3,1) AS n, '00000000-0000-0000-0000-00000000000f'::uuid AS u"
    wider = pa.schema(
        {"u": pa.binary(), "n": pa.decimal128(5, 2), "f": pa.float64(), "b": pa.decimal128(10, 0), "a": pa.int64()}
    )
    (row,) = rows(query(postgres_url, select), wider).to_pylist()
    assert row == {"u": bytes(15) + b"\x0f", "n": D("1.50"), "f": 0.5, "b": D(2), "a": 1}
    given = pa.schema(
        {"at": pa.timestamp("us"), "t": pa.int32(), "n": pa.int64(), "gone": pa.string(), "xs": pa.list_(pa.int16())}
    )
    with pytest.raises(SchemaMismatch) as caught:
        plan(
            query(
                postgres_url,
                "SELECT now() AS at, 'x' AS t, 1::int4 AS n, ARRAY[1] AS xs, true AS more",
                narrowing="refuse",
            ),
            given,
        )
    lines = [line.split("  ") for line in caught.value.message.splitlines()]
    assert [[text.strip() for text in line if text.strip()] for line in lines[1:]] == [
        ["column", "in Postgres", "given"],
        ["at", "timestamp with time zone", "timestamp[us]", "can be read as timestamp[us, tz=UTC], or as a string"],
        ["t", "text", "int32", "can be read as string"],
        ["n", "integer", "int64"],
        ["gone", "-", "string", "there is no such column"],
        [
            "xs",
            "integer[]",
            "list<item: int16>",
            "has values that do not fit; widen it, or narrowing='check' looks at each value",
        ],
        ["more", "boolean", "-"],
    ]
