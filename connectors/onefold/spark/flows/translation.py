"""A flow as a query of Spark: its chains as stages, and Spark's exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from onefold.core import EpochRecord, Sink
from onefold.core.job.session import task_of
from onefold.core.writing.attempt import Written
from onefold.core.writing.bad_records import Policy
from onefold.engine.dataflow.plan import Chain, Plan
from onefold.flow.graph import Shipping
from onefold.flow.operators import Processing
from onefold.spark.flows.packing import ORDER, PACKED_DDL, PLACE
from onefold.spark.flows.spark_operator import SparkOperator
from onefold.spark.flows.stages import Batches, LevelProcessor, last_chains, levels, read_stage, step_stage, write_stage
from onefold.spark.runtime.epoch_job import OwnWriting
from onefold.spark.runtime.writers import RESULT_SCHEMA, collected, writers_max

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["Translation"]

Stage = Callable[[Batches], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Translation(OwnWriting):
    """The plan of a flow, and the source that it reads. Pickles."""

    plan: Plan
    source: KafkaSource

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        graph = self.plan.graph
        return {writing.sink.name: graph.written(node) for node, writing in graph.writings()}

    @property
    def policy(self) -> Policy | None:
        """That bad records are written, the flow itself says."""
        letters = next((writing.sink for _, writing in self.plan.graph.writings() if writing.is_letters), None)
        return Policy.of(self.source, letters)

    def read(self, ranges: DataFrame) -> DataFrame:
        """The query's rows, of its ranges of offsets: all that is done before the sinks."""
        if self._is_direct:
            return ranges
        rows = ranges.mapInArrow(self._reading, PACKED_DDL)
        for level in levels(self.plan)[1:]:
            rows = self._exchanged(rows, level)
        return rows

    def given(self, operator: SparkOperator, ranges: DataFrame) -> DataFrame:
        """The rows that come to the operator that Spark runs."""
        rows = self.read(ranges)
        rows = rows if self._keeps_places else rows.repartition(*PLACE)
        return operator.of_packed(self.plan, rows, self._reading if self._is_direct else None)

    def write(self, rows: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        """Write the rows of an epoch to the sinks, in one pass."""
        if not self._keeps_places:
            rows = rows.repartition(*PLACE).sortWithinPartitions(*ORDER)
        if (most := writers_max(sinks)) is not None:
            rows = rows.coalesce(most)
        plan, before = self.plan, self._reading if self._is_direct else None

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_stage(plan, record, batches if before is None else before(batches))

        written = collected(rows.mapInArrow(write, RESULT_SCHEMA))
        if self.policy is not None:
            self.policy.refuse(task_of(record), written.bad)
        return written

    @property
    def _is_direct(self) -> bool:
        """Whether the task that reads also writes: nothing is exchanged."""
        return self._keeps_places and len(levels(self.plan)) == 1

    @property
    def _keeps_places(self) -> bool:
        """Whether rows are written in the tasks that they are in."""
        ways = [exchange.edge.shipping for chain in last_chains(self.plan) for exchange in chain.inputs]
        return all(way is Shipping.FORWARD for way in ways)

    @property
    def _reading(self) -> Stage:
        return partial(read_stage, self.plan, self.source)

    def _exchanged(self, rows: DataFrame, level: list[Chain]) -> DataFrame:
        if all(chain.uid is None for chain in level):
            return rows.repartition(*PLACE).mapInArrow(partial(step_stage, self.plan, level), PACKED_DDL)
        has_clock = any(isinstance(chain.head.operator, Processing) for chain in level)
        return rows.groupBy(*PLACE).transformWithState(
            LevelProcessor(self.plan, level), PACKED_DDL, "append", "ProcessingTime" if has_clock else "None"
        )
