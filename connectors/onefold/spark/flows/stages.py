"""What the tasks of Spark run of a flow: chains of operators, which the engine's code makes and runs.

Chains stand on levels, with an exchange by Spark between two: the first reads, sinks are written last. Rows for a chain
of a further level go through those before it as they are.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, fields
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from onefold.core import EpochRecord, Sink, TaskId
from onefold.core.checks import present
from onefold.core.failpoints import failpoint
from onefold.core.job.session import task_of
from onefold.core.writing.attempt import Written
from onefold.engine.dataflow.cutting import cut
from onefold.engine.dataflow.operators import Operators
from onefold.engine.dataflow.plan import Chain, Plan
from onefold.engine.logics.making import make_logic
from onefold.flow.operators import Querying, Uniting, Writing
from onefold.spark.flows.packing import BAD, Packed, Packer, in_order, name_of, packed_batch, packed_rows, unpacked
from onefold.spark.flows.state import SparkTables
from onefold.spark.runtime.direct import parts_of
from onefold.spark.runtime.workers import freeze_imports

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["Batches", "LevelProcessor", "last_chains", "levels", "read_stage", "step_stage", "write_stage"]

Batches = Iterable[pa.RecordBatch]
_Row = Row(*(field.name for field in fields(Packed)))


def levels(plan: Plan) -> list[list[Chain]]:
    """The chains of each level but the last ones. A chain comes one level after the last of those that feed it."""
    level_of: dict[int, int] = {}
    found: list[list[Chain]] = []
    for chain in plan.chains:
        if isinstance(chain.head.operator, Querying | Writing):
            continue
        before = [level_of[plan.chain_of(exchange.edge.source).number] for exchange in chain.inputs]
        level_of[chain.number] = level = 1 + max(before, default=-1)
        if level == len(found):
            found.append([])
        found[level].append(chain)
    return found


def last_chains(plan: Plan) -> list[Chain]:
    """Those of the sinks; where Spark makes what these get, its own."""
    kind = Writing if plan.graph.querying() is None else Querying
    return [chain for chain in plan.chains if isinstance(chain.head.operator, kind)]


def read_stage(plan: Plan, source: KafkaSource, ranges: Batches) -> Iterator[pa.RecordBatch]:
    """Reads ranges of offsets, and runs the chain that reads. Where it unites streams of its own, whose rows take turns
    by batches, these are cut so that the turns are the same when an epoch runs again."""
    freeze_imports()
    index = present(TaskContext.get(), "it runs in a task").partitionId()
    chain = plan.chains[0]
    operators, packer = _operators(plan, chain, None), Packer(plan, chain, index)
    parts = (part for batch in ranges for part in parts_of(source, batch))
    has_turns = any(isinstance(node.operator, Uniting) for node in chain.nodes)
    for part in cut(parts) if has_turns else parts:
        yield packed_batch(packer.pack(operators.take(part, 0)))
    if bad := operators.bad_of_epoch():
        yield packed_batch([Packed("", index, BAD, index, bad)])


def step_stage(plan: Plan, level: list[Chain], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Runs the chains of a level, none of which keeps state."""
    freeze_imports()
    running = {name_of(chain): chain for chain in level}
    rows = in_order(row for batch in batches for row in packed_rows(batch))
    for (head, index), of in groupby(rows, lambda row: row.place):
        if head not in running:
            yield packed_batch(of)
            continue
        chain = running[head]
        operators, packer = _operators(plan, chain, None), Packer(plan, chain, index)
        for port, batch in _cut(plan, of):
            yield packed_batch(packer.pack(operators.take(batch, port)))


class LevelProcessor(StatefulProcessor):
    """Runs the chains of a level, some of which keep state. Spark's groups are the key groups of each chain."""

    def __init__(self, plan: Plan, level: list[Chain]) -> None:
        self._plan = plan
        self._level = level

    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze_imports()
        self._running = {name_of(chain): _Running(self._plan, chain, handle) for chain in self._level}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        head, index = key
        given = in_order(Packed(*row) for row in rows)
        running = self._running.get(head)
        return _rows(given if running is None else running.epoch(index, given, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        del expiredTimerInfo
        head, index = key
        running = self._running[head]
        if index in running.done:  # with its rows, or by another of its timers
            return iter(())
        return _rows(running.epoch(index, [], timerValues))

    def close(self) -> None:
        for running in self._running.values():
            running.operators.close()


class _Running:
    """A chain, for one key group after the other."""

    def __init__(self, plan: Plan, chain: Chain, handle: StatefulProcessorHandle) -> None:
        self._plan, self._chain, self._handle = plan, chain, handle
        self._tables = SparkTables(handle)
        self.operators = _operators(plan, chain, self._tables)
        self.done = set[int]()  # the key groups whose epoch it was here

    def epoch(self, index: int, rows: Iterable[Packed], clocks: Any) -> Iterator[Packed]:
        """One key group's rows and timers of an epoch. Its time is that which Spark wrote down for the batch."""
        now_ms = clocks.getCurrentProcessingTimeInMs()
        task = TaskId(self._plan.graph.flow, 0, 0, now_ms, uuid.UUID(int=0))
        packer = Packer(self._plan, self._chain, index)
        self.done.add(index)
        self._tables.begin()
        self.operators.restored()
        told_ms = self.operators.timer_ms()  # where it is still to come, Spark has it
        self.operators.begin(task)
        for port, batch in _cut(self._plan, rows):
            yield from packer.pack(self.operators.take(batch, port))
        yield from packer.pack(self.operators.flush(task))
        self._tables.store()
        self._tell(told_ms, now_ms)

    def _tell(self, told_ms: int | None, now_ms: int) -> None:
        """Have Spark call for the next timer, and for none that was deleted. What has come, Spark itself removes."""
        next_ms = self.operators.timer_ms()
        wanted_ms = None if next_ms is None else max(next_ms, now_ms + 1)
        if wanted_ms == told_ms:
            return
        if told_ms is not None and told_ms > now_ms:
            self._handle.deleteTimer(told_ms)
        if wanted_ms is not None:
            self._handle.registerTimer(wanted_ms)


def write_stage(plan: Plan, record: EpochRecord, batches: Batches) -> Iterator[pa.RecordBatch]:
    """One attempt to write rows to the sinks, which were opened. Gives one row: what was prepared, pickled."""
    freeze_imports()
    task, bad = task_of(record), 0
    sinks = {node.number: writing.sink for node, writing in plan.graph.writings()}
    writers = {name_of(chain): _operators(plan, chain, None, sinks) for chain in last_chains(plan)}
    for writer in writers.values():
        writer.begin(task)
    try:
        for batch in batches:
            for row in packed_rows(batch):
                if row.exchange == BAD:
                    bad += row.number
                else:
                    for _ in writers[row.chain].take(unpacked(plan, row), 0):
                        raise AssertionError("a sink emits nothing")
        failpoint("writers:written")
        prepared = [committable for writer in writers.values() for committable in writer.prepare()]
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    failpoint("writers:prepared")
    written = pickle.dumps(Written(tuple(prepared), bad))
    yield pa.RecordBatch.from_pydict({"written": pa.array([written], pa.binary())})


def _operators(plan: Plan, chain: Chain, tables: SparkTables | None, sinks: Mapping[int, Sink] = {}) -> Operators:
    return Operators(chain, {node.number: make_logic(plan.graph, node, sinks, tables, 0, 1) for node in chain.nodes})


def _cut(plan: Plan, rows: Iterable[Packed]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of rows that are in order, each sender's cut anew, and the input that each is for: as Spark and Kafka
    cut them, they would be others when the epoch runs again."""
    for (exchange, _), of in groupby(rows, attrgetter("exchange", "sender")):
        for batch in cut(unpacked(plan, row) for row in of):
            assert isinstance(batch, pa.RecordBatch)
            yield plan.exchanges[exchange].input, batch


def _rows(packed: Iterable[Packed]) -> Iterator[Row]:
    return (_Row(*astuple(row)) for row in packed)
