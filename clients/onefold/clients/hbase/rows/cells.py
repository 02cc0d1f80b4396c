"""One column of many rows, as it goes to a table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["KEY_BYTES_MAX", "Cells"]

KEY_BYTES_MAX = 32_767  # HBase's own: Short.MAX_VALUE


@dataclass(frozen=True, slots=True)
class Cells:
    """A value for each row key. A row whose value is null gets no cell."""

    family: bytes
    qualifier: bytes
    values: pa.BinaryArray
