"""Source records that could not be read, as rows for a sink of their own. Every source and every sink knows these."""

from __future__ import annotations

import pyarrow as pa

from onefold.core.contract import TaskId

__all__ = ["BAD_COLUMNS", "LETTER_COLUMNS", "LETTER_HEADERS", "letters"]

# A record as it was, and why it could not be read.
BAD_COLUMNS = pa.schema(
    {
        "source_topic": pa.string(),
        "source_partition": pa.int32(),
        "source_offset": pa.int64(),
        "source_timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "reason": pa.string(),
    }
)

# And which epoch of which pipeline it belongs to.
LETTER_COLUMNS = pa.schema([*BAD_COLUMNS, pa.field("pipeline", pa.string()), pa.field("epoch", pa.int64())])

# What a Kafka topic of dead letters keeps as headers, beside the record's own: KafkaSink(format="raw", headers=...).
LETTER_HEADERS = tuple(name for name in LETTER_COLUMNS.names if name not in ("key", "value", "headers"))


def letters(bad: pa.RecordBatch, task: TaskId) -> pa.RecordBatch:
    """Bad records (`BAD_COLUMNS`) as the dead letters (`LETTER_COLUMNS`) of a task's epoch."""
    of = [pa.scalar(task.pipeline, pa.string()), pa.scalar(task.epoch, pa.int64())]
    arrays = [*bad.columns, *(pa.repeat(value, bad.num_rows) for value in of)]
    return pa.RecordBatch.from_arrays(arrays, schema=LETTER_COLUMNS)
