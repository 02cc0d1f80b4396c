"""Arrow batches made of nothing, or of one number.

pyarrow's own ways, `from_pylist` and `scalar`, import pandas where that is installed: a third of a second of each
process, which needs nothing else of Python's values.
"""

from __future__ import annotations

from array import array

import pyarrow as pa


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """No rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def repeated(number: int, times: int) -> pa.Int64Array:
    """The same number, so many times."""
    return pa.Array.from_buffers(pa.int64(), times, [None, pa.py_buffer(array("q", (number,)) * times)])
