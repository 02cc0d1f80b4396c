"""Records that cannot be read as their format says, kept as they were, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from confluent_kafka import Message

from onefold.core.dead_letters import BAD_COLUMNS
from onefold.core.errors import BadRecord
from onefold.sources.kafka import raw
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.sifting import BadValue

__all__ = ["bad_batch", "open_question", "refusal", "refused"]

# The raw column that each of `BAD_COLUMNS` is; `reason` comes behind.
_RAW_OF = {
    "source_topic": "topic",
    "source_partition": "partition",
    "source_offset": "offset",
    "source_timestamp": "timestamp",
    "key": "key",
    "value": "value",
    "headers": "headers",
}
_RAW = pa.schema([raw.RAW_COLUMNS.field(name) for name in _RAW_OF.values()])


def bad_batch(messages: Sequence[Message], bad: Sequence[BadValue]) -> pa.RecordBatch:
    """The bad ones among one range's messages, as `BAD_COLUMNS`."""
    if not bad:
        return pa.RecordBatch.from_pylist([], schema=BAD_COLUMNS)
    columns = raw.to_batch([messages[value.index] for value in bad], _RAW).columns
    reasons = pa.array([value.reason for value in bad], pa.string())
    return pa.RecordBatch.from_arrays([*columns, reasons], schema=BAD_COLUMNS)


def refused(wanted: OffsetRange, message: Message, bad: BadValue, bad_max: int | None) -> BadRecord:
    """The error for a bad record where none is allowed (`bad_max` is None), or no more than that many."""
    return refusal(_at(wanted, message), message.value(), bad, bad_max)


def refusal(where: str, value: bytes | None, bad: BadValue, bad_max: int | None) -> BadRecord:
    """The same for a record that somebody else has read."""
    at = f"{where}: {bad.reason}. The value is {_short(value)}"
    if bad_max is None:
        return BadRecord(
            f"{at}. Correct the schema; or say what is to become of such records, with on_error='dead_letter' or"
            " on_error='skip'; or read with format=raw and deal with them yourself"
        )
    return BadRecord(
        f"more than bad_records_max={bad_max} records cannot be read. The first beyond: {at}. Nothing of this epoch was"
        " written. If the schema is right and the records are not, raise bad_records_max"
    )


def open_question(wanted: OffsetRange, message: Message, bad: BadValue) -> BadRecord:
    """The error for a record that may be good another time, where it would have to be judged twice."""
    return BadRecord(
        f"{_at(wanted, message)}: {bad.reason}. It may have one later, so a pipeline that reads its records through"
        " Spark, and reads them again for the dead letters, cannot judge this one. Register the schema; or use"
        " pipeline.stream, which reads each record once and makes this one a dead letter"
    )


def _at(wanted: OffsetRange, message: Message) -> str:
    return f"{wanted.topic}/{wanted.partition} offset {message.offset()}"


def _short(value: bytes | None, length_max: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(value or b'')} bytes)"
