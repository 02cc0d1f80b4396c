"""The records that a pipeline has read and each sink is to have, as a bounded DataFrame, and the epoch of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType

from onefold.core import EpochRecord, EpochState, Positions, Range
from onefold.core.invariants import ADOPTED
from onefold.core.moves import begins_by, covered, first_name, ranges
from onefold.core.positions import TOPIC_ID
from onefold.core.source import Source, Split
from onefold.sources.kafka import KafkaSource
from onefold.sources.kafka.formats.record_columns import POSITION_COLUMNS, parsed_part
from onefold.spark.formats.bounded_records import read_splits, read_values
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.reconcile import EPOCH, FORGOTTEN
from onefold.spark.verify.second_parser import (
    TEXTS,
    bundled,
    bundles,
    has_second_parser,
    read_again,
    read_texts,
    texts,
    unread,
)
from onefold.store.savepoint_notes import Beginning

_WRITTEN = (EpochState.DECIDED, EpochState.COMPLETE, EpochState.DAMAGED)
POSITION = ("__topic", "__partition", "__offset")  # of a record
_RAW_POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Lineage:
    """Which epoch a record of the source was in, the last one where it came again: for each partition the starts,
    ends and numbers of epochs, ascending, without overlap. Pickles."""

    spans: Mapping[str, tuple[list[int], list[int], list[int]]]

    @classmethod
    def of(cls, history: Sequence[EpochRecord]) -> Lineage:
        """Of what the store remembers; where it adopted a destination's ledger, of what came since."""
        written = [record for record in history if record.state in _WRITTEN]
        adopted = max((record.epoch for record in written if record.query_id == ADOPTED), default=0)
        found: dict[str, list[tuple[int, int, int]]] = {}
        for record in (record for record in written if record.epoch > adopted and not record.is_move):
            begin = dict(record.range.start.items)
            for name, end in record.range.end.items:
                if isinstance(end, int):
                    spans = found.setdefault(name, [])
                    _cover(spans, int(begin.get(name, 0)), end, record.epoch)
        return cls(
            {
                name: ([a for a, _, _ in each], [b for _, b, _ in each], [n for _, _, n in each])
                for name, each in found.items()
            }
        )

    def epochs(self, topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        """For each record's position, its epoch, or FORGOTTEN."""
        found = np.full(len(offsets), FORGOTTEN, np.int64)
        at = offsets.to_numpy()
        places = pa.table([topics, partitions], names=["topic", "partition"])
        for place in places.group_by(["topic", "partition"]).aggregate([]).to_pylist():
            name = f"{place['topic']}/{place['partition']}"
            if not self.spans.get(name, ([], [], []))[0]:
                continue
            is_here = pc.and_(pc.equal(topics, place["topic"]), pc.equal(partitions, place["partition"]))
            here = np.flatnonzero(is_here.to_numpy(zero_copy_only=False))
            starts, ends, epochs = (np.array(numbers, np.int64) for numbers in self.spans[name])
            number = np.searchsorted(ends, at[here], side="right")
            is_known = (number < len(ends)) & (at[here] >= starts[np.minimum(number, len(ends) - 1)])
            found[here[is_known]] = epochs[number[is_known]]
        return pa.array(found)


def _cover(spans: list[tuple[int, int, int]], start: int, end: int, epoch: int) -> None:
    """Put an epoch's records, from `start` up to `end`, over those of earlier ones."""
    if start < end and (not spans or spans[-1][1] <= start):
        spans.append((start, end, epoch))
    elif start < end:
        below = [(a, min(b, start), number) for a, b, number in spans if a < start]
        above = [(max(a, end), b, number) for a, b, number in spans if b > end]
        spans[:] = [*below, (start, end, epoch), *above]


@dataclass(frozen=True)
class SourceRecords:
    """The records of a source in some splits, and what the pipeline makes of them: `transform`.

    What is read of them again and again is kept, in memory or on disk, until `release`. With `is_passed` the pipeline's
    parser has taken all of them, so Spark's alone reads them; where that does not take one the query fails
    (`is_not_taken`), and they are to be read without it.
    """

    spark: SparkSession
    source: Source
    splits: Sequence[Split]
    history: Sequence[EpochRecord] = ()
    transform: Callable[[DataFrame], DataFrame] = lambda records: records
    is_passed: bool = False
    _kept: list[DataFrame] = field(default_factory=list)
    _unread: list[Observation] = field(default_factory=list)

    def keep(self, df: DataFrame) -> DataFrame:
        self._kept.append(df.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def release(self) -> None:
        while self._kept:
            self._kept.pop().unpersist()

    def rows(self) -> DataFrame:
        return self.transform(self._read(self.source))

    def rows_by_epoch(self) -> DataFrame:
        """The same with their epochs in the column EPOCH: `transform` is called for each epoch's records, as the
        pipeline has called it, for it need not let another column through."""
        records = self.keep(self._records_by_epoch())
        epochs = sorted(row[0] for row in records.select(EPOCH).distinct().collect())
        parts = [
            self.transform(records.where(F.col(EPOCH) == epoch).drop(EPOCH)).withColumn(
                EPOCH, F.lit(epoch).cast("long")
            )
            for epoch in epochs or [FORGOTTEN]
        ]
        return _united(parts)

    def with_columns_of_position(self) -> DataFrame:
        """The records of topics with the columns by which users know a position, and others as they are."""
        source = self.source
        if isinstance(source, KafkaSource) and source.format != "raw" and "position" not in source.columns:
            source = source.with_columns("position")
        return self._read(source)

    def records_with_position(self) -> DataFrame | None:
        """The records, each with its POSITION; None where they have none, as those of files and tables."""
        if not isinstance(self.source, KafkaSource):
            return None
        position = _RAW_POSITION if self.source.format == "raw" else tuple(POSITION_COLUMNS.names)
        records = self.with_columns_of_position()
        if not {*position} <= {*records.columns}:
            return None
        named = (column(name).alias(place) for name, place in zip(position, POSITION, strict=True))
        return records.select(*columns(self.source.arrow_schema().names), *named)

    def notes(self) -> Iterator[str]:
        """What both sides rest on, once the rows were asked for."""
        name = self.source.name
        if isinstance(self.source, KafkaSource) and self.source.format == "raw":
            return
        if not has_second_parser(self.spark, self.source):
            yield f"{name!r} was read by onefold alone: what that changes of a value, verify changes too"
        elif self._unread and (count := unread(self._unread[0])) != 0:
            values = "nobody knows how many values" if count is None else f"{count:,} values"
            yield (
                f"of {name!r}, {values} are not taken by Spark's own parser, and were read by onefold alone: what that"
                " changes of them, verify changes too"
            )

    def compacted(self) -> list[str]:
        """Those of its topics that may lack any record but the newest of its key."""
        if not isinstance(self.source, KafkaSource):
            return []
        return self.source.broker().compacted(sorted({split.range.topic for split in self.splits}))

    def _read(self, source: Source) -> DataFrame:
        """By Spark's own parser, where it has one."""
        if not has_second_parser(self.spark, source):
            return read_splits(self.spark, source, self.splits)
        assert isinstance(source, KafkaSource)
        parsed = parsed_part(source.arrow_schema(), source.columns)
        if self.is_passed and source.format == "json" and source.on_error == "fail" and not source.columns:
            return read_texts(read_values(self.spark, source, self.splits, TEXTS, texts), parsed)
        names, source = source.arrow_schema().names, source.with_columns("value")
        records = read_splits(self.spark, source, self.splits, bundles(source.arrow_schema()), bundled)
        found, observed = read_again(records, names, parsed, source.csv_delimiter if source.format == "csv" else None)
        self._unread.append(observed)
        return found

    def _records_by_epoch(self) -> DataFrame:
        records = self.records_with_position()
        if records is None:
            return self._read(self.source).withColumn(EPOCH, F.lit(FORGOTTEN).cast("long"))
        epoch_of = arrow_udf(Lineage.of(self.history).epochs, LongType())  # type: ignore[call-overload]  # an overload that PySpark's stubs lack
        return records.withColumn(EPOCH, epoch_of(*POSITION)).drop(*POSITION)


def _united(parts: Sequence[DataFrame]) -> DataFrame:
    """Unites DataFrames in pairs: Spark analyses each union again together with everything below it."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0].unionAll(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


@dataclass(frozen=True, slots=True)
class Due:
    """`begin` is where the pipeline began; `savepoint` is with what, if with another one's; `moves` moved it since."""

    begin: Positions
    moves: Sequence[EpochRecord]
    savepoint: Beginning | None

    def ranges(self, end: Positions, sink: str) -> tuple[Range, ...]:
        """The records that a sink is to have, whose ledger is at `end`."""
        if not self.moves:
            return (Range(self._begin_of(sink), end),)
        ids = {f"{topic}/{TOPIC_ID}": name for topic, name in end.topic_ids().items()}
        spans = covered(self._begin_of(sink), self.moves, end, sink)
        return ranges(spans, Positions.of(end.items, ids))

    def notes(self, end: Positions, sink: str) -> Iterator[str]:
        """What is not expected of a sink, because somebody has moved the positions, or the sink began later."""
        named = ", ".join(f"epoch {record.epoch}" for record in self.moves if not record.range.is_empty)
        spans = covered(self._begin_of(sink), self.moves, end, sink)
        if passed := sum(after[0] - before[1] for found in spans.values() for before, after in pairwise(found)):
            says = "records were passed over on purpose, by a move of the positions, and are not expected"
            yield f"{passed:,} {says} ({named})"
        if (began := begins_by(self.moves, sink)) is not None:
            because = "when it was empty, or added to the pipeline"
        elif (savepoint := self._savepoint_of(sink)) is not None:
            began, because = savepoint.epoch, "of the savepoint that the pipeline began with, when it was empty"
        else:
            return
        yield f"the sink begins after epoch {began}, {because}: what earlier epochs wrote is not expected"

    def _begin_of(self, sink: str) -> Positions:
        savepoint = self._savepoint_of(sink)
        return self.begin if savepoint is None else savepoint.end

    def _savepoint_of(self, sink: str) -> Beginning | None:
        """The one that the sink begins with, since it was empty then."""
        found = self.savepoint
        return found if found is not None and first_name(self.moves, sink) in found.empty else None
