"""`onefold_kafka`: the Kafka source as a Spark data source, streaming and batch, in the style of Spark's own connector;
and batches written into a topic.

Spark calls the stream reader's planning methods in one long-lived Python process of the driver, and `read` in the
executors' workers. Offsets are what Spark's Kafka connector writes too, `{"orders": {"0": 17}}`, with the
topics' ids and leader epochs beside the partitions, and where the stream began, which Spark logs of no Python source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from onefold.core import Sink
from onefold.core.errors import ConfigError
from onefold.core.positions import FROM, Positions, Range
from onefold.core.waiting import hold
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sources.kafka import KafkaSource, OffsetRange, Planner, check_schema, find_schema, read, record_ddl
from onefold.sources.kafka.offsets import OffsetSnapshot, Partition
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.offset_planner import KafkaSourcePlanner
from onefold.spark.formats.batch_writes import BatchWrites
from onefold.spark.formats.registration import in_words_of_spark
from onefold.spark.runtime.workers import freeze_imports, is_guarded

T = TypeVar("T")
Logged = dict[str, dict[str, int | str]]  # offsets as Spark and people see them: {"orders": {"0": 17, "id": "Sx2..."}}
_PAUSE_S = 0.1  # between two looks whether the source's rate lets go on


def _spoken(method: Callable[..., T]) -> Callable[..., T]:
    @wraps(method)
    def call(self: _Reader, *arguments: Any) -> T:
        with in_words_of_spark(KafkaSource):
            return method(self, *arguments)

    return call


class OnefoldKafkaDataSource(BatchWrites):
    """Options of a read: the fields of `KafkaSource` in Spark's style (`maxOffsetsPerTrigger`). Topics are `subscribe`
    or `subscribePattern`, servers and `client_config` are `kafka.*`, `schema_registry` is `schema.registry.*`, and
    `timeout_s` is `timeoutMs`. Also `startingTimestamp`, `startingOffsetsByTimestamp`, and `endingOffsets` (batch).
    Columns: those of the format, and what `columns` adds.

    `startingOffsets=latest` or `-1` is asked for once: the first batch's offsets keep what was found, also for a query
    that dies before that batch is done.

    Options of a write: those of KafkaSink, servers and `client_config` as `kafka.*` too.
    """

    SINK_MODELS = (KafkaSinkConfig,)
    _settled: KafkaSource | None = None

    @classmethod
    def name(cls) -> str:
        return "onefold_kafka"

    def sink(self, told: dict[str, Any]) -> Sink:
        return KafkaSink(**told)

    def schema(self) -> StructType | str:
        source = self._source()
        with in_words_of_spark(KafkaSource):
            return record_ddl(source)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._source(), self._arrow(schema), self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "endingOffsets" in self.options:
            raise ConfigError(
                "options-conflict", "endingOffsets is for batch reads; a stream ends with trigger(availableNow=True)"
            )
        if not KafkaSource.from_options(self.options).has_schema:
            source = self._source()
            raise ConfigError(
                "schema-depends-on-start",
                "a stream's schema must not depend on when it starts. A flow keeps the one that was found first; here,"
                " give it yourself: "
                + (f"avroSchema={source.avro_schema}" if source.format == "avro" else f"schema={source.schema!r}"),
            )
        return _StreamReader(self._source(), self._arrow(schema))

    def _source(self) -> KafkaSource:
        """The source that the options describe. It asks servers for an open schema once for this object."""
        if self._settled is None:
            with in_words_of_spark(KafkaSource):
                source = KafkaSource.from_options(self.options)
                if source.starting_text == "ledger":
                    raise ConfigError(
                        "ledger-needs-pipeline",
                        "starting_offsets='ledger' is for a flow, which knows its ledger: read with"
                        " Flow(...).source(KafkaSource(..., starting_offsets='ledger'))",
                    )
                self._settled = source if source.has_schema else source.with_schema(find_schema(source))
        return self._settled

    def _arrow(self, schema: StructType) -> pa.Schema:
        arrow = to_arrow_schema(schema, timezone="UTC")
        source = self._source()
        with in_words_of_spark(KafkaSource):
            check_schema(source, arrow)
        if source.on_error == "dead_letter":
            raise ConfigError(
                "dead-letters-mismatch",
                "onError=dead_letter needs a flow, which writes them: Flow(...).source(KafkaSource(...),"
                " dead_letters=...). Here, onError is fail or skip",
            )
        return arrow


@dataclass(frozen=True)
class _RangePartition(InputPartition):
    wanted: OffsetRange


class _Reader:
    """What both readers share. Pickles."""

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        self._source, self._schema = source, schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        if isinstance(partition, _RangePartition):  # Spark makes an empty partition of its own where there are none
            with in_words_of_spark(KafkaSource):
                yield from read(self._source, self._schema, partition.wanted, guarded=is_guarded())


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans as a flow's runtime does. A task needs no planner, and is given none."""

    _is_available_now = _has_end = False

    @cached_property
    def _planner(self) -> KafkaSourcePlanner:
        return self._source.planner()

    @_spoken
    def initialOffset(self) -> Logged:
        return _logged(self._planner.initial())

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # the source has its own limits

    @_spoken
    def latestOffset(self, start: Logged, limit: ReadLimit) -> Logged:
        del limit
        logged = _positions(start)
        at = logged.without_begun()
        if self._is_available_now and not self._has_end:
            until = self._planner.latest(at)
            self._planner.close()
            self._planner, self._has_end = self._source.planner(until=until), True
        while (end := self._planner.end(at)) == at and self._is_available_now and not self._planner.is_done(at):
            hold(_PAUSE_S)  # the source's rate: with AvailableNow no new offsets would be the end
        return _logged(end, logged.begun() if logged.tells_begin_of() else at)

    def reportLatestOffset(self) -> Logged | None:
        return None if self._planner.seen is None else _logged(self._planner.seen.positions())

    @_spoken
    def partitions(self, start: Logged, end: Logged) -> Sequence[InputPartition]:
        begin, until = _positions(start), _positions(end)
        if until.tells_begin_of() and not begin.tells_begin_of():
            # The stream's first batch: if it was planned before a restart, its start was asked for anew since.
            begin = Positions.of(until.begun().items, begin.marks)
        return [_RangePartition(split.range) for split in self._planner.splits(Range(begin, until))]

    def commit(self, end: Logged) -> None:
        """Shows the positions in the consumer group, if there is one. Spark's checkpoint and the ledger keep them."""
        self._planner.completed(_positions(end))

    def stop(self) -> None:
        if "_planner" in self.__dict__:
            self._planner.close()


class _BatchReader(_Reader, DataSourceReader):
    def __init__(self, source: KafkaSource, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(source, schema)
        self._planner = Planner(source)
        self._ending = options.get("endingOffsets", "latest")
        if source.starting_text == "latest":
            raise ConfigError(
                "options-conflict", "startingOffsets=latest is for streams: a batch from there on would be empty"
            )
        limits = (source.max_offsets_per_trigger, source.max_bytes_per_trigger, source.max_offsets_per_second)
        if any(given is not None for given in limits):
            raise ConfigError(
                "options-conflict",
                "maxOffsetsPerTrigger, maxBytesPerTrigger and maxOffsetsPerSecond are for streams: give endingOffsets",
            )

    @_spoken
    def partitions(self) -> Sequence[InputPartition]:
        start = self._planner.initial()
        latest = self._planner.ends(start)
        end = latest.offsets if self._ending.strip().lower() == "latest" else self._given_end(latest)
        begin = {partition: offset for partition, offset in start.offsets.items() if partition in end}
        for (topic, number), offset in begin.items():
            if end[topic, number] < offset:
                raise ConfigError(
                    "ending-before-starting",
                    f"endingOffsets is before startingOffsets for {topic}/{number}: {end[topic, number]} < {offset}",
                )
        wanted = self._planner.ranges(OffsetSnapshot(begin), OffsetSnapshot(end, latest.ids))
        return [_RangePartition(each) for each in wanted]

    def _given_end(self, latest: OffsetSnapshot) -> Mapping[Partition, int]:
        """The records between two ends of the same topics: those that `endingOffsets` names."""
        end = start_positions.parse("endingOffsets", self._ending, self._source.subscription)
        return start_positions.resolve_end(self._planner.broker, latest, end)


def _positions(logged: Logged) -> Positions:
    return Positions.from_flat({f"{topic}/{name}": at for topic, by in logged.items() for name, at in by.items()})


def _logged(positions: Positions, began: Positions | None = None) -> Logged:
    """Always in one order: Spark compares the texts. With `began`, every topic says where the stream began there."""
    logged: Logged = {}
    for name, at in (*positions.items, *positions.marks):
        topic, _, kind = name.rpartition("/")
        logged.setdefault(topic, {})[kind] = at
    begun = {} if began is None else began.topics()
    for topic in logged if began is not None else ():
        logged[topic][FROM] = " ".join(f"{number}:{offset}" for number, offset in begun.get(topic, {}).items())
    return logged
