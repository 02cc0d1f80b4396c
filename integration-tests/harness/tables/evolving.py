"""What the tests of schema evolution share: rows, wider rows, and the table as the server describes it."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from onefold.sinks import PostgresSink

__all__ = ["EVOLVED", "NEW", "OLD", "D", "Sql", "columns", "evolutions", "evolving"]

D = decimal.Decimal
OLD = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "name": pa.array(["a", None])})
NEW = pa.record_batch(
    {
        "id": pa.array([2**40, 2**41], pa.int64()),
        "name": pa.array(["c", "d"]),
        "Group": pa.array([D("1.50"), None], pa.decimal128(8, 2)),
        "tags": pa.array([["x"], None], pa.list_(pa.string())),
    }
)
EVOLVED = [
    ("id", "bigint", False),
    ("name", "text", False),
    ("Group", "numeric(8,2)", False),
    ("tags", "text[]", False),
]

Sql = Callable[..., list[Any]]


def columns(sql: Sql, table: str = "t") -> list[Any]:
    return sql(
        """SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
           WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum""",
        table,
    )


def evolutions(sql: Sql) -> list[Any]:
    """None also where a start was refused before it made anything."""
    if sql("SELECT to_regclass('onefold_sinks.onefold_evolutions') IS NULL") == [(True,)]:
        return []
    return sql(
        """SELECT pipeline, sink, statement, after_epoch, after_generation, role = current_user
           FROM onefold_sinks.onefold_evolutions ORDER BY evolution"""
    )


def evolving(url: str, table: str = "t", **more: Any) -> PostgresSink:
    return PostgresSink(url, table, evolve=True, **more)
