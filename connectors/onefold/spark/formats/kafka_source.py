"""`onefold_kafka`: the Kafka source as a Spark data source, streaming and batch, in the style of Spark's own connector.

Spark calls the stream reader's planning methods in one long-lived Python process of the driver, and `read` in the
executors' workers. Offsets are what Spark's Kafka connector writes too, `{"orders": {"0": 17}}`, with the
topics' ids and leader epochs beside the partitions, and where the stream began, which Spark logs of no Python source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from onefold.core.errors import ConfigError
from onefold.core.waiting import hold
from onefold.sources.kafka import KafkaSource, OffsetRange, Planner, check_schema, find_schema, read, record_ddl
from onefold.sources.kafka.planning import starting
from onefold.sources.kafka.planning.group_positions import GroupPositions
from onefold.sources.kafka.planning.offset_snapshot import Nested, OffsetSnapshot, Partition, began, of_stream
from onefold.sources.kafka.planning.planner import up_to
from onefold.spark.formats.words import in_words_of_spark
from onefold.spark.runtime.workers import freeze_imports, is_guarded

__all__ = ["OnefoldKafkaDataSource"]

T = TypeVar("T")
_HOLD_S = 1.0  # a query that is stopped waits as long


def _spoken(method: Callable[..., T]) -> Callable[..., T]:
    @wraps(method)
    def call(self: _Planned, *arguments: Any) -> T:
        with in_words_of_spark(KafkaSource):
            return method(self, *arguments)

    return call


class OnefoldKafkaDataSource(DataSource):
    """Options: the fields of `KafkaSource` in Spark's style (`maxOffsetsPerTrigger`, ...). Topics are `subscribe` or
    `subscribePattern`, servers and `client_config` are `kafka.*`, `schema_registry` is `schema.registry.*`, and
    `timeout_s` is `timeoutMs`. Also `startingTimestamp`, `startingOffsetsByTimestamp`, and `endingOffsets` (batch).
    Columns: those of the format, and what `columns` adds.

    `startingOffsets=latest` or `-1` is asked for once: the first batch's offsets keep what was found, also for a query
    that dies before that batch is done.
    """

    _settled: KafkaSource | None = None

    @classmethod
    def name(cls) -> str:
        return "onefold_kafka"

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


class _Planned:
    """What both readers share. Pickles."""

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        self.source = source
        self._schema = schema
        self.planner = Planner(source)

    def planned(self, begin: OffsetSnapshot, until: OffsetSnapshot) -> list[InputPartition]:
        return [_RangePartition(wanted) for wanted in self.planner.ranges(begin, until)]

    def read_range(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        with in_words_of_spark(KafkaSource):
            yield from read(self.source, self._schema, wanted, guarded=is_guarded())


class _StreamReader(_Planned, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        super().__init__(source, schema)
        self._is_available_now = False
        self._target: OffsetSnapshot | None = None  # where the query ends then
        self._seen: OffsetSnapshot | None = None
        self._group = GroupPositions(self.source)

    @_spoken
    def initialOffset(self) -> Nested:
        return self.planner.initial().nested()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self.source.max_offsets_per_trigger
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    @_spoken
    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        at = OffsetSnapshot.from_nested(start)
        self._seen = seen = self.planner.ends(at)
        goal = seen.offsets
        if self._is_available_now:
            self._target = self._target or seen
            goal = up_to(self._target.offsets, at, seen)  # partitions that came later are left to the next run
        if self._may_go_on(at, goal):
            end = self.planner.next(at, seen, goal, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        else:
            end = at.moved_to(at.offsets, seen)
        start_of_stream = began(start)
        return of_stream(end.nested(), at.offsets if start_of_stream is None else start_of_stream)

    def _may_go_on(self, at: OffsetSnapshot, goal: Mapping[Partition, int]) -> bool:
        """Wait while the source's rate holds the next batch back. False if that takes longer than Spark should wait;
        with AvailableNow no new offsets would be the end."""
        wait_s = self.planner.wait_s(at, goal)
        hold(wait_s if self._is_available_now else min(wait_s, _HOLD_S))
        return self._is_available_now or wait_s <= _HOLD_S

    def reportLatestOffset(self) -> Nested | None:
        return None if self._seen is None else self._seen.nested()

    @_spoken
    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        begin, until = OffsetSnapshot.from_nested(start), OffsetSnapshot.from_nested(end)
        as_planned = began(end)
        if as_planned is not None and began(start) is None:
            # The stream's first batch: if it was planned before a restart, its start was asked for anew since.
            begin = replace(begin, offsets=as_planned)
        self.planner.check_again(begin, until)
        return self.planned(begin, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        assert isinstance(partition, _RangePartition), partition
        return self.read_range(partition.wanted)

    def commit(self, end: Nested) -> None:
        """Shows the positions in the consumer group, if there is one. Spark's checkpoint and the ledger keep them."""
        self._group.show(OffsetSnapshot.from_nested(end).positions())

    def stop(self) -> None:
        self._group.close()


class _BatchReader(_Planned, DataSourceReader):
    def __init__(self, source: KafkaSource, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(source, schema)
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
        start = self.planner.initial()
        latest = self.planner.ends(start)
        end = latest.offsets if self._ending.strip().lower() == "latest" else self._given_end(latest)
        begin = {partition: offset for partition, offset in start.offsets.items() if partition in end}
        for (topic, number), offset in begin.items():
            if end[topic, number] < offset:
                raise ConfigError(
                    "ending-before-starting",
                    f"endingOffsets is before startingOffsets for {topic}/{number}: {end[topic, number]} < {offset}",
                )
        return self.planned(OffsetSnapshot(begin), OffsetSnapshot(end, latest.ids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        # Spark makes an empty partition of its own where there are none.
        return self.read_range(partition.wanted) if isinstance(partition, _RangePartition) else iter(())

    def _given_end(self, latest: OffsetSnapshot) -> Mapping[Partition, int]:
        """The records between two ends of the same topics: those that `endingOffsets` names."""
        end = starting.parse("endingOffsets", self._ending, self.source.subscription)
        return starting.resolve_end(self.planner.broker, latest, end)
