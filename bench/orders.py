"""The demo's orders, as the contestants that parse them are told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["AVRO", "SCHEMA"]

SCHEMA = pa.schema(
    {"id": pa.int64(), "account": pa.int64(), "amount": pa.decimal128(12, 2), "at": pa.timestamp("us", "UTC")}
)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "account", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
