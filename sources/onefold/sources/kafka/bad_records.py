"""Bad records: the rows that become dead letters, cut to a size that every sink can hold; and the errors of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.sources.formats.values import BadValue
from onefold.sources.kafka.fetching.fetched_records import HEADER_BYTES, LETTER_BYTES_MAX, FetchedRecords, WantedFields
from onefold.sources.kafka.formats.record_columns import RAW_COLUMNS
from onefold.sources.kafka.offsets import OffsetRange

CUT = "onefold.cut"  # the header that says so
_PART_BYTES_MAX = LETTER_BYTES_MAX // 8  # of the key, and of the headers, where something has to go
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
_RAW = pa.schema([RAW_COLUMNS.field(name) for name in _RAW_OF.values()])


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


def may_change(wanted: OffsetRange, records: FetchedRecords, bad: BadValue) -> BadRecord:
    """The error for a record that may be good another time, where it would have to be judged twice."""
    return BadRecord(
        "record-verdict-unstable",
        f"{place_of(wanted, records, bad)}: {bad.reason}. It may be good another time, so a flow with an operator that"
        " Spark runs, which reads its records again for the dead letters, cannot judge this one. Start again, with its"
        " schema registered if it lacks that; or do without that operator: then each record is read once, and this one"
        " becomes a dead letter",
    )


def place_of(wanted: OffsetRange, records: FetchedRecords, bad: BadValue) -> str:
    offset = records.column(_RAW.field("offset"))[bad.index].as_py()
    return f"{wanted.topic}/{wanted.partition} offset {offset}"


def cut_to_fit(bad: pa.RecordBatch, sizes: Sequence[int | None]) -> pa.RecordBatch:
    """Bad records (`BAD_COLUMNS`) of which none has more than `LETTER_BYTES_MAX` bytes in key, value and headers.

    Of one that is cut, the last header is `onefold.cut`, with how many bytes it had and how many are kept as JSON, and
    its reason begins with that. `sizes`: the size of each record that was cut before, None where it is unknown; 0 for
    the others.
    """
    sums = pc.add(_lengths(bad.column("key")), _lengths(bad.column("value")))
    headers = bad.column("headers").to_pylist()
    totals = [total + _header_bytes(pairs) for total, pairs in zip(sums.to_pylist(), headers, strict=True)]
    if not any(size != 0 for size in sizes) and max(totals, default=0) <= LETTER_BYTES_MAX:
        return bad
    rows = [
        _cut(row, size or (total if size == 0 else None)) if size != 0 or total > LETTER_BYTES_MAX else row
        for row, size, total in zip(bad.to_pylist(), sizes, totals, strict=True)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=BAD_COLUMNS)


def _cut(row: dict[str, Any], size: int | None) -> dict[str, Any]:
    key, value = row["key"], row["value"]
    key = None if key is None else key[:_PART_BYTES_MAX]
    pairs, left = [], _PART_BYTES_MAX
    for pair in row["headers"] or ():
        left -= _header_bytes([pair])
        if left < 0:
            break
        pairs.append(pair)
    value = None if value is None else value[: LETTER_BYTES_MAX - 2 * _PART_BYTES_MAX]
    kept = len(key or b"") + len(value or b"") + _header_bytes(pairs)
    pairs.append({"key": CUT, "value": json.dumps({"bytes": size, "kept": kept}).encode()})
    of = "an unknown number of" if size is None else size
    return row | {
        "key": key,
        "value": value,
        "headers": pairs,
        "reason": f"cut to {kept} of {of} bytes: {row['reason']}",
    }


def _lengths(column: pa.BinaryArray) -> pa.Array:
    return pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)


def _header_bytes(pairs: Sequence[dict[str, Any]] | None) -> int:
    """With what each counts beside its bytes, so that empty ones have a bound, too."""
    return sum(HEADER_BYTES + len(pair["key"].encode()) + len(pair["value"] or b"") for pair in pairs or ())
