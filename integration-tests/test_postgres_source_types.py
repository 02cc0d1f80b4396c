"""What the Postgres sink can write comes back exactly from the Postgres source, and what cannot come exactly doesn't."""

# ruff: noqa: E501 - one line for each type
from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from test_postgres_sink_types import CASES, load

from onefold.sources import PostgresSource
from onefold.sources.postgres import plan, read

pytestmark = pytest.mark.servers

D = decimal.Decimal
UTC = dt.UTC


def sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(source: PostgresSource, schema: pa.Schema | None = None) -> pa.Table:
    """All parts, at one snapshot."""
    with source.frozen() as frozen:
        parts = plan(frozen, schema)
        return pa.Table.from_batches([batch for part in parts for batch in read(part)], parts[0].schema)


def values(url: str, expression: str, kind: pa.DataType | None = None, narrowing: str = "refuse") -> list[Any]:
    """One column `c`, read as what it is by itself, or as `kind`."""
    source = PostgresSource(url, query=f"SELECT {expression} AS c", narrowing=narrowing)
    return list(rows(source, None if kind is None else pa.schema([("c", kind)])).column("c").to_pylist())


# A type that a table has no column for comes back as the one that it was written into.
WRITTEN_AS = {
    "uint64": pa.decimal128(20, 0),
    "large_string": pa.string(),
    "large_binary": pa.binary(),
    "zoned": pa.timestamp("us", "UTC"),
    "void": pa.string(),
    "byte": pa.int16(),
    "doubles": pa.list_(pa.float64()),
    "dictionary": pa.string(),
    "decimals": pa.list_(pa.string()),
    "struct": pa.string(),
    "map": pa.string(),
    "structs": pa.string(),
    "matrix": pa.string(),
}


def test_every_type_that_the_sink_writes_is_read_back_exactly_by_itself_and_as_it_was_written(
    postgres_url: str,
) -> None:
    batch = pa.record_batch(
        {
            name: pa.array(([*v, None, None, None, None])[:4], kind)
            for name, kind, v, *_ in CASES
            if not pa.types.is_dictionary(kind)
        }
    )
    load(postgres_url, "t", batch, "two_phase")
    source = PostgresSource(postgres_url, "t", narrowing="check")
    by_itself = rows(source)
    for field in batch.schema:
        assert by_itself.schema.field(field.name).type == WRITTEN_AS.get(field.name, field.type), field.name
    nested = ("struct", "map", "structs", "matrix")  # jsonb: its text is what is read
    simple = pa.schema([f for f in batch.schema if f.name not in nested])
    simple = pa.schema(
        [
            pa.field(
                f.name,
                {
                    "uint64": pa.decimal128(20, 0),
                    "zoned": pa.timestamp("us", "UTC"),
                    "large_string": pa.string(),
                    "large_binary": pa.binary(),
                    "doubles": pa.list_(pa.float64()),
                }.get(f.name, f.type),
            )
            for f in simple
        ]
    )
    back = rows(source, simple)
    assert back.schema == simple
    for name in simple.names:
        assert back.column(name).to_pylist() == batch.column(name).to_pylist(), name
    assert rows(source.__class__(postgres_url, "t", columns=["map"])).column("map").to_pylist()[:2] == [
        '{"k": 1, "l": null}',
        "{}",
    ]
