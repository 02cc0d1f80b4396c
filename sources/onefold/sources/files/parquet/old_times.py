"""Times as old writers have them: timestamps of 96 bits (INT96), and days before 1582-10-15.

INT96, of Spark, Hive and Impala, is days, and nanoseconds within one. They say nothing of a zone: they are instants, or
none, as the schema says. Arrow reads them as nanoseconds of 64 bits, which wrap beyond the year 2262, or as
microseconds, which lose nanoseconds: both together tell whether it is exact.

Spark 2 and Hive count days by the Julian calendar; Spark's `RebaseDateTime` has the rules. Days are the same dates in
both calendars once so many days are added as Julian leap years since are none in the Gregorian one. Timestamps before
1900 depend on the zone of the writer, too, which a file does not say for certain: they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.sources.formats.value_range import inside


def columns_with_int96(metadata: pa.parquet.FileMetaData, there: pa.Schema) -> set[str]:
    """The columns of a file that are such, or have such inside."""
    found = map(metadata.schema.column, range(metadata.num_columns))
    paths = [f"{column.path}." for column in found if column.physical_type == "INT96"]
    return {name for name in there.names if any(path.startswith(f"{name}.") for path in paths)}


def timed(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type of such a column with microseconds, and with the zones that the schema's type has."""
    is_ = pa.types
    if is_.is_timestamp(kind):
        zone = wanted.tz if kind.tz is None and is_.is_timestamp(wanted) else kind.tz
        return pa.timestamp("us", zone)
    if is_.is_list(kind) and is_.is_list(wanted):
        return pa.list_(kind.value_field.with_type(timed(kind.value_type, wanted.value_type)))
    if is_.is_map(kind) and is_.is_map(wanted):
        return pa.map_(
            kind.key_field.with_type(timed(kind.key_type, wanted.key_type)),
            kind.item_field.with_type(timed(kind.item_type, wanted.item_type)),
        )
    if is_.is_struct(kind) and is_.is_struct(wanted):
        types = {wanted[at].name: wanted[at].type for at in range(wanted.num_fields)}
        fields = [kind[at] for at in range(kind.num_fields)]
        return pa.struct([field.with_type(timed(field.type, types.get(field.name, field.type))) for field in fields])
    return kind


def blurred(microseconds: pa.RecordBatch, nanoseconds: pa.RecordBatch) -> list[int]:
    """The rows in which microseconds are not all that there is."""
    rows = set[int]()
    for name in nanoseconds.schema.names:
        exact, read = nanoseconds.column(name), microseconds.column(name)
        if not _differs(exact, read):
            continue
        rows.update(row for row in range(len(exact)) if _differs(exact.slice(row, 1), read.slice(row, 1)))
    return sorted(rows)


def _differs(exact: pa.Array, read: pa.Array) -> bool:
    """Products wrap at 2^64 as the nanoseconds do."""
    return any(
        pc.any(pc.not_equal(ns.view(pa.int64()), pc.multiply(us.view(pa.int64()), 1000))).as_py()
        for ns, us in zip(_times(exact), _times(read), strict=True)
        if ns.type.unit == "ns"
    )


def _times(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_timestamp(array.type):
        yield array
    for part in inside(array):
        yield from _times(part)


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
