"""Tests of a flow without servers: rows of a test's own go through the engine's operators, epoch by epoch."""

from __future__ import annotations

import importlib
import pickle
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.errors import ConfigError
from onefold.core.extras import naming_extras
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.values.exact import Mismatch
from onefold.core.values.names import near
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.flow.flow import Flow
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Reading
from onefold.flow.processing.rows import RowCollector, dicts_of, not_of_type, values_of
from onefold.flow.time.clocks import SourceEnd
from onefold.flow.time.watermarks import Watermarks

__all__ = ["FlowTest", "check_trigger", "check_watermarks"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class FlowTest:
    """A flow over rows of a test's own, epoch by epoch, in this process: no source is asked, and no sink written to.

        test = FlowTest(flow)
        written = test.epoch({"orders": [(1, "a", Decimal("2.50")), (2, "a", Decimal("1.00"))]})
        assert written["totals"] == [{"account": "a", "total": Decimal("3.50"), "orders": 2}]
        test.restore()
        test.advance(hours=1)
        test.epoch()

    Operators, functions, state, timers and watermarks are those of `flow.run`; each epoch's state is stored, and
    `restore` begins from that. What a start refuses of sources and sinks is not looked at.

    at     processing time at the first epoch, with a zone
    state  which backend keeps the state: "memory" or "rocksdb"
    """

    def __init__(self, flow: Flow, at: datetime = _BEGIN, state: Literal["memory", "rocksdb"] = "memory") -> None:
        if at.tzinfo is None:
            raise ConfigError("option-value", f"at={at!r} has no zone: datetime(..., tzinfo=UTC)")
        with naming_extras("engine"):
            engine = importlib.import_module("onefold.engine.driver.inline_flow")  # as `Flow.run` has it
        self._graph = flow.graph()
        self._folder = tempfile.TemporaryDirectory(prefix="onefold-flow-test-")
        try:
            self._flow = engine.InlineFlow(self._graph, self._folder.name, state)
        except BaseException:
            self._folder.cleanup()
            raise
        self._now = at.astimezone(UTC)  # in a zone time passes as its clocks show it
        self._ended = self._now - timedelta(milliseconds=1)  # the time of the last epoch
        self._bad = 0
        self._partitions: dict[int, dict[str, None]] = {}  # that were named, by the nodes that read them
        self._is_closed = False

    @property
    def now(self) -> datetime:
        """Processing time: the next epoch's, or later where one has had it already, as no two have the same."""
        return self._now

    def epoch(
        self,
        rows: Mapping[str, Iterable[tuple[Any, ...] | Mapping[str, Any]] | pa.RecordBatch | pa.Table] = _NOTHING,
        bad: Mapping[str, Sequence[bytes]] = _NOTHING,
        ended: Iterable[str] = (),
    ) -> dict[str, list[dict[str, Any]]]:
        """One epoch. Returns the rows that each sink would get in it, by the sink's name, as dicts of plain values.

        rows   of each source, by its uid: tuples of all columns, dicts (a column may be missing, and is null), or Arrow
               of the source's own schema. For event time by a source's partitions: `{"orders/0": [...]}`; one that was
               named once is there from then on
        bad    of each source the records that cannot be read, by its uid: for its dead letters, or `.side("bad")`
        ended  the uids of sources that have no more records after this epoch

        Raises BadRecord for a value that is not exactly one of its column's type, and what the flow's functions raise;
        then nothing of the epoch is left.
        """
        self._check_open()
        parts: dict[int, list[tuple[str, Part]]] = {}
        named = {node: dict(partitions) for node, partitions in self._partitions.items()}
        for place, given in rows.items():
            uid, _, partition = place.partition("/")
            node = self._node(uid)
            empty = empty_batch(BAD_COLUMNS)
            named.setdefault(node.number, {})[partition] = None
            made = [(partition, Part(batch, empty)) for batch in _batches(node, given)]
            parts.setdefault(node.number, []).extend(made)
        for uid, records in bad.items():
            node = self._node(uid)
            if "bad" not in node.outputs():
                raise ConfigError("dead-letters-mismatch", f'{uid!r} has no on_error="dead_letter", and makes none')
            empty = empty_batch(_records(node))
            parts.setdefault(node.number, []).append(("", Part(empty, self._letters(node, records))))
        at = max(self._now, self._ended + timedelta(milliseconds=1))
        is_last = {self._node(uid).number for uid in ended}
        ends = {
            node.number: SourceEnd(tuple(named.get(node.number, ())), node.number in is_last)
            for node, _ in self._graph.readings()
        }
        written: dict[str, list[dict[str, Any]]] = self._flow.run(parts, ends, _ms(at), dicts_of)
        self._partitions = named
        self._now = self._ended = at
        return written

    def watermark(self, uid: str) -> datetime | None:
        """Of an operator that goes by event time, after the last epoch; None where it is not known. Where all sources
        have ended, it is the end of all time that Python knows."""
        self._check_open()
        us = present(self._flow.clocks().get(uid), f"{uid!r} goes by event time").watermark_us
        try:
            return None if us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
        except OverflowError:
            return (datetime.max if us > 0 else datetime.min).replace(tzinfo=UTC)

    def advance(self, **by: float) -> None:
        """Let time pass before the next epoch: `advance(minutes=5)`, as `datetime.timedelta` takes it."""
        passed = timedelta(**by)
        if passed < timedelta(0):
            raise ConfigError("option-value", f"advance({passed}): processing time never goes back")
        self._now += passed

    def restore(self) -> None:
        """As after a crash, or another start: all that is in memory is gone, and what the last epoch stored is back."""
        self._check_open()
        self._flow.restore()

    def change(self, flow: Flow) -> None:
        """As after a start of another version: it goes on from what the last epoch stored. Raises CheckpointMismatch
        where that start is refused."""
        self._check_open()
        self._graph = flow.graph()
        self._flow.change(self._graph)

    def close(self) -> None:
        self._is_closed = True
        try:
            self._flow.close()
        finally:
            self._folder.cleanup()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError(
                "flow-test-closed", f"this test of flow {self._graph.flow!r} was closed: make another one"
            )

    def _node(self, uid: str) -> Node:
        found = {str(node.uid): node for node, _ in self._graph.readings()}
        if uid not in found:
            hint = near(uid, found) or f"; it has {', '.join(found)}"
            flow = self._graph.flow
            raise ConfigError("source-unknown", f"flow {flow!r} has no source with the uid {uid!r}{hint}")
        return found[uid]

    def _letters(self, node: Node, records: Sequence[bytes]) -> pa.RecordBatch:
        assert isinstance(node.operator, Reading)
        named = {"source_topic": node.operator.source.name, "source_partition": 0, "source_timestamp": self._now}
        made = [
            {**named, "source_offset": self._bad + at, "value": value, "reason": "bad, says the test"}
            for at, value in enumerate(records)
        ]
        self._bad += len(records)
        return pa.RecordBatch.from_pylist(made, schema=BAD_COLUMNS)


def _records(node: Node) -> pa.Schema:
    """Those of a source, without what their epoch adds."""
    schema = present(node.schema, "a source has rows")
    by_epochs = isinstance(node.operator, Reading) and node.operator.given(schema) != schema
    return schema.remove(len(schema) - 1) if by_epochs else schema


def _batches(node: Node, rows: Any) -> list[pa.RecordBatch]:
    schema = _records(node)
    if isinstance(rows, pa.RecordBatch | pa.Table):
        if not rows.schema.equals(schema):
            raise ConfigError(
                "schema-differs",
                f"these rows of {node.name!r} are of {_columns(rows.schema)}, and its schema is {_columns(schema)}",
            )
        _check_not_null(node, rows)
        return rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    collected = RowCollector(f"the test's {node.name!r}", {None: schema})
    for row in rows:
        collected.add(row)
    return [batch for _, batch in collected.take()]


def _check_not_null(node: Node, rows: pa.RecordBatch | pa.Table) -> None:
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            found = rows.slice(column.is_null().index(True).as_py(), 1)
            row = next(values_of(found.to_batches()[0] if isinstance(found, pa.Table) else found))
            raise not_of_type(f"the test's {node.name!r} gives", Mismatch("null", "the column is NOT NULL"), field, row)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in schema)


def check_watermarks(watermarks: Watermarks, rows: pa.RecordBatch, *, rounds: int = 200, seed: int = 0) -> None:
    """Hold a policy to saying of two batches together the higher of what it says of each: rows are drawn of these, and
    cut in two. Raises AssertionError where it does not, or says no whole number."""
    chance, watermarks = random.Random(seed), pickle.loads(pickle.dumps(watermarks))
    for _ in range(rounds):
        drawn = rows.take(pa.array([chance.randrange(len(rows)) for _ in range(2 + chance.randrange(10))]))
        at = chance.randint(1, len(drawn) - 1)
        whole, *parts = (watermarks.of(each) for each in (drawn, drawn.slice(0, at), drawn.slice(at)))
        known = [us for us in parts if us is not None]
        if {type(us) for us in (whole, *parts)} - {int, type(None)} or whole != max(known, default=None):
            raise AssertionError(f"{watermarks}: {drawn.to_pylist()} cut at {at} gives {parts}, and together {whole!r}")


def check_trigger(flow: Flow, uid: str, rows: pa.RecordBatch, *, rounds: int = 20, seed: int = 0) -> None:
    """Hold the triggers of a flow's windows to remembering what they need in the windows' state alone: epochs of rows
    drawn of these, of the source `uid`, give the same rows, in whatever order, where each row comes in a batch of its
    own, and all is stored and restored after each epoch. Raises AssertionError where they do not."""
    chance = random.Random(seed)
    for _ in range(rounds):
        drawn = [[chance.randrange(len(rows)) for _ in range(chance.randrange(6))] for _ in range(4)]
        epochs = [rows.take(pa.array(places, pa.int64())) for places in drawn]
        whole, cut = (_written(flow, uid, epochs, cuts) for cuts in (False, True))
        if [*map(_in_any_order, whole)] != [*map(_in_any_order, cut)]:
            told = [batch.to_pylist() for batch in epochs]
            raise AssertionError(f"{flow}: of the epochs {told} comes {whole}, and cut and with restores {cut}")


def _written(flow: Flow, uid: str, epochs: Iterable[pa.RecordBatch], cuts: bool) -> list[Any]:
    test, found = FlowTest(flow), []
    for batch in epochs:
        parts = [batch.slice(at, 1) for at in range(len(batch))] if cuts else [batch]
        found.append(test.epoch({uid: pa.Table.from_batches(parts, batch.schema)}))
        if cuts:
            test.restore()
    found.append(test.epoch(ended=[uid]))
    test.close()
    return found


def _in_any_order(written: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Of different keys; as text, in which NaN is NaN."""
    return {sink: sorted(map(repr, rows)) for sink, rows in written.items()}


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
