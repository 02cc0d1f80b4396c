"""What can be asked of each operator's states: rows of columns, by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from onefold.core.aggregates import Accumulation
from onefold.core.values.batches import empty_batch
from onefold.engine.logics.windows.block_log import of_start
from onefold.engine.logics.windows.sessions import sessions_accumulation
from onefold.engine.logics.windows.slicing import slices_accumulation
from onefold.engine.logics.windows.spans import is_of_keys, newest_of
from onefold.engine.logics.windows.window_logic import us_of
from onefold.engine.queries.undo import QueryableBackend, UndoBlocks, UndoRows, UndoTable
from onefold.engine.state.columns.keyed_rows import batch_of
from onefold.engine.state.expiring import alive
from onefold.engine.state.state_backend import TIMES, Key, Value
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import (
    WINDOW_END,
    WINDOW_START,
    Aggregating,
    Connecting,
    Processing,
    Reducing,
    Windowing,
)
from onefold.flow.processing.declaring import DeclaredKind, StateDeclaration
from onefold.flow.processing.rows import values_of
from onefold.flow.time.clocks import END
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.windows import Aligned, Sessions

_BYTES = pa.schema({"bytes": pa.binary()})
_BY_KEY = (DeclaredKind.VALUE, DeclaredKind.LIST, DeclaredKind.MAP, DeclaredKind.BYTES)
_Now = Callable[[bool], "int | None"]  # by when what a view no longer has has expired


class View(Protocol):
    def get(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        """The rows of these keys: the key's columns, and those of the state."""
        ...

    def some(self, count: int) -> pa.RecordBatch:
        """At most so many keys: of those that have something, or had when the last completed epoch was."""
        ...


def key_schema(graph: Graph, node: Node) -> pa.Schema:
    """The columns of the keys by which a node keeps state."""
    given, operator = graph.schema(node.inputs[0]), node.operator
    assert isinstance(operator, Aggregating | Reducing | Windowing | Processing | Connecting)
    return pa.schema([given.field(name) for name in operator.key])


def states_of(node: Node) -> list[str]:
    """The names of the states that can be asked for."""
    match node.operator:
        case Aggregating():
            return ["aggregates"]
        case Reducing():
            return ["reduced"]
        case Windowing(elements=elements):
            return ["windows"] if elements is None else []
        case Processing(states=states) | Connecting(states=states):
            return [each.name for each in states if each.kind in _BY_KEY]
        case _:
            return []


def views_of(graph: Graph, node: Node, backend: QueryableBackend) -> dict[str, View]:
    """Of one subtask, by the names of the states. `backend` has the node's tables."""
    key, given = key_schema(graph, node), graph.schema(node.inputs[0])
    match node.operator:
        case Aggregating(aggregates, ttl=ttl):
            rows = backend.tables["aggregates"]
            assert isinstance(rows, UndoRows)
            of = Accumulation(given, key.names, aggregates)
            return {"aggregates": _Aggregates(rows, key, of, _now_of(backend, ttl))}
        case Windowing(windows) as operator:
            blocks = backend.tables["slices" if isinstance(windows, Aligned) else "sessions"]
            assert isinstance(blocks, UndoBlocks)
            return {
                "windows": (_Windows if isinstance(windows, Aligned) else _Sessions)(operator, given, blocks, backend)
            }
        case Reducing(ttl=ttl):
            table, value = _table(backend, "reduced"), node.schema or key
            rest = [at for at, field in enumerate(value) if field.name not in key.names]
            return {"reduced": _Entries(table, key, pa.schema([]), value, _now_of(backend, ttl), rest)}
        case Processing(states=states) | Connecting(states=states):
            return {each.name: _declared(backend, each, key) for each in states if each.kind in _BY_KEY}
        case operator:
            raise AssertionError(operator)


def _declared(backend: QueryableBackend, of: StateDeclaration, key: pa.Schema) -> View:
    sub, value = of.key_schema or pa.schema([]), of.schema or _BYTES
    return _Entries(_table(backend, of.name), key, sub, value, _now_of(backend, of.ttl))


def _now_of(backend: QueryableBackend, ttl: Ttl | None) -> _Now:
    return (lambda _: None) if ttl is None or ttl.visible == "until_cleaned" else partial(backend.now_ms, ttl.clock)


def _table(backend: QueryableBackend, name: str) -> UndoTable:
    table = backend.tables[name]
    assert isinstance(table, UndoTable)
    return table


class _Entries:
    """A row for each value, of columns `at` of it; a list's in their order, a map's with its own key. A column that is
    called as one before it gets a dollar sign in front. Values may begin with a time, which is no column."""

    def __init__(
        self,
        table: UndoTable,
        key: pa.Schema,
        sub: pa.Schema,
        value: pa.Schema,
        now_ms: _Now,
        at: Sequence[int] | None = None,
    ) -> None:
        self._table, self._key, self._sub, self._width = table, key, sub, len(sub)
        self._now_ms, self._places = now_ms, len(value)
        at = range(len(value)) if at is None else at
        self._at = [place - len(value) for place in at]  # from the end
        fields = [*key]
        for field in (*sub, *(value.field(place) for place in at)):
            is_taken = any(field.name == other.name for other in fields)
            fields.append(field.with_name(f"${field.name}") if is_taken else field)
        self._schema = pa.schema(fields)

    def get(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        rows = [row for key in values_of(keys) for row in self._rows(key, is_committed)]
        columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def some(self, count: int) -> pa.RecordBatch:
        return batch_of(self._table.some(count), self._key)

    def _rows(self, key: Key, is_committed: bool) -> Iterator[Value]:
        now_ms = self._now_ms(is_committed)
        for sub, value in self._table.entries(key, is_committed):
            until_ms = value[0] if len(value) > self._places else None
            if now_ms is None or until_ms is None or until_ms > now_ms:
                yield *key, *(sub if self._width else ()), *(value[at] for at in self._at)


class _Aggregates:
    def __init__(self, rows: UndoRows, key: pa.Schema, accumulation: Accumulation, now_ms: _Now) -> None:
        self._rows, self._key, self._accumulation, self._now_ms = rows, key, accumulation, now_ms

    def get(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        kept = self._rows.kept(keys, is_committed)
        if TIMES in kept.schema.names:
            kept = alive(kept, self._now_ms(is_committed)).remove_column(len(self._key))
        return self._accumulation.results(kept)

    def some(self, count: int) -> pa.RecordBatch:
        return batch_of(self._rows.some(count), self._key)


class _Blocks:
    """Of windows that are not closed, by a scan of their rows."""

    def __init__(self, of: Windowing, given: pa.Schema, blocks: UndoBlocks, backend: QueryableBackend) -> None:
        self._of, self._table, self._backend, self._width = of, blocks, backend, len(of.key)
        self._time = pa.timestamp("us", getattr(given.field(of.on).type, "tz", None))
        made = sessions_accumulation if isinstance(of.windows, Sessions) else slices_accumulation
        self._accumulation = made(of, given, self._time)
        results = [*self._accumulation.result_schema]
        keys = [given.field(name) for name in of.key]
        ends = [pa.field(name, self._time) for name in (WINDOW_START, WINDOW_END)]
        self._out = pa.schema([*keys, *ends, *results[len(results) - len(of.aggregates) :]])

    def some(self, count: int) -> pa.RecordBatch:
        found = empty_batch(pa.schema([*self._out][: self._width]))
        for is_committed in (True, False):
            for block in self._table.blocks(is_committed):
                keys = block.select(range(self._width))
                found = pa.concat_batches([found, keys.cast(found.schema)])
                if self._width:
                    table = pa.Table.from_batches([found]).group_by(found.schema.names).aggregate([])
                    found = table.combine_chunks().to_batches()[0] if len(table) else found
                if len(found) >= count:
                    return found.slice(0, count)
        return found

    def _rows(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        blocks = [*self._table.blocks(is_committed)]
        near = [block.filter(is_of_keys(block, keys, self._width)) for block in blocks]
        found = pa.concat_batches([empty_batch(self._accumulation.state_schema), *near])
        if self._width > 1 and len(found):
            wanted = {*values_of(keys)}
            is_wanted = [key in wanted for key in values_of(found.select(range(self._width)))]
            found = found.filter(pa.array(is_wanted, pa.bool_()))
        return found

    def _closed_us(self, is_committed: bool) -> int:
        us = self._backend.moment(is_committed).watermark_us
        return -END if us is None else END if us == END else us - self._of.lateness_us


class _Windows(_Blocks):
    def get(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        rows, windows = self._rows(keys, is_committed), self._of.windows
        assert isinstance(windows, Aligned)
        slices, found = us_of(rows.column(self._width)), [empty_batch(self._out)]
        for end in windows.all_ends(map(int, np.unique(slices)), self._closed_us(is_committed), END):
            start = end - windows.size_us
            mine = rows.filter(pa.array((slices >= start) & (slices < end)))
            columns = self._accumulation.results(
                self._accumulation.merged(of_start([mine], start, self._width))
            ).columns
            columns.insert(self._width + 1, pa.array(us_of(columns[self._width]) + windows.size_us).view(self._time))
            found.append(pa.RecordBatch.from_arrays(columns, schema=self._out))
        return pa.concat_batches(found)


class _Sessions(_Blocks):
    """Its log has rows that others replaced: of those that touch, the last counts."""

    def get(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        rows = self._rows(keys, is_committed)
        newest = newest_of(rows, self._width)
        is_open = us_of(rows.column(self._width + 1))[newest] >= self._closed_us(is_committed)
        columns = self._accumulation.results(rows.take(pa.array(newest[is_open]))).columns
        return pa.RecordBatch.from_arrays(columns, schema=self._out)
