"""What a topic has to show for a pipeline's rows, and what a reader of it sees.

Rows are encoded as the sink encodes them and compared as records, byte for byte: key, value, headers. They are told
apart by texts out of the record itself, found in the same way on both sides. A keyed topic is seen as a reader sees it
that drops repeats by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from kafka.partitioner.default import murmur2
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from onefold.core import Committable, ConfigError, Positions
from onefold.core.invariants import Comparison
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.kafka.ascent import Ascent
from onefold.sinks.kafka.encoding import Records
from onefold.sinks.kafka.plan import Settings
from onefold.sources.kafka import KafkaSource
from onefold.spark.columns import column, columns
from onefold.spark.comparison import PLACE, compare
from onefold.spark.fingerprint import fingerprint
from onefold.spark.origin import EPOCH, Origin, read_source
from onefold.spark.workers import settle

__all__ = ["compare_with_topic", "javas_partition"]

CONTENT = ("key", "value", "headers")
ID = "id"
_ORDERED = r"(?s)^(.*):(\d+)$"
_CONTENT, _KEY, _REPEAT, _PASSED = "__content", "__key", "__repeat", "__passed"

_SIGN = 0x7FFFFFFF
_HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_RECORDS = "key binary, value binary, headers array<struct<key: string, value: binary>>"
_OF_CLIENT = ("security.", "sasl.", "ssl.", "client.")


@dataclass(frozen=True, slots=True)
class Identity:
    """By what records are told apart: the `names` of columns of text, and how each is found in a record."""

    names: tuple[str, ...]
    find: Callable[[str], Column]

    @classmethod
    def of(cls, settings: Settings, key: Sequence[str]) -> Identity:
        """The id of a keyed topic; else the columns in `key`, by default those of the record's key, else the value."""
        encoding = settings.encoding
        if settings.mode == "keyed":
            if key:
                raise ConfigError("a keyed topic's records are told apart by their ids: leave out the key")
            of_id = column("key") if settings.ids.header is None else _header(settings.ids.header)
            return cls((ID,), lambda _: _text(of_id))
        if encoding.format == "raw":
            if wrong := [name for name in key if name not in ("key", "value")]:
                raise ConfigError(f"records of format='raw' are told apart by their key or value, not by {wrong[0]!r}")
            return cls(tuple(key) or ("key",), lambda name: _text(column(name)))
        if not key and not encoding.key:
            return cls(("value",), lambda name: _text(column(name)))

        def find(name: str) -> Column:
            if name in encoding.headers:
                return _text(_header(name))
            if "'" in name:
                raise ConfigError(f"the key names {name!r}, and Spark finds no field with a quote in its name")
            return F.get_json_object(_text(column("value")), f"$['{name}']")

        return cls(tuple(key or encoding.key), find)

    def named(self, records: DataFrame) -> DataFrame:
        """The records under these names, with a number for their content; and all that they have beside it."""
        content = fingerprint([records.schema[name] for name in CONTENT])
        more = (column(name) for name in ("partition", "offset", EPOCH) if name in records.columns)
        own = (F.coalesce(self.find(name), F.lit("null")).alias(name) for name in self.names)
        return records.select(*own, content.alias(_CONTENT), column("key").alias(_KEY), *more)

    def compared(self, records: DataFrame) -> DataFrame:
        return records.select(*columns(self.names), _CONTENT)


@dataclass(frozen=True)
class TopicLook:
    """A sink's topic as a reader sees it now: `first` and `end` of each partition, and what is unseen behind `end`."""

    sink: KafkaSink
    source: KafkaSource
    first: dict[int, int]
    end: dict[int, int]
    log_end: dict[int, int]
    is_compacted: bool

    @classmethod
    def at(cls, sink: KafkaSink) -> TopicLook:
        settings = sink.settings
        client = {name: value for name, value in settings.librdkafka.items() if name.startswith(_OF_CLIENT)}
        source = KafkaSource(
            settings.topic, bootstrap_servers=settings.bootstrap_servers, format="raw", settings=client
        )
        broker = source.broker()
        partitions = broker.partitions([settings.topic])
        first, end, log_end = (
            {number: offset for (_, number), offset in ask(partitions).items()}
            for ask in (broker.earliest, broker.latest, broker.log_end)
        )
        policy = broker.settings_of([settings.topic]).get(settings.topic, {}).get("cleanup.policy", "delete")
        return cls(sink, source, first, end, log_end, "compact" in policy)

    @property
    def expired(self) -> dict[int, int]:
        """The partitions whose first offsets are gone, and how many."""
        return {number: first for number, first in self.first.items() if first > 0}

    @property
    def held_back(self) -> dict[int, int]:
        """How many offsets of which partitions nobody sees yet, for transactions that are open."""
        return {n: end - self.end[n] for n, end in self.log_end.items() if end > self.end[n]}

    def records(self, spark: SparkSession) -> DataFrame:
        """All that a read_committed reader sees: CONTENT, partition and offset."""
        topic = self.sink.settings.topic
        start, end = (
            Positions.of({f"{topic}/{number}": offset for number, offset in at.items()})
            for at in (self.first, self.end)
        )
        return _plain(read_source(spark, self.source, start, end))


def compare_with_topic(
    origin: Origin, sink: KafkaSink, key: Sequence[str], leftovers: Sequence[Committable]
) -> Comparison:
    """Compare an origin's rows with the topic. Raises ConfigError where somebody else's open transaction hides a part.

    What retention has taken from the topic, or compaction, is untold, and not lost: by the epochs of what is left.
    """
    settings = sink.settings
    look, identity = TopicLook.at(sink), Identity.of(settings, key)
    if look.held_back and not leftovers:
        partition, offsets = next(iter(look.held_back.items()))
        raise ConfigError(
            f"read_committed readers of {settings.topic!r} are held back in partition {partition}, {offsets} offsets"
            " before its end, by an open transaction that is not this sink's: nobody sees what is behind it. End it, or"
            " wait until it times out, then verify"
        )
    found = identity.named(look.records(origin.spark))
    if settings.mode == "keyed":
        found = _seen(found, settings)
    found = found.persist()
    due = identity.named(_due(origin.rows(), settings)).persist()
    try:
        seen = found.where(~F.col(_REPEAT) & ~F.col(_PASSED)) if settings.mode == "keyed" else found
        sides = identity.compared(due), identity.compared(seen)
        places = _placing(identity, due, seen, len(look.first))
        result = compare(*sides, identity.names, places=places)
        if result.lost and (look.expired or look.is_compacted):
            dated = identity.named(_due(origin.rows_by_epoch(), settings)).persist()
            gone = _gone(look, identity, dated, found)
            result = compare(*sides, identity.names, gone=gone.select(columns(identity.names)), places=places)
        return replace(result, notes=tuple(_notes(look, result, found if settings.mode == "keyed" else None)))
    finally:
        found.unpersist()
        due.unpersist()


def _gone(look: TopicLook, identity: Identity, due: DataFrame, found: DataFrame) -> DataFrame:
    """Those of the records due, with their epochs, that retention or compaction may have taken.

    A partition has its records by epochs, so retention has taken none of an epoch behind the oldest that is left there.
    """
    may_be = F.lit(False)
    if look.expired:
        same = [*identity.names, _CONTENT]
        theirs = found.where(F.col("partition").isin([*look.expired])).select(*columns(same), "partition")
        oldest = theirs.join(due.select(*columns(same), EPOCH), same).groupBy("partition").agg(F.min(EPOCH)).collect()
        emptied = [number for number in look.expired if look.first[number] >= look.end[number]]
        may_be |= F.col(EPOCH) <= max((int(row[1]) for row in oldest), default=0)
        place = _partition_due(len(look.first))(F.col(_KEY))
        may_be |= F.coalesce(place.isin(emptied), F.lit(True)) if emptied else F.lit(False)
    if look.is_compacted:
        of_key = Window.partitionBy(_KEY)
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
        would_be = missing.select(*columns(names), F.array(_partition_due(partitions)(F.col(_KEY))).alias("p"))
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
        counts = found.agg(*(F.sum(F.col(name).cast("bigint")) for name in (_REPEAT, _PASSED))).collect()[0]
        if counts[0]:
            yield f"{counts[0]} repeated records are in {topic!r}: readers that go by the ids drop them"
        if counts[1]:
            yield (
                f"{counts[1]} records in {topic!r} stand behind higher ids of their source: readers of ordered ids drop"
                " them, and what stands nowhere else counts as lost"
            )


def _due(rows: DataFrame, settings: Settings) -> DataFrame:
    """The records that the sink makes of these rows: CONTENT, and the rows' EPOCH where they have it."""
    has_epoch = EPOCH in rows.columns
    kind = f"{_RECORDS}, {EPOCH} bigint" if has_epoch else _RECORDS

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            epochs = batch.column(EPOCH) if has_epoch else None
            plain = batch.drop_columns([EPOCH]) if has_epoch else batch
            at = 0
            for made in _encoded(settings, plain):
                count = len(made.values)
                nothing = [None] * count
                columns = [
                    pa.array(made.keys or nothing, pa.binary()),
                    pa.array(made.values, pa.binary()),
                    pa.array([_pairs(row) for row in made.headers or nothing], _HEADERS),
                ]
                columns += [epochs.slice(at, count)] if epochs is not None else []
                at += count
                yield pa.RecordBatch.from_arrays(columns, names=[*CONTENT, *([EPOCH] if has_epoch else [])])

    return _plain(rows.mapInArrow(encode, kind))


def _seen(records: DataFrame, settings: Settings) -> DataFrame:
    """A keyed topic's records, named, as a reader sees them that drops repeats by their ids.

    `__repeat`: the same id with the same content came before, and any reader drops this one. `__passed`: readers of
    ordered ids drop it unseen, since a higher number of its source stands before it in its partition. A record that
    comes again with other content stays: which of the two a reader keeps, depends on the reader.
    """
    rows = records
    is_ordered = bool(settings.ids.number)
    of_id = Window.partitionBy(*(["partition"] if is_ordered else []), ID).orderBy("partition", "offset")
    is_again = F.row_number().over(of_id) > 1
    is_same = F.first(_CONTENT).over(of_id) == F.col(_CONTENT)
    passed: Column = F.lit(False)
    if is_ordered:
        rows = rows.withColumns(
            {
                "__source": F.regexp_extract(ID, _ORDERED, 1),
                "__number": F.regexp_extract(ID, _ORDERED, 2).try_cast("bigint"),
            }
        )
        before = (
            Window.partitionBy("partition", "__source").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
        )
        passed = F.coalesce(F.col("__number") <= F.max("__number").over(before), F.lit(False)) & ~is_again
    return rows.withColumns({_REPEAT: is_again & is_same, _PASSED: passed})


def javas_partition(key: bytes, partitions: int) -> int:
    """Where the Java producer's default partitioner sends a key."""
    return int((murmur2(key) & _SIGN) % partitions)


def _partition_due(partitions: int) -> Callable[[Column], Column]:
    """The partition where a record's key belongs, as the topic is now; null without a key."""

    def find(keys: pa.Array) -> pa.Array:
        return pa.array(
            [None if key is None else javas_partition(key, partitions) for key in keys.to_pylist()], pa.int32()
        )

    udf = arrow_udf(find, IntegerType())  # type: ignore[call-overload]
    return lambda key: udf(key)


class _AnyOrder(Ascent):
    """Here rows come in any order."""

    def check(self, sources: pa.Array, numbers: pa.Array) -> None:
        """Nothing is written: what the sink refuses, it has refused."""


def _encoded(settings: Settings, batch: pa.RecordBatch) -> Iterator[Records]:
    if settings.mode == "keyed":
        yield from settings.ids.records(settings.encoding, batch, _AnyOrder())
    else:
        yield from settings.encoding.records(batch)


def _pairs(row: Sequence[tuple[str, bytes | None]] | None) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in row or ()]


def _plain(records: DataFrame) -> DataFrame:
    """To Kafka a record without headers has an empty list of them."""
    kind = records.schema["headers"].dataType
    return records.withColumn("headers", F.coalesce("headers", F.array().cast(kind)))


def _header(name: str) -> Column:
    """The last one of that name, which clients take."""
    values = F.filter("headers", lambda pair: pair["key"] == name)
    return F.when(F.size(values) > 0, F.element_at(values, -1)["value"])


def _text(value: Column) -> Column:
    """Bytes as text; of bytes that are no text their digits."""
    return F.when(F.is_valid_utf8(value.cast("string")), value.cast("string")).otherwise(
        F.concat(F.lit("0x"), F.hex(value))
    )
