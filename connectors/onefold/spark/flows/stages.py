"""What the tasks of Spark run of a flow: chains of operators, which the engine's code makes and runs.

Chains stand on levels, with an exchange by Spark between two: the first reads, sinks are written last. Rows for a chain
of a further level go through those before it as they are.
"""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from onefold.core import Committable, EpochRecord, Sink, TaskId
from onefold.core.checks import present
from onefold.core.source import Part, Source, Split
from onefold.core.writing.attempt import attempting
from onefold.engine.dataflow.chain_operators import Emitted, Operators
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.cutting import cut
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.codec import decode
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.flow.graph.operators import Uniting
from onefold.flow.time.clocks import END, NO_TIMES, ClockStatus, Highest, SourceEnd, Times
from onefold.spark.flows.buckets import entries_of
from onefold.spark.flows.packing import (
    BAD,
    CLOCK,
    PASSED,
    TIMES,
    PackedRow,
    Packer,
    in_order,
    last_chains,
    name_of,
    packed_batch,
    packed_rows,
    packed_times,
    passed_row,
    times_of,
    unpacked,
)
from onefold.spark.flows.ranges import splits_of
from onefold.spark.flows.state import SparkTables
from onefold.spark.runtime.workers import freeze_imports, is_guarded
from onefold.store.job.session import task_of

Batches = Iterable[pa.RecordBatch]
_Row = Row(*(field.name for field in fields(PackedRow)))


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What a task has prepared, and what has come to it of the epoch."""

    committables: tuple[Committable, ...]
    seen: Seen


@dataclass(slots=True)
class Seen:
    """Of an epoch, beside its rows: how many bad records there were, by the numbers of the nodes that read them; where
    key groups of operators that go by event time are, by theirs; and what has passed by the streams, as
    `Operators.passed` has it."""

    bad: Counter[int] = field(default_factory=Counter)
    clocks: list[tuple[int, ClockStatus]] = field(default_factory=list)
    passed: Counter[int] = field(default_factory=Counter)

    def take(self, row: PackedRow) -> bool:
        """Whether that is what the row tells, and not a batch."""
        if row.exchange == BAD:
            self.bad[row.sender] += row.number
        elif row.exchange == CLOCK:
            self.clocks.append((row.sender, pickle.loads(row.content)))
        elif row.exchange == PASSED:
            self.passed.update(pickle.loads(row.content))
        else:
            return False
        return True


def read_stage(plan: Plan, sources: Mapping[int, Source], splits: Batches) -> Iterator[pa.RecordBatch]:
    """Reads splits, and runs the chains that read."""
    index = present(TaskContext.get(), "it runs in a task").partitionId()
    seen = Seen()
    times: dict[int, Times] = {}
    packers: dict[int, Packer] = {}
    for chain, emitted in _read(plan, sources, splits, seen, times):
        packer = packers.setdefault(chain.number, Packer(plan, chain, index))
        yield packed_batch(packer.pack(emitted))
    if seen.bad:
        yield packed_batch(PackedRow("", index, BAD, node, count) for node, count in seen.bad.items())
    if seen.passed:
        yield packed_batch([passed_row(seen.passed)])
    for node, of in times.items():
        yield packed_batch(packed_times(plan, node, index, of))


def _read(
    plan: Plan, sources: Mapping[int, Source], splits: Batches, seen: Seen, times: dict[int, Times]
) -> Iterator[tuple[Chain, Iterator[Emitted]]]:
    """What chains that read emit, part by part; counts in `seen`, and tells `times` what they say of event time, where
    that counts. Where a chain unites streams of its own, whose rows take turns by batches,
    these are cut so that the turns are the same when an epoch runs again."""
    freeze_imports()
    rows = (row for batch in splits for row in splits_of(batch))
    for node, of in groupby(rows, itemgetter(0)):
        chain = plan.chain_of(node)
        operators = _operators(plan, chain, None)
        parts = _parts(sources[node], node, (split for _, split in of), chain.highest, times)
        has_turns = any(isinstance(each.operator, Uniting) for each in chain.nodes)
        for part in cut(parts) if has_turns else parts:
            yield chain, operators.take(part, 0)
        if count := operators.bad_of_epoch():
            seen.bad[node] += count
        seen.passed.update(operators.passed())


def _parts(
    source: Source, node: int, splits: Iterable[Split | SourceEnd], highest: Highest | None, times: dict[int, Times]
) -> Iterator[Part]:
    for split in splits:
        if isinstance(split, SourceEnd):
            times[node] = times.get(node, NO_TIMES).joined(present(highest, "its times count").take(split))
            continue
        for part in source.read(split, guarded=is_guarded()):
            if highest is not None:
                highest.see(split.partition, part)
            yield part


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
        if passed := operators.passed():
            yield packed_batch([passed_row(passed)])


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
        given = in_order(PackedRow(*row) for row in rows)
        running = self._running.get(head)
        return _rows(given if running is None else running.epoch(index, given, timerValues))

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """Entries of a savepoint, in the first batch of a checkpoint."""
        head, _ = key
        self._running[head].load(initialState, timerValues)

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
        self._loaded: dict[int, int] = {}  # the timer of each key group that has begun with some
        self._told_ms: int | None = None  # for when Spark has a timer of the group
        self._told: StateSpec | None = None  # where that is kept, if `idle` decides: another start may have another one
        if chain.head.keeps_event_time or chain.head.expires:
            self._told = StateSpec(present(chain.uid, "it keeps state"), "$told", StateKind.CLOCKS)
            self._tables.operator(self._told, lambda: [(self._told_ms,)])

    def load(self, row: Row, clocks: Any) -> None:
        """Entries of a savepoint. One that goes by event time, or whose states expire, is called soon, and then says
        when next; of processing time the first timer is Spark's."""
        spec = self._tables.load(row.state, bytes(row.key), bytes(row.entries))
        is_soon, first_ms = self._told is not None, clocks.getCurrentProcessingTimeInMs() + 1
        if not is_soon and spec.kind is not StateKind.TIMERS:
            return
        if not is_soon:
            timers = [at for _, of in entries_of(bytes(row.key), bytes(row.entries)) for (at,) in decode(of)]
            if not timers:
                return
            first_ms = max(first_ms, min(timers))
        known_ms = self._loaded.get(row.subtask)
        if known_ms is None or first_ms < known_ms:
            if known_ms is not None:
                self._handle.deleteTimer(known_ms)
            self._handle.registerTimer(first_ms)
            self._loaded[row.subtask] = first_ms

    def epoch(self, index: int, rows: Iterable[PackedRow], clocks: Any) -> Iterator[PackedRow]:
        """One key group's rows and timers of an epoch. Its time is that which Spark wrote down for the batch. Once all
        sources have ended, there may be none further: timers that timers register are of this one."""
        now_ms = clocks.getCurrentProcessingTimeInMs()
        task = TaskId(self._plan.graph.flow, 0, 0, now_ms, uuid.UUID(int=0))
        packer = Packer(self._plan, self._chain, index)
        self.done.add(index)
        self._tables.begin()
        self.operators.restored()
        told_ms = self._loaded.pop(index) if index in self._loaded else self._known_timer()
        self.operators.begin(task)
        of_times, of_batches = _divided(rows)
        for port, batch in _cut(self._plan, of_batches):
            yield from packer.pack(self.operators.take(batch, port))
        yield from packer.pack(self.operators.flush(task, times_of(of_times)))
        while self._has_ended and (due_ms := self.operators.timer_ms()) is not None and due_ms <= now_ms:
            yield from packer.pack(self.operators.flush(task))
        self._tell(told_ms, now_ms)
        self._tables.store()
        if passed := self.operators.passed():
            yield passed_row(passed)
        if (clock := self.operators.clock()) is not None and (clock.late or not index):
            yield PackedRow("", index, CLOCK, self._chain.head.number, 0, 0, pickle.dumps(clock))

    def _known_timer(self) -> int | None:
        """The timer that Spark has, where it is still to come."""
        if self._told is None:
            return self.operators.timer_ms()
        earlier = self._tables.earlier(self._told)
        told_ms: int | None = earlier[0][0][0] if earlier else None
        return told_ms

    @property
    def _has_ended(self) -> bool:
        clock = self.operators.clock()
        return clock is not None and clock.watermark_us == END

    def _tell(self, told_ms: int | None, now_ms: int) -> None:
        """Have Spark call for the next timer, and for none that was deleted. What has come, Spark itself removes."""
        next_ms = self.operators.timer_ms()
        wanted_ms = self._told_ms = None if next_ms is None else max(next_ms, now_ms + 1)
        if wanted_ms == told_ms:
            return
        if told_ms is not None and told_ms > now_ms:
            self._handle.deleteTimer(told_ms)
        if wanted_ms is not None:
            self._handle.registerTimer(wanted_ms)


def write_stage(plan: Plan, record: EpochRecord, batches: Batches) -> Iterator[pa.RecordBatch]:
    """One attempt to write rows to the sinks, which were opened. Gives one row: a `PreparedTask`, pickled."""
    seen = Seen()

    def rows() -> Iterator[tuple[Chain, pa.RecordBatch]]:
        for batch in batches:
            for row in packed_rows(batch):
                if not seen.take(row):
                    yield plan.chain_of(plan.exchanges[row.exchange].target), unpacked(plan, row)

    return _written(plan, record, rows(), seen)


def direct_stage(
    plan: Plan, sources: Mapping[int, Source], record: EpochRecord, splits: Batches
) -> Iterator[pa.RecordBatch]:
    """`read_stage` and `write_stage` in one task, where nothing is exchanged."""
    seen = Seen()

    def rows() -> Iterator[tuple[Chain, pa.RecordBatch]]:
        for chain, emitted in _read(plan, sources, splits, seen, {}):
            for node, output, batch in emitted:
                for exchange in chain.outputs:
                    if (exchange.edge.source, exchange.edge.output) == (node, output):
                        yield plan.chain_of(exchange.target), batch

    return _written(plan, record, rows(), seen)


def _written(
    plan: Plan, record: EpochRecord, rows: Iterable[tuple[Chain, pa.RecordBatch]], seen: Seen
) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    sinks = {node.number: writing.sink for node, writing in plan.graph.writings()}
    writers = {chain.number: _operators(plan, chain, None, sinks) for chain in last_chains(plan)}
    with attempting(task_of(record), [*writers.values()]) as prepared:
        for chain, batch in rows:
            for _ in writers[chain.number].take(batch, 0):
                raise AssertionError("a sink emits nothing")
    written = pickle.dumps(PreparedTask(tuple(prepared), seen))
    yield pa.RecordBatch.from_pydict({"written": pa.array([written], pa.binary())})


def _operators(plan: Plan, chain: Chain, tables: SparkTables | None, sinks: Mapping[int, Sink] = {}) -> Operators:
    return Operators(chain, {node.number: make_logic(plan.graph, node, sinks, tables, 0, 1) for node in chain.nodes})


def _cut(plan: Plan, rows: Iterable[PackedRow]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of rows that are in order, each sender's cut anew, and the input that each is for: as Spark and Kafka
    cut them, they would be others when the epoch runs again."""
    for (exchange, _), of in groupby(rows, attrgetter("exchange", "sender")):
        for batch in cut(unpacked(plan, row) for row in of):
            assert isinstance(batch, pa.RecordBatch)
            yield plan.exchanges[exchange].input, batch


def _divided(rows: Iterable[PackedRow]) -> tuple[list[PackedRow], list[PackedRow]]:
    """Those that say what time it is, and those with batches."""
    times, batches = list[PackedRow](), list[PackedRow]()
    for row in rows:
        (times if row.exchange == TIMES else batches).append(row)
    return times, batches


def _rows(packed: Iterable[PackedRow]) -> Iterator[Row]:
    return (_Row(*astuple(row)) for row in packed)
