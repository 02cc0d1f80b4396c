"""Days before 1582-10-15 as old writers have them: Spark 2 and Hive count them by the Julian calendar.

Spark's `RebaseDateTime` has the rules. Days are the same dates in both calendars once so many days are added as Julian
leap years since are none in the Gregorian one. Timestamps before 1900 depend on the zone of the writer, too, which a
file does not say for certain: they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.sources.files.parquet.nested import inside

__all__ = ["AmbiguousCalendar", "Calendar", "calendar_of", "rebased"]

_CUTOVER = -141_427  # 1582-10-15
# Days of the Julian calendar from which on it is a day less ahead: 100-03-01, 200-03-01, 300-03-01, 500-03-01...
_STEPS = (
    *(-682_945, -646_420, -609_895, -536_845, -500_320, -463_795),
    *(-390_745, -354_220, -317_695, -244_645, -208_120, -171_595),
)
_MODERN = {b"parquet.avro.schema", b"iceberg.schema"}  # of writers with java.time
_1900_US = -2_208_988_800_000_000


class AmbiguousCalendar(ValueError):
    """A time whose calendar is not known, in the row at `index`, or in some row."""

    def __init__(self, index: int | None, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


@dataclass(frozen=True, slots=True)
class Calendar:
    """Of one file, "new", "julian", or "unknown": of dates and timestamps, and of timestamps of 96 bits."""

    dates: str
    int96: str


def calendar_of(metadata: Mapping[bytes, bytes] | None, created_by: str | None) -> Calendar:
    """By what a file says of its writer."""
    found = metadata or {}
    version = tuple(int(part) for part in re.findall(rb"\d+", found.get(b"org.apache.spark.version", b""))[:2])
    if version:
        old = version < (3, 0) or b"org.apache.spark.legacyDateTime" in found
        old96 = version < (3, 1) or b"org.apache.spark.legacyINT96" in found
        return Calendar(dates="julian" if old else "new", int96="julian" if old96 else "new")
    if b"writer.date.proleptic" in found:  # Hive
        said = "new" if found[b"writer.date.proleptic"] == b"true" else "julian"
        return Calendar(dates=said, int96="unknown")
    is_spark_2 = b"org.apache.spark.sql.parquet.row.metadata" in found
    is_java = (created_by or "").startswith("parquet-mr") and not _MODERN & found.keys()
    dates = "julian" if is_spark_2 else "unknown" if is_java else "new"
    return Calendar(dates=dates, int96=dates)


def rebased(array: pa.Array, calendar: str) -> pa.Array:
    """The same days in the Gregorian calendar. Raises `AmbiguousCalendar` where that cannot be told."""
    kind = array.type
    if calendar == "new":
        return array
    if pa.types.is_date32(kind):
        days = array.view(pa.int32())
        old = pc.less(days, _CUTOVER)
        if not old.true_count:
            return array
        if calendar == "unknown":
            raise AmbiguousCalendar(pc.index(old, True).as_py(), "a date before 1582-10-15, of an unknown calendar")
        steps = [pc.less(days, step).cast(pa.int32()) for step in _STEPS]
        more = pa.scalar(-10, pa.int32())
        for step in steps:
            more = pc.add(more, step)
        return pc.if_else(old, pc.add(days, more), days).view(kind)
    if pa.types.is_timestamp(kind):
        old = pc.less(array.cast(pa.timestamp("us", kind.tz), safe=False).view(pa.int64()), _1900_US)
        if old.true_count:
            raise AmbiguousCalendar(
                pc.index(old, True).as_py(), "a timestamp before 1900, of an unknown calendar or zone"
            )
    for inner in inside(array):
        try:
            rebased(inner, "unknown")
        except AmbiguousCalendar as error:
            raise AmbiguousCalendar(None, error.reason) from None
    return array
