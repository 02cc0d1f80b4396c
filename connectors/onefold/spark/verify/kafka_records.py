"""The records that a Kafka sink makes of rows, and those that a reader of its topic sees, in the same columns.

Both are told apart by texts out of the record itself, found in the same way on both sides. A keyed topic is seen as a
reader sees it that drops repeats by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from kafka.partitioner.default import murmur2
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from onefold.core import ConfigError, Positions, Range
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.kafka.encoding import EncodedRecords
from onefold.sinks.kafka.keyed_ids import IdOrder
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sources.kafka import KafkaSource, PartitionLag, lag
from onefold.spark.formats.bounded_records import read_records
from onefold.spark.runtime.dataframe_columns import column, columns, mapped
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.verify.comparing.reconcile import CONTENT_HASH, EPOCH, fingerprint

CONTENT = ("key", "value", "headers")
ID = "id"
_ORDERED = r"(?s)^(.*):(\d+)$"
RECORD_KEY, REPEAT, PASSED = "__key", "__repeat", "__passed"

_SIGN = 0x7FFFFFFF
_HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_RECORDS = "key binary, value binary, headers array<struct<key: string, value: binary>>"
_OF_CLIENT = ("security.", "sasl.", "ssl.", "client.")


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a record: the `names` of text columns, and how each is found in a record."""

    names: tuple[str, ...]
    find: Callable[[str], Column]

    @classmethod
    def of(cls, settings: KafkaSinkConfig, key: Sequence[str]) -> Identity:
        """The id of a keyed topic; else the columns in `key`, by default those of the record's key, else the value."""
        encoding = settings.encoding
        if settings.delivery == "keyed":
            if key:
                raise ConfigError(
                    "options-conflict", "a keyed topic's records are told apart by their ids: leave out the key"
                )
            of_id = column("key") if settings.ids.header is None else _header(settings.ids.header)
            return cls((ID,), lambda _: _text(of_id))
        if encoding.format == "raw":
            if wrong := [name for name in key if name not in ("key", "value")]:
                raise ConfigError(
                    "option-value", f"records of format='raw' are told apart by their key or value, not by {wrong[0]!r}"
                )
            return cls(tuple(key) or ("key",), lambda name: _text(column(name)))
        if not key and not encoding.key:
            return cls(("value",), lambda name: _text(column(name)))

        def find(name: str) -> Column:
            if name in encoding.headers:
                return _text(_header(name))
            if "'" in name:
                raise ConfigError(
                    "option-value", f"the key names {name!r}, and Spark finds no field with a quote in its name"
                )
            return F.get_json_object(_text(column("value")), f"$['{name}']")

        return cls(tuple(key or encoding.key), find)

    def named(self, records: DataFrame) -> DataFrame:
        """The records under these names, with a number for their content; and all that they have beside it."""
        content = fingerprint([records.schema[name] for name in CONTENT])
        more = (column(name) for name in ("partition", "offset", EPOCH) if name in records.columns)
        own = (F.coalesce(self.find(name), F.lit("null")).alias(name) for name in self.names)
        return records.select(*own, content.alias(CONTENT_HASH), column("key").alias(RECORD_KEY), *more)

    def compared(self, records: DataFrame) -> DataFrame:
        return records.select(*columns(self.names), CONTENT_HASH)


@dataclass(frozen=True)
class TopicLook:
    """A sink's topic as a reader sees it now."""

    sink: KafkaSink
    source: KafkaSource
    partitions: tuple[PartitionLag, ...]
    is_compacted: bool

    @classmethod
    def at(cls, sink: KafkaSink) -> TopicLook:
        settings = sink.settings
        client = {name: value for name, value in settings.client_config.items() if name.startswith(_OF_CLIENT)}
        source = KafkaSource(
            settings.topic, bootstrap_servers=settings.bootstrap_servers, format="raw", client_config=client
        )
        broker = source.broker()
        return cls(sink, source, lag(source, Positions(), broker), bool(broker.compacted([settings.topic])))

    @property
    def expired(self) -> dict[int, int]:
        """The partitions whose first offsets are gone, and how many."""
        return {each.partition: each.first for each in self.partitions if each.first > 0}

    @property
    def emptied(self) -> list[int]:
        """The partitions that have nothing left."""
        return [each.partition for each in self.partitions if 0 < each.first >= each.stable_end]

    @property
    def held_back(self) -> dict[int, int]:
        """Partitions with offsets that open transactions still hide, and how many offsets."""
        return {each.partition: each.held_back for each in self.partitions if each.held_back}

    def records(self, spark: SparkSession) -> DataFrame:
        """All that a read_committed reader sees: CONTENT, partition and offset."""
        start = Positions.of({f"{each.topic}/{each.partition}": each.first for each in self.partitions})
        end = Positions.of({f"{each.topic}/{each.partition}": each.stable_end for each in self.partitions})
        return _plain(read_records(spark, self.source, Range(start, end)))


def records_due(rows: DataFrame, settings: KafkaSinkConfig) -> DataFrame:
    """The records that the sink makes of these rows: CONTENT, and the rows' EPOCH where they have it."""
    has_epoch = EPOCH in rows.columns
    kind = f"{_RECORDS}, {EPOCH} bigint" if has_epoch else _RECORDS

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
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

    return _plain(mapped(rows, encode, kind))


def seen_by_readers(records: DataFrame, settings: KafkaSinkConfig) -> DataFrame:
    """A keyed topic's records, named, as a reader sees them that drops repeats by their ids.

    `__repeat`: the same id with the same content came before, and any reader drops this one. `__passed`: readers of
    ordered ids drop it unseen, since a higher number of its source stands before it in its partition. A record that
    comes again with other content stays: which of the two a reader keeps, depends on the reader.
    """
    rows = records
    is_ordered = bool(settings.ids.number)
    of_id = Window.partitionBy(*(["partition"] if is_ordered else []), ID).orderBy("partition", "offset")
    is_again = F.row_number().over(of_id) > 1
    is_same = F.first(CONTENT_HASH).over(of_id) == F.col(CONTENT_HASH)
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
    return rows.withColumns({REPEAT: is_again & is_same, PASSED: passed})


def javas_partition(key: bytes, partitions: int) -> int:
    """Where the Java producer's default partitioner sends a key."""
    return int((murmur2(key) & _SIGN) % partitions)


def partition_due(partitions: int) -> Callable[[Column], Column]:
    """The partition where a record's key belongs, as the topic is now; null without a key."""

    def find(keys: pa.Array) -> pa.Array:
        return pa.array(
            [None if key is None else javas_partition(key, partitions) for key in keys.to_pylist()], pa.int32()
        )

    udf = arrow_udf(find, IntegerType())  # type: ignore[call-overload]  # an overload that PySpark's stubs lack
    return lambda key: udf(key)


class _AnyOrder(IdOrder):
    """For rows that come in any order."""

    def check(self, sources: pa.Array, numbers: pa.Array) -> None:
        """Checks nothing: the sink has refused bad rows when it wrote."""


def _encoded(settings: KafkaSinkConfig, batch: pa.RecordBatch) -> Iterator[EncodedRecords]:
    if settings.delivery == "keyed":
        yield from settings.ids.records(settings.encoding, batch, _AnyOrder())
    else:
        yield from settings.encoding.records(batch)


def _pairs(row: Sequence[tuple[str, bytes | None]] | None) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in row or ()]


def _plain(records: DataFrame) -> DataFrame:
    """Headers as Kafka has them: an empty list where there are none."""
    kind = records.schema["headers"].dataType
    return records.withColumn("headers", F.coalesce("headers", F.array().cast(kind)))


def _header(name: str) -> Column:
    """The last one of that name, which clients take."""
    values = F.filter("headers", lambda pair: pair["key"] == name)
    return F.when(F.size(values) > 0, F.element_at(values, -1)["value"])


def _text(value: Column) -> Column:
    """Bytes as text, or as hexadecimal digits where they are no text."""
    return F.when(F.is_valid_utf8(value.cast("string")), value.cast("string")).otherwise(
        F.concat(F.lit("0x"), F.hex(value))
    )
