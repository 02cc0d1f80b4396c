"""The direct path: Spark carries offset ranges, and the task that writes a range also reads and parses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.core import ConfigError, OnefoldError
from onefold.core.source import Part, Split
from onefold.core.values.places import raised_at
from onefold.core.values.plain import plain
from onefold.core.writing.bad_records import Bad
from onefold.spark.runtime.workers import is_guarded

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["RANGES", "RANGES_DDL", "BadFetch", "Fetch", "Transform", "parts_of"]

RANGES_DDL = "topic string, partition int, start bigint, end bigint, topic_id string"  # an OffsetRange
RANGES = {"direct": "ranges"}  # the option that makes `onefold_kafka` deliver ranges instead of records

Transform = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Fetch:
    """Turns a batch of offset ranges into batches of rows to write. Pickles; runs in the writing task."""

    source: KafkaSource
    schema: pa.Schema
    transform: Transform | None

    @classmethod
    def of(cls, source: KafkaSource, transform: Transform | None) -> Fetch:
        """Finds the schemas: the records' from the source, the rows' by transforming an empty batch."""
        records = source.arrow_schema()
        if transform is None:
            return cls(source, records, None)
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in records], schema=records)
        first = _first(transform, empty)
        if first is None:
            raise ConfigError(
                "transform-without-schema",
                "transform must return at least one record batch, also for an empty one: its schema is the rows'"
                " schema",
            )
        return cls(source, first.schema, transform)

    def __call__(self, ranges: pa.RecordBatch) -> Iterator[pa.RecordBatch | Bad]:
        for part in parts_of(self.source, ranges):
            if part.bad.num_rows:
                yield Bad(part.bad)
            if not part.rows.num_rows:
                continue
            if self.transform is None:
                yield part.rows
            else:
                yield from self.transform(part.rows)


def parts_of(source: KafkaSource, ranges: pa.RecordBatch) -> Iterator[Part]:
    """The records of a batch of offset ranges; in a task."""
    from onefold.sources.kafka import OffsetRange

    for row in ranges.to_pylist():  # a row is a whole range of records
        split = Split(f"{row['topic']}/{row['partition']}", OffsetRange(**row))
        yield from source.read(split, guarded=is_guarded())


def _first(transform: Transform, empty: pa.RecordBatch) -> pa.RecordBatch | None:
    try:
        return next(iter(transform(empty)), None)
    except OnefoldError:
        raise
    except Exception as error:
        raise ConfigError(
            "transform-failed",
            f"the transformation's function failed{raised_at(error)}: {type(error).__name__}: {plain(str(error))}. It"
            " was called with a batch without rows, by which its columns are found: it has to take one",
        ) from error


@dataclass(frozen=True)
class BadFetch:
    """Turns a batch of offset ranges into their bad records. Pickles; runs in the writing task."""

    source: KafkaSource
    records: pa.Schema
    repeatable: bool = True  # see `read_parts`

    def __call__(self, ranges: pa.RecordBatch) -> Iterator[Bad]:
        from onefold.sources.kafka import OffsetRange, read_parts

        for row in ranges.to_pylist():
            wanted = OffsetRange(**row)
            parts = read_parts(self.source, self.records, wanted, repeatable=self.repeatable, guarded=is_guarded())
            for part in parts:
                if part.bad.num_rows:
                    yield Bad(part.bad)
