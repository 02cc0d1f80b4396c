"""The deduplicating reader: a stream of Kafka records without those that were seen before.

What was seen is in Spark's state store, in the query's own checkpoint: it survives restarts, and a batch that is run
again after a crash gives the same rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, StringType

from onefold.core import BadRecord, ConfigError
from onefold.core.values.ids import HEADER, Deduplication, IdsWithin, OrderedIds, called
from onefold.sources.kafka import KafkaSource
from onefold.sources.kafka.formats.columns import Choice, added_columns
from onefold.spark.dedup.dedup_state import BLOCKS, ID, KEPT, WATERMARKS, Places, keep_first, keep_new, pack, unpack
from onefold.spark.dedup.high_watermark import SEQUENCE, SOURCE
from onefold.spark.errors.sealing import marks
from onefold.spark.runtime.columns import mapped

__all__ = ["deduplicate", "widened"]

# Those beside parsed columns first: there, what is called `key` or `topic` was in the value.
_PLACES = (Places("kafka_topic", "kafka_partition", "kafka_offset"), Places("topic", "partition", "offset"))
_ARRIVAL = "__onefold_arrival"


def deduplicate(df: DataFrame, ids: Deduplication) -> DataFrame:
    """The records of `df`, a stream, without those whose id was seen before.

        df = spark.readStream.format("onefold_kafka").options(...).load()
        df = deduplicate(df, OrderedIds())                      # SOURCE:NUMBER in the key
        df = deduplicate(df, IdsWithin("2 hours", id="event"))  # anything, in the column event

    `df` has the columns that say where in Kafka a record was: topic, partition and offset, as `onefold_kafka` and
    Spark's own connector give them, or kafka_topic, kafka_partition and kafka_offset. Call it before anything that
    makes several rows of one record. With `OrderedIds` each partition's rows come out in their order, and headers that
    are null as empty lists.
    A batch DataFrame, which ends, needs no state; there `IdsWithin` drops repeats however far apart they are.
    Raises ConfigError; a record whose id is missing or malformed ends the query with BadRecord.
    """
    places = replace(_places(df), id_is=called(ids))
    if isinstance(ids, IdsWithin):
        return _within(df, ids, places)
    # Spark takes quadratic time for a column of lists that are null (it fills the offsets anew for every row).
    lists = [name for name in _names(df.columns, "headers") if name in df.columns]
    filled = {name: F.coalesce(name, F.array().cast(df.schema[name].dataType)) for name in lists}
    blocks = mapped(df.withColumns(filled).select("*", *_parts(df, ids)), pack(places), BLOCKS)
    groups = blocks.groupBy("topic", "partition")
    if df.isStreaming:
        kept = groups.applyInPandasWithState(keep_new(places), KEPT, WATERMARKS, "append", "NoTimeout")
    else:
        kept = groups.applyInPandas(keep_first(places), KEPT)
    return kept.mapInArrow(unpack(df.columns), df.schema)


def widened(source: KafkaSource, ids: Deduplication) -> tuple[KafkaSource, list[str]]:
    """The source with all columns that deduplicating it needs, and the names of those that were not asked for."""
    if source.format == "raw":
        return source, []
    wanted: list[Choice] = ["position"]
    if ids.id is not None and ids.id.startswith(HEADER):
        wanted.append("headers")
    elif ids.id is None and not (isinstance(ids, OrderedIds) and ids.source is not None):
        wanted.append("key")
    missing = [choice for choice in wanted if choice not in source.columns]
    return source.with_columns(*missing), added_columns(missing).names


def _within(df: DataFrame, ids: IdsWithin, places: Places) -> DataFrame:
    """Spark's own set. Its clock is each batch's time: by the records' own times, late ones would be dropped unseen."""
    id = _id(df, ids.id)
    topic, partition, offset = (F.col(name).cast("string") for name in places.columns)
    before, behind = marks(BadRecord)
    complaint = F.concat(
        # Sealed as a worker's errors are. The mark is in two parts, for the plan's text shows them too.
        *(F.lit(before[:-8]), F.lit(before[-8:])),
        *(F.lit("id-not-usable "), topic, F.lit("/"), partition, F.lit(" offset "), offset),
        F.lit(f": {places.id_is} is missing, and every record needs one. Filter such records out first"),
        F.lit(behind),
    )
    is_missing = id.isNull() | (F.length(id) == 0) if _is_text(df, id) else id.isNull()
    named = df.withColumn(ID, F.when(is_missing, F.raise_error(complaint)).otherwise(id))
    if not df.isStreaming:
        return named.dropDuplicates([ID]).drop(ID)
    timed = named.withColumn(_ARRIVAL, F.current_timestamp()).withWatermark(_ARRIVAL, ids.span)
    return timed.dropDuplicatesWithinWatermark([ID]).drop(ID, _ARRIVAL)


def _parts(df: DataFrame, ids: OrderedIds) -> list[Column]:
    if ids.source is None or ids.sequence is None:
        id = _id(df, ids.id)
        if not _is_text(df, id):
            raise ConfigError(
                "id-column-type", f"{called(ids)} is no text: ordered ids are texts SOURCE:NUMBER, or two columns"
            )
        return [id.cast("binary").alias(ID)]
    for name in (ids.source, ids.sequence):
        _check_column(df, name)
    source, sequence = F.col(f"`{ids.source}`"), F.col(f"`{ids.sequence}`")
    if not _is_text(df, source) or not isinstance(df.schema[ids.sequence].dataType, IntegralType):
        types = " and ".join(df.schema[name].simpleString() for name in (ids.source, ids.sequence))
        raise ConfigError(
            "id-column-type", f"OrderedIds: the source is text or bytes, and the sequence an integer; there are {types}"
        )
    return [source.cast("binary").alias(SOURCE), sequence.cast("long").alias(SEQUENCE)]


def _id(df: DataFrame, id: str | None) -> Column:
    if id is None:
        return F.col(_one_of(df, _names(df.columns, "key"), "its key"))
    if not id.startswith(HEADER):
        _check_column(df, id)
        return F.col(f"`{id}`")
    name = id.removeprefix(HEADER)
    named = F.filter(
        F.col(_one_of(df, _names(df.columns, "headers"), "its headers")), lambda header: header["key"] == name
    )
    return F.try_element_at(named, F.lit(-1))["value"]  # as Kafka's own lastHeader


def _places(df: DataFrame) -> Places:
    for places in _PLACES:
        if {*places.columns} <= {*df.columns}:
            return places
    raise ConfigError(
        "position-columns-missing",
        "deduplicate needs the columns that say where in Kafka a record was: topic, partition and offset, or"
        f" kafka_topic, kafka_partition and kafka_offset; there are {', '.join(df.columns)}",
    )


def _names(columns: Sequence[str], part: str) -> tuple[str, ...]:
    """What a record's key, or its headers, may be called among these columns."""
    parsed = {*_PLACES[0].columns} <= {*columns}
    return (f"kafka_{part}",) if parsed else (part, f"kafka_{part}")


def _one_of(df: DataFrame, names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in df.columns:
            return name
    raise ConfigError(
        "no-such-column",
        f"a record's id is to be in {what}, and there is no column {' or '.join(names)}: read it as well",
    )


def _check_column(df: DataFrame, name: str) -> None:
    if name not in df.columns:
        raise ConfigError(
            "no-such-column", f"there is no column {name!r} for the records' ids: there are {', '.join(df.columns)}"
        )


def _is_text(df: DataFrame, column: Column) -> bool:
    return isinstance(df.select(column).schema[0].dataType, StringType | BinaryType)
