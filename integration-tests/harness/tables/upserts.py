"""Versions of rows, and the sinks that merge them: what the tests of upserts share."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa

from onefold.sinks import PostgresSink

__all__ = ["DELETIONS", "DELIVERIES", "MARKED", "SCHEMA", "ask", "deleting", "marked", "rows", "table", "upsert"]

DELIVERIES = ["staged", "two_phase", "direct"]
SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("name", pa.string())])
DELETIONS = "SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_deleted_' AND relkind = 'r'"
MARKED = SCHEMA.append(pa.field("gone", pa.bool_()))


def rows(*values: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = zip(*values, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def marked(*values: tuple[Any, ...]) -> pa.RecordBatch:
    return rows(*values, schema=MARKED)


def upsert(url: str, delivery: str = "staged", table: str = "t", **more: Any) -> PostgresSink:
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "order": "version", **more}
    return PostgresSink(url, table, delivery=delivery, **settings)


def deleting(url: str, delivery: str = "staged", **more: Any) -> PostgresSink:
    return upsert(url, delivery, delete_when_true="gone", **more)


def ask(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def table(url: str, name: str = "t") -> list[Any]:
    return ask(url, f"SELECT * FROM {name} ORDER BY 1, 2")
