"""Arrow's values as Python's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa


def python_values(column: pa.Array) -> list[Any]:
    """What `column.to_pylist()` gives, or raises: but dates, timestamps without a zone or in UTC, and decimals without
    an object of Arrow's for each, which takes three to thirty times as long."""
    of, found = column.type, None
    is_one_clock = pa.types.is_timestamp(of) and of.tz in (None, "UTC") and of.unit != "ns"
    if is_one_clock or pa.types.is_date32(of):
        found = _times(column, of.unit if is_one_clock else "D")
    elif pa.types.is_decimal128(of) and of.scale >= 0:
        found = [None if text is None else Decimal(text) for text in column.cast(pa.string()).to_pylist()]
    values: list[Any] = column.to_pylist() if found is None else found
    return values


def _times(column: pa.Array, unit: str) -> list[Any] | None:
    """None where one is of a year that Python does not have."""
    epoch, times = pa.scalar(0, column.type).as_py(), column.to_numpy(zero_copy_only=False)
    if (times != times).sum() > column.null_count:  # the lowest number is NumPy's null
        return None
    try:
        return [None if since is None else epoch + since for since in times.view(f"m8[{unit}]").tolist()]
    except (OverflowError, TypeError):  # of integers, where timedeltas do not reach
        return None
