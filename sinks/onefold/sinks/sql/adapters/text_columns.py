"""Columns as text that a database reads back exactly, for those that are loaded as text."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["as_text"]

_YEARS = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def as_text(values: Any) -> Any:
    """A string array; timestamps in UTC with six digits. Raises ValueError for years outside of 1 to 9999."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_float32(kind):
        values = values.cast(pa.float64())  # with all the digits that a wider column keeps
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = values.cast(pa.timestamp("us"))
        low, high = (pa.scalar(year, pa.timestamp("us")) for year in _YEARS)
        outside = pc.or_(pc.less(moments, low), pc.greater(moments, high))
        if pc.any(outside).as_py():
            raise ValueError("a date before the year 1 or after the year 9999")
        return (moments if pa.types.is_timestamp(kind) else values).cast(pa.string())
    return values.cast(pa.string())
