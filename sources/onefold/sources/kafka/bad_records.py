"""Bad records: the rows that become dead letters, and the errors that stop a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.sources.formats.values import BadValue
from onefold.sources.kafka.dead_letter_size import cut_to_fit
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords, WantedFields
from onefold.sources.kafka.formats import raw
from onefold.sources.kafka.offset_range import OffsetRange

__all__ = ["bad_batch", "may_change", "refused"]

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


def bad_batch(records: FetchedRecords, bad: Sequence[BadValue], wanted: WantedFields) -> pa.RecordBatch:
    """The bad ones among one range's records, as `BAD_COLUMNS`; null in columns that were not fetched."""
    if not bad:
        return empty_batch(BAD_COLUMNS)
    at = pa.array([value.index for value in bad], pa.int64())
    arrays = [
        records.column(field).take(at) if getattr(wanted, field.name, True) else pa.nulls(len(bad), field.type)
        for field in _RAW
    ]
    reasons = pa.array([value.reason for value in bad], pa.string())
    batch = pa.RecordBatch.from_arrays([*arrays, reasons], schema=BAD_COLUMNS)
    return cut_to_fit(batch, [records.too_large.get(value.index, 0) for value in bad])


def refused(wanted: OffsetRange, records: FetchedRecords, bad: BadValue, bad_max: int | None) -> BadRecord:
    """The error for a bad record where none is allowed (`bad_max` is None), or no more than that many."""
    at = f"{_at(wanted, records, bad)}: {bad.reason}. The value is {_short(records.values[bad.index])}"
    if bad_max is None:
        return BadRecord(
            "record-unreadable",
            f"{at}. Correct the schema; or say what is to become of such records, with on_error='dead_letter' or"
            " on_error='skip'; or read with format=raw and deal with them yourself",
        )
    return BadRecord(
        "too-many-bad-records",
        f"more than bad_records_max={bad_max} records cannot be read. The first beyond: {at}. Nothing of this epoch was"
        " decided. If the schema is right and the records are not, raise bad_records_max",
    )


def may_change(wanted: OffsetRange, records: FetchedRecords, bad: BadValue) -> BadRecord:
    """The error for a record that may be good another time, where it would have to be judged twice."""
    return BadRecord(
        "record-verdict-unstable",
        f"{_at(wanted, records, bad)}: {bad.reason}. It may be good another time, so a flow with an operator that Spark"
        " runs, which reads its records again for the dead letters, cannot judge this one. Start again, with its schema"
        " registered if it lacks that; or do without that operator: then each record is read once, and this one becomes"
        " a dead letter",
    )


def _at(wanted: OffsetRange, records: FetchedRecords, bad: BadValue) -> str:
    offset = records.column(_RAW.field("offset"))[bad.index].as_py()
    return f"{wanted.topic}/{wanted.partition} offset {offset}"


def _short(value: bytes | None, length_max: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(value or b'')} bytes)"
