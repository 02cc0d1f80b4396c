"""Compares the records that a topic must have for a pipeline's rows with those that a reader sees.

Rows are encoded as the sink encodes them and compared as records, byte for byte: key, value, headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from onefold.core import Committable, ConfigError
from onefold.core.invariants import Comparison
from onefold.spark.runtime.dataframe_columns import columns
from onefold.spark.verify.comparing.comparison import PLACE, compare
from onefold.spark.verify.comparing.reconcile import CONTENT_HASH, EPOCH
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.kafka_records import (
    PASSED,
    RECORD_KEY,
    REPEAT,
    Identity,
    TopicLook,
    partition_due,
    records_due,
    seen_by_readers,
)
from onefold.spark.verify.origin import SourceRecords


def compare_with_topic(
    origin: SourceRecords,
    look: TopicLook,
    key: Sequence[str],
    leftovers: Sequence[Committable],
    mending: WrongRows | None,
) -> Comparison:
    """Compare an origin's rows with the topic. Raises ConfigError where a foreign open transaction hides a part.

    What retention has taken from the topic, or compaction, is untold, and not lost: by the epochs of what is left.
    """
    settings = look.sink.settings
    identity = Identity.of(settings, key)
    if look.held_back and not leftovers:
        partition, offsets = next(iter(look.held_back.items()))
        raise ConfigError(
            "open-transaction-blocks",
            f"read_committed readers of {settings.topic!r} are held back in partition {partition}, {offsets} offsets"
            " before its end, by an open transaction that is not this sink's: nobody sees what is behind it. End it, or"
            " wait until it times out, then verify",
        )
    found = identity.named(look.records(origin.spark))
    is_keyed = settings.delivery == "keyed"
    found = origin.keep(seen_by_readers(found, settings) if is_keyed else found)
    due = origin.keep(identity.named(records_due(origin.rows(), settings)))
    seen = found.where(~F.col(REPEAT) & ~F.col(PASSED)) if is_keyed else found
    sides = identity.compared(due), identity.compared(seen)
    places = _placing(identity, due, seen, len(look.partitions))
    result = compare(*sides, identity.names, places=places, mending=mending)
    if result.lost and (look.expired or look.is_compacted):
        dated = origin.keep(identity.named(records_due(origin.rows_by_epoch(), settings)))
        gone = _gone(look, identity, dated, found).select(columns(identity.names))
        result = compare(*sides, identity.names, gone=gone, places=places, mending=mending)
    return replace(result, notes=tuple(_notes(look, result, found if is_keyed else None)))


def _gone(look: TopicLook, identity: Identity, due: DataFrame, found: DataFrame) -> DataFrame:
    """Those of the records due, with their epochs, that retention or compaction may have taken.

    A partition has its records by epochs, so retention has taken none of an epoch behind the oldest that is left there.
    """
    may_be = F.lit(False)
    if look.expired:
        same = [*identity.names, CONTENT_HASH]
        theirs = found.where(F.col("partition").isin([*look.expired])).select(*columns(same), "partition")
        oldest = theirs.join(due.select(*columns(same), EPOCH), same).groupBy("partition").agg(F.min(EPOCH)).collect()
        may_be |= F.col(EPOCH) <= max((int(row[1]) for row in oldest), default=0)
        place = partition_due(len(look.partitions))(F.col(RECORD_KEY))
        may_be |= F.coalesce(place.isin(look.emptied), F.lit(True)) if look.emptied else F.lit(False)
    if look.is_compacted:
        of_key = Window.partitionBy(RECORD_KEY)
        is_newest = F.col(EPOCH) == F.max(EPOCH).over(of_key)
        due = due.withColumn("__alone", is_newest & (F.count(F.when(is_newest, 1)).over(of_key) == 1))
        may_be |= ~F.col("__alone")
    return due.where(may_be)


def _placing(identity: Identity, due: DataFrame, seen: DataFrame, partitions: int) -> Callable[[DataFrame], DataFrame]:
    """Where each of some records is, or, of one that is not there, would be; null where its key does not say."""

    def places(named: DataFrame) -> DataFrame:
        names = [*identity.names]
        there = (
            named.join(seen, names).groupBy(*columns(names)).agg(F.sort_array(F.collect_set("partition")).alias("p"))
        )
        missing = named.join(there, names, "left_anti").join(due, names)
        would_be = missing.select(*columns(names), F.array(partition_due(partitions)(F.col(RECORD_KEY))).alias("p"))
        every = there.unionAll(would_be.dropDuplicates(names))
        return every.withColumn(PLACE, F.nullif(F.array_join(F.col("p").cast("array<string>"), ", "), F.lit("")))

    return places


def _notes(look: TopicLook, result: Comparison, found: DataFrame | None) -> Iterator[str]:
    topic = look.sink.settings.topic
    if look.expired:
        parts = ", ".join(f"{count:,} of partition {number}" for number, count in look.expired.items())
        yield (
            f"the topic {topic!r} has dropped its first offsets ({parts}). {result.untold} records of epochs as old as"
            " those are missing: expired, or lost before that, nobody can tell"
        )
    if look.is_compacted:
        yield (
            f"the topic {topic!r} is compacted: of each key only the last record is sure to be there, and what is"
            f" missing of the others ({result.untold}) is not called lost"
        )
    if look.held_back:
        offsets = sum(look.held_back.values())
        yield f"{offsets} offsets of {topic!r} are unseen behind open transactions: what is there looks lost"
    if found is not None:
        counts = found.agg(*(F.sum(F.col(name).cast("bigint")) for name in (REPEAT, PASSED))).collect()[0]
        if counts[0]:
            yield f"{counts[0]} repeated records are in {topic!r}: readers that go by the ids drop them"
        if counts[1]:
            yield (
                f"{counts[1]} records in {topic!r} stand behind higher ids of their source: readers of ordered ids drop"
                " them, and what stands nowhere else counts as lost"
            )
