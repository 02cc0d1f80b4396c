"""A flow as a query of Spark: its chains as stages, and Spark's exchanges between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from onefold.core import EpochRecord, Sink
from onefold.core.source import Source
from onefold.core.writing.attempt import Written
from onefold.core.writing.dead_letters import Found, Policy
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.flow.graph.nodes import Shipping
from onefold.flow.graph.operators import Deduplicating, Processing
from onefold.flow.time.clocks import ClockStatus
from onefold.flow.time.told import ToldClocks, told_late, told_lowest
from onefold.spark.flows.packing import ORDER, PACKED_DDL, PLACE, last_chains, levels, name_of
from onefold.spark.flows.spark_operator import SparkOperator
from onefold.spark.flows.stages import LevelProcessor, PreparedTask, direct_stage, read_stage, step_stage, write_stage
from onefold.spark.runtime.writers import RESULT_SCHEMA, OwnWriting, results, writers_max
from onefold.store.job.session import task_of


@dataclass(frozen=True)
class Translation(OwnWriting):
    """The plan of a flow, and the sources that it reads, by the numbers of their nodes. Pickles. `passed` counts as
    `Operators.passed` does."""

    plan: Plan
    sources: Mapping[int, Source]
    passed: Counter[int] = field(default_factory=Counter)
    told: ToldClocks = field(default_factory=ToldClocks)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return self.plan.graph.schemas()

    def read(self, splits: DataFrame, initial: DataFrame | None = None) -> DataFrame:
        """The query's rows, of its splits: all that is done before the sinks. `initial` is the state that a new
        checkpoint begins with (`moved_state.INITIAL`)."""
        if self._is_direct:
            return splits
        rows = splits.mapInArrow(partial(read_stage, self.plan, self.sources), PACKED_DDL)
        for level in levels(self.plan)[1:]:
            rows = self._exchanged(rows, level, initial)
        return rows

    def given(self, operator: SparkOperator, splits: DataFrame) -> DataFrame:
        """The rows that come to the operator that Spark runs."""
        rows = self.read(splits)
        rows = rows if self._keeps_places else rows.repartition(*PLACE)
        reads = partial(read_stage, self.plan, self.sources) if self._is_direct else None
        return operator.of_packed(self.plan, rows, reads)

    def write(self, rows: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        """Write the rows of an epoch to the sinks, in one pass."""
        if not self._keeps_places:
            rows = rows.repartition(*PLACE).sortWithinPartitions(*ORDER)
        if (most := writers_max(sinks)) is not None:
            rows = rows.coalesce(most)
        write = partial(direct_stage, self.plan, self.sources) if self._is_direct else partial(write_stage, self.plan)
        tasks: list[PreparedTask] = results(rows.mapInArrow(partial(write, record), RESULT_SCHEMA))
        prepared = tuple(each for task in tasks for each in task.committables)
        for task in tasks:
            self.passed.update(task.seen.passed)
        late, told = self._tell(tasks, record.epoch, record.timestamp_ms)
        return Written(prepared, found=self._found(tasks, record), late=late, told=told)

    def _tell(self, tasks: Sequence[PreparedTask], epoch: int, now_ms: int) -> tuple[int, tuple[str, ...]]:
        """Note where the clocks are. Returns how many rows came too late, and what a line of the log says."""
        clocks = self._clocks(tasks)
        self.told.note(epoch, clocks, now_ms)
        late = {uid: clock.late for uid, clock in clocks.items() if clock.late}
        told = [told_lowest(clocks, now_ms)] if clocks else []
        told += [told_late(sum(late.values()), late)] if late else []
        return sum(late.values()), tuple(told)

    def _clocks(self, tasks: Sequence[PreparedTask]) -> dict[str, ClockStatus]:
        """Of the operators that go by event time, by their uids. Key groups have them alike, but for the rows that came
        too late there."""
        clocks: dict[str, ClockStatus] = {}
        for node, clock in (each for task in tasks for each in task.seen.clocks):
            uid = str(self.plan.graph.nodes[node].uid)
            clocks[uid] = replace(clock, late=clock.late + (clocks[uid].late if uid in clocks else 0))
        return clocks

    def _found(self, tasks: Sequence[PreparedTask], record: EpochRecord) -> tuple[Found, ...]:
        """The bad records of each source. Raises BadRecord where it has too many."""
        found = []
        for number, source in self.sources.items():
            policy, bad = (
                Policy.of(source, self.plan.graph.letters_of(source.name)),
                sum(task.seen.bad[number] for task in tasks),
            )
            if policy is not None:
                policy.refuse(task_of(record), bad)
                found.append((bad, policy))
        return tuple(found)

    @property
    def _is_direct(self) -> bool:
        """Whether the task that reads also writes: nothing is exchanged."""
        return self._keeps_places and len(levels(self.plan)) == 1

    @property
    def _keeps_places(self) -> bool:
        """Whether rows are written in the tasks that they are in."""
        ways = [exchange.edge.shipping for chain in last_chains(self.plan) for exchange in chain.inputs]
        return all(way is Shipping.FORWARD for way in ways)

    def _exchanged(self, rows: DataFrame, level: list[Chain], initial: DataFrame | None) -> DataFrame:
        if all(chain.uid is None for chain in level):
            return rows.repartition(*PLACE).mapInArrow(partial(step_stage, self.plan, level), PACKED_DDL)
        has_clock = any(
            isinstance(chain.head.operator, Processing | Deduplicating)
            or chain.head.keeps_event_time
            or chain.head.expires
            for chain in level
        )
        first = None
        if initial is not None:
            first = initial.filter(initial["chain"].isin([name_of(chain) for chain in level])).groupBy(*PLACE)
        return rows.groupBy(*PLACE).transformWithState(
            LevelProcessor(self.plan, level),
            PACKED_DDL,
            "append",
            "ProcessingTime" if has_clock else "None",
            initialState=first,
        )
