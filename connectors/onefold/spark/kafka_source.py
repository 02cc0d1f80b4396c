"""`onefold_kafka`: the Kafka source as a Spark data source, streaming and batch, in the style of Spark's own connector.

Spark calls the stream reader's planning methods in one long-lived Python process of the driver, and `read` in the
executors' workers. Offsets are what Spark's Kafka connector writes too: `{"orders": {"0": 17}}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.sources.kafka import (
    Broker,
    KafkaSource,
    OffsetRange,
    check_schema,
    find_schema,
    limit,
    ranges,
    read,
    record_ddl,
)
from onefold.sources.kafka.offsets import not_behind, offsets_of
from onefold.sources.kafka.source import parse_offsets
from onefold.spark.workers import settle

__all__ = ["OnefoldKafkaDataSource"]

RANGES_DDL = "topic string, partition int, start bigint, end bigint"

_Offset = dict[str, dict[str, int]]
_Partitions = dict[tuple[str, int], int]


class OnefoldKafkaDataSource(DataSource):
    """Options: `subscribe`, `kafka.bootstrap.servers`, `kafka.*` (librdkafka's names), `startingOffsets`,
    `endingOffsets` (batch), `maxOffsetsPerTrigger`, `format`, `schema`, `positions`, `timeoutMs`, `compiledFetch`;
    set by a pipeline: `frozen`, `direct`; and those of formats and bad records: `columns`, `onError`, `badRecordsMax`,
    `avroSchema`, `avroWrittenAs`, `schema.registry.url` and others of confluent-kafka's client, `csvDelimiter`.
    Columns: those of the format, and what `columns` adds; or with `direct=ranges` topic, partition, start, end: one row
    for each range, with nothing fetched.

    `startingOffsets=latest` or `-1` is asked for anew if a query dies before its first batch has committed, which
    then passes over what came meanwhile: a pipeline freezes it in its store, plain Spark has no place for it.
    """

    _settled: KafkaSource | None = None

    @classmethod
    def name(cls) -> str:
        return "onefold_kafka"

    def schema(self) -> StructType | str:
        source = self._source()
        if self._direct():
            return RANGES_DDL
        return record_ddl(source)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._source(), self._arrow(schema), self.options, direct=self._direct())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "endingOffsets" in self.options:
            raise ConfigError("endingOffsets is for batch reads; a stream ends with trigger(availableNow=True)")
        if not KafkaSource.from_options(self.options).is_settled:
            source = self._source()
            raise ConfigError(
                "a stream's schema must not depend on when it starts. pipeline.read and pipeline.stream keep what was"
                " found first; here, give it yourself: "
                + (f"avroSchema={source.avro_schema}" if source.format == "avro" else f"schema={source.schema!r}")
            )
        return _StreamReader(self._source(), self._arrow(schema), self.options, direct=self._direct())

    def _source(self) -> KafkaSource:
        """As the options say; what they leave to the servers is asked for, once for this object."""
        if self._settled is None:
            source = KafkaSource.from_options(self.options)
            self._settled = source if source.is_settled else source.settled_as(find_schema(source))
        return self._settled

    def _direct(self) -> bool:
        direct = self.options.get("direct", "")
        if direct not in ("", "ranges"):
            raise ConfigError(f"direct is 'ranges' or left out, not {direct!r}")
        return bool(direct)

    def _arrow(self, schema: StructType) -> pa.Schema:
        arrow = to_arrow_schema(schema, timezone="UTC")
        if not self._direct():
            source = self._source()
            check_schema(source, arrow)
            if source.on_error == "dead_letter" and "frozen" not in self.options:
                raise ConfigError(
                    "onError=dead_letter needs a pipeline, which writes them: pipeline.read(spark, KafkaSource(...)) of"
                    " Pipeline(..., dead_letters=...). Here, onError is fail or skip"
                )
        return arrow


@dataclass(frozen=True)
class _RangePartition(InputPartition):
    wanted: OffsetRange


class _Planner:
    """What both readers share: it pickles, and opens its client when a question comes up."""

    def __init__(self, source: KafkaSource, schema: pa.Schema, options: Mapping[str, str], *, direct: bool) -> None:
        self.source = source
        self.direct = direct
        self._schema = schema
        self._frozen = options.get("frozen", "").lower() == "true"
        self._broker: Broker | None = None
        self._initial: Positions | None = None

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            self._broker = self.source.broker()
        return self._broker

    def initial(self) -> Positions:
        """Asked of the broker at most once: Spark asks again for every trigger until there is a first batch."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial

    def _find_initial(self) -> Positions:
        source = self.source
        if source.starting_offsets == "ledger":
            raise ConfigError(
                "startingOffsets=ledger: only a pipeline knows its ledger. Read with pipeline.read(spark, KafkaSource("
                "..., starting_offsets='ledger')), which passes explicit positions"
            )
        if self._frozen:  # by a pipeline, maybe long ago: a partition that came later stands at its first record
            frozen = parse_offsets("startingOffsets", source.starting_offsets, source.topics)
            return Positions.of({f"{topic}/{p}": offset for topic, by in frozen.items() for p, offset in by.items()})
        return source.initial_positions(self.broker)

    def latest(self, start: Mapping[tuple[str, int], int]) -> _Partitions:
        """Where the topics end now. Raises `DataLoss` if that is before `start`."""
        if strangers := sorted({topic for topic, _ in start} - set(self.source.topics)):
            raise ConfigError(
                f"the checkpoint holds positions of the topic {strangers[0]!r}, which subscribe does not name: "
                "subscribe to it again, or start with a new checkpoint"
            )
        return not_behind(self.broker, start, self.broker.latest(self.broker.partitions(self.source.topics)))

    def read_range(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        if self.direct:
            row = [wanted.topic, wanted.partition, wanted.start, wanted.end]
            arrays = [pa.array([value], field.type) for value, field in zip(row, self._schema, strict=True)]
            return iter([pa.RecordBatch.from_arrays(arrays, schema=self._schema)])
        return read(self.source, self._schema, wanted)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_broker": None}


class _StreamReader(_Planner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, *args: Any, direct: bool) -> None:
        super().__init__(*args, direct=direct)
        self._target: _Partitions | None = None  # with AvailableNow: where the query ends
        self._seen: _Partitions | None = None

    def initialOffset(self) -> _Offset:
        return _to_spark(offsets_of(self.initial()))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.latest({})

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self.source.max_offsets_per_trigger
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        at = _from_spark(start)
        self._seen = latest = self.latest(at)
        if self._target is not None:
            # Partitions that came after the target are left to the next run.
            latest = {p: max(at.get(p, 0), min(offset, latest[p])) for p, offset in self._target.items() if p in latest}
        return _to_spark(at | _admit(at, latest, limit))

    def reportLatestOffset(self) -> _Offset | None:
        return None if self._seen is None else _to_spark(self._seen)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        return [_RangePartition(wanted) for wanted in ranges(_from_spark(start), _from_spark(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        assert isinstance(partition, _RangePartition), partition
        return self.read_range(partition.wanted)

    def commit(self, end: _Offset) -> None:
        """Nothing: positions are in Spark's checkpoint and in the ledger."""

    def stop(self) -> None:
        self._broker = None


class _BatchReader(_Planner, DataSourceReader):
    def __init__(self, source: KafkaSource, schema: pa.Schema, options: Mapping[str, str], *, direct: bool) -> None:
        super().__init__(source, schema, options, direct=direct)
        self._ending = options.get("endingOffsets", "latest")
        if source.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest is for streams: a batch from there on would be empty")
        if source.max_offsets_per_trigger is not None:
            raise ConfigError("maxOffsetsPerTrigger is for streams: bound a batch by endingOffsets")

    def partitions(self) -> Sequence[InputPartition]:
        start = offsets_of(self.initial())
        end = self._end(self.latest(start))
        for (topic, number), offset in start.items():
            if end[topic, number] < offset:
                raise ConfigError(
                    f"endingOffsets is before startingOffsets for {topic}/{number}: {end[topic, number]} < {offset}"
                )
        return [_RangePartition(wanted) for wanted in ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        # Spark makes an empty partition of its own where there are none.
        return self.read_range(partition.wanted) if isinstance(partition, _RangePartition) else iter(())

    def _end(self, latest: _Partitions) -> _Partitions:
        if self._ending.strip().lower() == "latest":
            return latest
        given = _from_spark(parse_offsets("endingOffsets", self._ending, self.source.topics))
        if missing := sorted(latest.keys() - given.keys()):
            raise ConfigError(
                f"endingOffsets leaves out {missing[0][0]}/{missing[0][1]}: give every partition, -1: latest"
            )
        for (topic, number), offset in given.items():
            if (topic, number) not in latest:
                raise ConfigError(f"endingOffsets names {topic}/{number}, which Kafka does not have: take it out")
            if offset > latest[topic, number] or offset == -2:
                raise ConfigError(
                    f"endingOffsets: {topic}/{number} ends at {latest[topic, number]} (-1), so {offset} cannot be read"
                )
        return {p: latest[p] if offset == -1 else offset for p, offset in given.items()}


def _admit(start: _Partitions, latest: _Partitions, read_limit: ReadLimit) -> _Partitions:
    return limit(start, latest, read_limit.max_rows if isinstance(read_limit, ReadMaxRows) else None)


def _to_spark(offsets: _Partitions) -> _Offset:
    nested: _Offset = {}
    for (topic, number), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(number)] = offset
    return nested


def _from_spark(offsets: _Offset) -> _Partitions:
    return {(topic, int(number)): offset for topic, by in offsets.items() for number, offset in by.items()}
