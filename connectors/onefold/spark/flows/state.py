"""Keeps the state of operators in Spark's state store: of each key group a map, from keys to their entries, or of
blocks.

Spark gives a processor the state of one group, the key of its `groupBy`, at a time. What is read of it is kept until
the group's turn ends, when what has changed is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from onefold.core.checks import present, require
from onefold.engine.state.codec import decode, encode
from onefold.engine.state.columns.block_codec import conformed, from_stream, to_stream
from onefold.engine.state.columns.keyed_rows import KeyedRows
from onefold.engine.state.sharded_tables import by_sub
from onefold.engine.state.state_backend import BlockId, Key, StateKind, StateSpec, Value
from onefold.spark.flows.buckets import Buckets

LISTS = "$lists"  # the one table that has all lists of an operator

_IDS = (encode("ids"),)


class SparkTable:
    """Implements StateTable for the group whose turn it is: from each key to all its entries, by their subs."""

    share_min = 1.0

    def __init__(self, state: MapState) -> None:
        self._state, self._buckets = state, Buckets(state)
        self._found: dict[Key, dict[Key, Value]] = {}
        self._changed: set[Key] = set()
        self._has_group = False

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        return self._entries(key).get(sub)

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        self._entries(key)[sub] = value
        self._changed.add(key)

    put_time = put

    def delete(self, key: Key, sub: Key = ()) -> None:
        if self._entries(key).pop(sub, None) is not None:
            self._changed.add(key)

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        return iter(by_sub(self._entries(key).items()))

    def last(self, key: Key) -> Key | None:
        return next(reversed(self._entries(key)), None)

    def clear(self, key: Key) -> None:
        if self._entries(key):
            self._found[key] = {}
            self._changed.add(key)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        return [self.get(key) for key in keys]

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._found[key] = {(): value}
        self._changed.update(keys)

    def scan(self) -> Iterator[tuple[Key, Key, Value]]:
        for packed, content in self._buckets.items() if self._has_group else ():
            if (key := decode(packed)) not in self._found:
                self._found[key] = decode(content)
        return ((key, sub, value) for key, entries in self._found.items() for sub, value in entries.items())

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Key, Key, Value]], Any]]:
        del place, share
        yield [*self.scan()], None

    def begin(self) -> None:
        """It is the turn of another group."""
        self._found, self._changed, self._has_group = {}, set(), True
        self._buckets.begin()

    def store(self) -> None:
        """Write what has changed."""
        for key in self._changed:
            if entries := self._found[key]:
                self._buckets.put(encode(key), encode(entries))
            else:
                self._buckets.delete(encode(key))
        self._buckets.store()

    def _entries(self, key: Key) -> dict[Key, Value]:
        if key not in self._found:
            found = self._buckets.get(encode(key))
            self._found[key] = {} if found is None else decode(found)
        return self._found[key]


class SparkBlocks:
    """Implements BlockTable for the group whose turn it is: a map with an entry for each block, and one that lists
    them."""

    def __init__(self, state: MapState, schema: pa.Schema) -> None:
        self._state, self._schema = state, schema
        self._listed: list[BlockId] | None = []  # no group has its turn yet
        self._changes: dict[BlockId, pa.RecordBatch | None] = {}

    def ids(self) -> list[BlockId]:
        there = dict.fromkeys(self._ids(), True) | {at: block is not None for at, block in self._changes.items()}
        return sorted(at for at, is_there in there.items() if is_there)

    def get(self, at: BlockId) -> pa.RecordBatch:
        if at in self._changes:
            return present(self._changes[at], "a block that is there")
        (data,) = present(self._state.getValue((encode(at),)), "a block that is there")
        return conformed([from_stream(data)], self._schema)

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        require(block.num_rows > 0, "a block has rows")
        self._changes[at] = block

    def delete(self, at: BlockId) -> None:
        self._changes[at] = None

    def begin(self) -> None:
        """It is the turn of another group."""
        self._listed, self._changes = None, {}

    def store(self) -> None:
        """Write what has changed."""
        before, ids = self._ids() if self._changes else [], self.ids() if self._changes else []
        for at, block in self._changes.items():
            if block is not None:
                self._state.updateValue((encode(at),), (to_stream(block).to_pybytes(),))
            elif at in before:
                self._state.removeKey((encode(at),))
        if ids != before:
            if ids:
                self._state.updateValue(_IDS, (encode(ids),))
            else:
                self._state.removeKey(_IDS)

    def _ids(self) -> list[BlockId]:
        if self._listed is None:
            found = self._state.getValue(_IDS)
            self._listed = [] if found is None else decode(found[0])
        return self._listed


class SparkTables:
    """Implements StateTables: keyed states, and lists that all subtasks have alike, of which each group has its own. A
    flow with others is refused when it starts."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._tables: dict[StateSpec, SparkTable | SparkBlocks] = {}
        self._lists: dict[StateSpec, Callable[[], Sequence[Value]]] = {}
        self._has_group = False

    def table(self, spec: StateSpec) -> SparkTable:
        if spec not in self._tables:
            self._tables[spec] = SparkTable(self._map(spec))
        table = self._tables[spec]
        assert isinstance(table, SparkTable)
        return table

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> SparkBlocks:
        del width  # which key groups they are of, Spark knows
        spec = StateSpec(uid, name, StateKind.BLOCKS)
        table = self._tables[spec] = SparkBlocks(self._map(spec), schema)
        return table

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> KeyedRows:
        return KeyedRows(self.table(StateSpec(uid, name, StateKind.VALUE)), schema, width)

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        if not _is_of_snapshots(spec):
            self._lists[spec] = content
            self.table(_of_lists(spec))

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        is_there = self._has_group and not _is_of_snapshots(spec)
        found = self.table(_of_lists(spec)).get((), (spec.name,)) if is_there else None
        return [] if found is None else [[*found]]

    def load(self, name: str, key: bytes, entries: bytes) -> StateSpec:
        """Have the group that is called begin with one of Spark's entries, of the state of that name."""
        spec = next((spec for spec in self._tables if name_of_state(spec) == name), None)
        found = present(spec, f"an operator asks for the state {name!r}")
        self._tables[found]._state.updateValue((key,), (entries,))
        return found

    def begin(self) -> None:
        """It is the turn of another group."""
        self._has_group = True
        for table in self._tables.values():
            table.begin()

    def store(self) -> None:
        """The group's turn ends: write what has changed."""
        for spec, content in self._lists.items():
            if self.earlier(spec) != [list(now := content())]:
                self.table(_of_lists(spec)).put((), tuple(now), (spec.name,))
        for table in self._tables.values():
            table.store()

    def _map(self, spec: StateSpec) -> MapState:
        return self._handle.getMapState(name_of_state(spec), "key binary", "entries binary")


def name_of_state(spec: StateSpec) -> str:
    """What Spark calls a state."""
    return f"{spec.uid}/{spec.kind.value}/{spec.name}"


def _is_of_snapshots(spec: StateSpec) -> bool:
    """Whether it is a mark that only snapshots need."""
    is_kept = spec.kind is StateKind.CLOCKS
    require(is_kept or spec.name.startswith("$"), f"{spec.name} of {spec.uid} is not keyed")
    return not is_kept


def _of_lists(spec: StateSpec) -> StateSpec:
    """The one table that has all lists of an operator."""
    return StateSpec(spec.uid, LISTS, StateKind.CLOCKS)
