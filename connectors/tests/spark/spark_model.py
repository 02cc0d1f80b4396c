"""What Spark does with the stages of a flow: partitions, shuffles, and a state store. Needs no Spark."""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row

from onefold.core.source import Part, Split
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow.chains import plan
from onefold.engine.savepoints.exporting import mark_of
from onefold.engine.savepoints.saved_tables import from_file, to_file
from onefold.flow import Flow
from onefold.flow.time.clocks import SourceEnd
from onefold.sources.kafka import OffsetRange
from onefold.spark.flows import stages
from onefold.spark.flows.moved_state import initial_state, saved_tables
from onefold.spark.flows.packing import PackedRow, last_chains, levels, name_of, packed_batch, packed_rows, unpacked
from onefold.spark.flows.stages import LevelProcessor, Seen, read_stage, step_stage


class Spark:
    """What Spark does with the stages: partitions, shuffles, and a state store with a version a batch."""

    def __init__(self, flow: Flow, source: Any, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
        """`source` is that of all nodes which read, or has that of each by their numbers."""
        graph = cloudpickle.loads(cloudpickle.dumps(flow.graph()))  # type: ignore[no-untyped-call]
        self.plan, self.chance, self.patch = plan(graph, sinks_apart=True), chance, patch
        self.sources = source if isinstance(source, dict) else {node.number: source for node, _ in graph.readings()}
        self.store: dict[Any, Any] = {}  # of each level, group and state its entries; and timers

    def batch(
        self, ranges: Sequence[OffsetRange], now_ms: int, end: SourceEnd | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of each sink. `end`: where the source stands after it, if event time counts."""
        parts = [[Split(f"{each.topic}/{each.partition}", each)] for each in ranges]
        return self.epoch([[(0, split) for split in of] for of in parts], now_ms, {} if end is None else {0: end})

    def epoch(
        self, parts: Sequence[Sequence[tuple[int, Split]]], now_ms: int, ends: Mapping[int, SourceEnd]
    ) -> dict[str, list[dict[str, Any]]]:
        """A batch whose tasks read these splits, by the numbers of their nodes."""
        tasks = [sorted([*of, *ends.items()], key=itemgetter(0)) for of in parts or ([[]] if ends else [])]
        rows = [row for task, each in enumerate(tasks) for row in self._read(task, each)]
        for number, level in enumerate(levels(self.plan)[1:]):
            if any(chain.uid for chain in level):
                rows = self._stateful(number, LevelProcessor(self.plan, level), rows, now_ms)
            else:
                batch = packed_batch(self._shuffled(rows))
                rows = [row for made in step_stage(self.plan, level, [batch]) for row in packed_rows(made)]
        self.seen = Seen()
        names = {f"#{chain.number}": chain.head.name for chain in last_chains(self.plan)}
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
        for row in (row for row in rows if not self.seen.take(row)):
            found[names[row.chain]] += unpacked(self.plan, row).to_pylist()
        return found

    def move(self, now_ms: int = 0) -> None:
        """The state of a new checkpoint, which begins with a savepoint of this one."""
        chains = {chain.uid: chain for level in levels(self.plan) for chain in level if chain.uid is not None}
        saved = {uid: [mark_of(self.plan.graph, chain.head)] for uid, chain in chains.items()}
        states: dict[str, list[Any]] = defaultdict(list)
        for place, entries in self.store.items():
            if len(place) == 3:
                states[place[1]] += [(place[2][1], key, content) for (key,), (content,) in entries.items()]
        for each in saved_tables(self.plan, states, states.__getitem__):
            saved[each.spec.uid].append(each)
        again = {uid: [replace(each, table=from_file(to_file(each.table))) for each in of] for uid, of in saved.items()}
        self.store = {}
        initial = initial_state(self.plan, again).to_pylist()
        clocks = SimpleNamespace(getCurrentProcessingTimeInMs=lambda: now_ms)
        for number, level in enumerate(levels(self.plan)[1:]):
            if any(chain.uid for chain in level):
                processor, handle = LevelProcessor(self.plan, level), _Handle(self.store, number)
                processor.init(handle)  # type: ignore[arg-type]
                for row in self.chance.sample(initial, len(initial)):
                    if row["chain"] in {name_of(chain) for chain in level}:
                        handle.group = row["chain"], row["subtask"]
                        processor.handleInitialState(handle.group, Row(**row), clocks)
                processor.close()

    def _read(self, task: int, wanted: Sequence[tuple[int, Split | SourceEnd]]) -> Iterator[PackedRow]:
        context = SimpleNamespace(partitionId=lambda: task, attemptNumber=lambda: 0, getLocalProperty=lambda _: None)
        self.patch.setattr(stages.TaskContext, "get", lambda: context)
        splits = pa.RecordBatch.from_pylist([{"node": node, "split": pickle.dumps(each)} for node, each in wanted])
        rows = [row for batch in read_stage(self.plan, self.sources, [splits]) for row in packed_rows(batch)]
        self.patch.undo()
        return iter(rows)

    def _shuffled(self, rows: list[PackedRow]) -> list[PackedRow]:
        return self.chance.sample(rows, len(rows))

    def _stateful(self, level: int, processor: LevelProcessor, rows: list[PackedRow], now_ms: int) -> list[PackedRow]:
        handle = _Handle(self.store, level)
        processor.init(handle)  # type: ignore[arg-type]
        clocks, made = SimpleNamespace(getCurrentProcessingTimeInMs=lambda: now_ms), []
        groups: dict[Any, list[PackedRow]] = defaultdict(list)
        for row in self._shuffled(rows):
            groups[row.place].append(row)
        for handle.group, of in sorted(groups.items()):
            made += processor.handleInputRows(handle.group, (_row(each) for each in of), clocks)
        for timer in handle.expired(now_ms):
            handle.group = timer[0]
            made += processor.handleExpiredTimer(handle.group, clocks, None)
            handle.timers.discard(timer)
        processor.close()
        return [PackedRow(*row) for row in made]


class _Handle:
    """Spark's handle of one level's processor; `group` is the one whose turn it is."""

    def __init__(self, store: dict[Any, Any], level: int) -> None:
        self.store, self.level, self.group = store, level, None
        self.timers: set[Any] = store.setdefault((level, "timers"), set())

    def getMapState(self, name: str, key: str, value: str) -> Any:  # noqa: N802
        assert (key, value) == ("key binary", "entries binary")

        def entries() -> dict[Any, Any]:
            assert self.group is not None, "Spark has no state where no group has its turn"
            found: dict[Any, Any] = self.store.setdefault((self.level, name, self.group), {})
            return found

        return SimpleNamespace(
            getValue=lambda key: entries().get(key),
            updateValue=lambda key, value: entries().update({key: value}),
            removeKey=lambda key: entries().pop(key, None),
            iterator=lambda: iter([*entries().items()]),
            exists=lambda: bool(entries()),
        )

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        assert (self.group, at_ms) not in self.timers
        self.timers.add((self.group, at_ms))

    def deleteTimer(self, at_ms: int) -> None:  # noqa: N802
        self.timers.remove((self.group, at_ms))

    def expired(self, now_ms: int) -> list[Any]:
        return sorted((group, at_ms) for group, at_ms in self.timers if at_ms <= now_ms)


def _row(packed: PackedRow) -> Row:
    return Row(*astuple(packed))


class Given:
    """A source whose splits have their rows."""

    name, on_error, bad_records_max = "rows", "fail", 0

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        assert not guarded
        columns = zip(*split.range, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._columns, strict=True)]
        yield Part(pa.RecordBatch.from_arrays(arrays, schema=self._columns), empty_batch(BAD_COLUMNS))


class SparkTest:
    """Does what a `FlowTest` does; before some epochs the state is moved by a savepoint. An epoch of no rows in which
    no source ends is one that Spark makes for its timers alone."""

    def __init__(self, flow: Flow, patch: pytest.MonkeyPatch, chance: random.Random | None = None) -> None:
        readings = [*flow.graph().readings()]
        sources = {node.number: Given(reading.source.arrow_schema()) for node, reading in readings}
        self._chance, self._moves = chance or random.Random(0), random.Random(0)
        self.spark = Spark(flow, sources, self._chance, patch)
        self._nodes = {str(node.uid): node.number for node, _ in readings}
        self._named: dict[int, dict[str, None]] = {number: {} for number in sources}
        self._now_ms = 0

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1_000)

    def epoch(
        self, rows: Mapping[str, Sequence[Any]] = {}, ended: Sequence[str] = ()
    ) -> dict[str, list[dict[str, Any]]]:
        splits = []
        for place, of in rows.items():
            uid, _, partition = place.partition("/")
            self._named[self._nodes[uid]][partition] = None
            splits += [(self._nodes[uid], Split(partition, [row])) for row in of]
        cuts = sorted(self._chance.sample(range(len(splits) + 1), min(2, len(splits))))
        parts = [splits[at:to] for at, to in zip([0, *cuts], [*cuts, None], strict=True)]
        is_last = {self._nodes[uid] for uid in ended}
        ends = {node: SourceEnd(tuple(named), node in is_last) for node, named in self._named.items()}
        if rows and self._moves.random() < 0.4:  # Spark begins with a batch that has some
            self.spark.move(self._now_ms)
        return self.spark.epoch([of for of in parts if of], self._now_ms, ends if rows or ended else {})

    @property
    def timers(self) -> set[Any]:
        """Of the first level: the groups, and when."""
        found: set[Any] = self.spark.store[0, "timers"]
        return found

    def restore(self) -> None:
        """Each batch makes its processors anew."""

    def close(self) -> None:
        return
