"""State as the last completed epoch left it, while later epochs change it.

Each table keeps a layer for each epoch that is not completed: the old value of each key that the epoch has changed, at
its first change. The oldest layer that has a key tells, else the table. So the memory that it takes follows the changes
of two or three epochs. Layers are sealed where the state is frozen, and dropped once the driver says that the epoch is
complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from onefold.engine.logics.windows.spans import is_of_keys
from onefold.engine.state.columns.keyed_rows import batch_of
from onefold.engine.state.sharded_tables import by_sub
from onefold.engine.state.state_backend import (
    BlockId,
    BlockTable,
    Folding,
    Frozen,
    Key,
    RowTable,
    StateBackend,
    StateKind,
    StateSpec,
    StateTable,
    Value,
)
from onefold.flow.processing.rows import values_of
from onefold.flow.time.ttl import TtlClock

_BY_KEY = (StateKind.VALUE, StateKind.LIST, StateKind.MAP)
_BLOCKS = ("slices", "sessions")  # what windows answer from


@dataclass(frozen=True, slots=True)
class StateMoment:
    """An epoch, its time T in ms since 1970, and the operator's watermark at its end in microseconds; None where that
    is not known."""

    epoch: int
    timestamp_ms: int
    watermark_us: int | None = None


class UndoTable:
    """Implements StateTable. A layer has old values by key and sub; None says that there was none."""

    def __init__(self, table: StateTable, layers: int) -> None:
        self._table = table
        self.layers: list[dict[Key, dict[Key, Value | None]]] = [{} for _ in range(layers)]
        self.get, self.items, self.last = table.get, table.items, table.last
        self.get_many, self.scan, self.walk = table.get_many, table.scan, table.walk
        self.put_time = table.put_time  # an entry that has not expired, which it is in every layer

    @property
    def share_min(self) -> float:
        return self._table.share_min

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        self._note(key, sub)
        self._table.put(key, value, sub)

    def delete(self, key: Key, sub: Key = ()) -> None:
        self._note(key, sub)
        self._table.delete(key, sub)

    def clear(self, key: Key) -> None:
        for sub, _ in self._table.items(key):
            self._note(key, sub)
        self._table.clear(key)

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        layer = self.layers[-1]
        new = [key for key in keys if key not in layer]
        layer.update(zip(new, ({(): value} for value in self._table.get_many(new)), strict=True))
        self._table.put_many(keys, values)

    def entries(self, key: Key, is_committed: bool) -> list[tuple[Key, Value]]:
        """Of one key, in the order of `items`."""
        found: dict[Key, Value | None] = dict(self._table.items(key))
        for layer in reversed(self.layers if is_committed else ()):
            found.update(layer.get(key, {}))
        return by_sub((sub, value) for sub, value in found.items() if value is not None)

    def some(self, count: int) -> list[Key]:
        """So many keys that have entries, or had when the oldest layer began."""
        there = chain((key for key, _, _ in self._table.scan()), *self.layers)
        return _distinct(there, count)

    def _note(self, key: Key, sub: Key) -> None:
        old = self.layers[-1].setdefault(key, {})
        if sub not in old:
            old[sub] = self._table.get(key, sub)


class UndoBlocks:
    """Implements BlockTable. A layer has old blocks; None says that there was none."""

    def __init__(self, table: BlockTable, layers: int) -> None:
        self._table, self._there = table, set(table.ids())
        self.layers: list[dict[BlockId, pa.RecordBatch | None]] = [{} for _ in range(layers)]
        self.ids, self.get = table.ids, table.get

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        self._note(at)
        self._table.put(at, block)
        self._there.add(at)

    def delete(self, at: BlockId) -> None:
        self._note(at)
        self._table.delete(at)
        self._there.remove(at)

    def blocks(self, is_committed: bool) -> Iterator[pa.RecordBatch]:
        """In the order in which they were put."""
        old: dict[BlockId, pa.RecordBatch | None] = {}
        for layer in reversed(self.layers if is_committed else ()):
            old.update(layer)
        there = (self._there - old.keys()) | {at for at, block in old.items() if block is not None}
        for at in sorted(there, key=lambda at: (at[1], at[0])):
            yield old.get(at) or self._table.get(at)

    def _note(self, at: BlockId) -> None:
        if at not in self.layers[-1]:
            self.layers[-1][at] = self._table.get(at) if at in self._there else None


class UndoRows:
    """Implements RowTable, and the TimedEntries of it. A layer has, for each fold and each part of a walk, the keys
    that it has changed, and what was kept of them."""

    def __init__(self, rows: RowTable, key: pa.Schema, layers: int) -> None:
        self._rows, self._key, self._width = rows, key, len(key)
        self.layers: list[list[tuple[pa.RecordBatch, pa.RecordBatch]]] = [[] for _ in range(layers)]
        self._gone: list[Any] = []  # keys that the walk deletes
        self.entries, self.find, self.reopened = self, rows.find, rows.reopened

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        self._note(states.select(range(self._width)))
        return self._rows.fold(states, folding)

    @property
    def share_min(self) -> float:
        return self._rows.entries.share_min

    def put_time(self, key: Key, value: Value, sub: Key = ()) -> None:
        self._rows.entries.put_time(key, value, sub)

    def delete(self, key: Key, sub: Key = ()) -> None:
        """In a walk."""
        del sub
        self._gone.append(key)

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Key, Key, Value]], Any]]:
        for walked in self._rows.entries.walk(place, share):
            yield walked
            if self._gone:
                self._note(batch_of([key if isinstance(key, tuple) else (key,) for key in self._gone], self._key))
            for key in self._gone:
                self._rows.entries.delete(key)
            self._gone = []

    def some(self, count: int) -> list[Key]:
        """As of UndoTable."""
        before = (values_of(old.select(range(self._width))) for _, old in chain(*self.layers))
        return _distinct(chain(values_of(self._rows.some(count)), *before), count)

    def kept(self, keys: pa.RecordBatch, is_committed: bool) -> pa.RecordBatch:
        """The states of these keys, of those that have one."""
        now = self._rows.find(keys)
        found = _by_key(now, self._width)
        for changed, old in reversed([*chain(*self.layers)] if is_committed else []):
            touched = _by_key(self._near(changed, keys), self._width)
            before = _by_key(self._near(old, keys), self._width)
            found = {key: before.get(key) if key in touched else row for key, row in (found | before).items()}
        wanted = [row for key in values_of(keys) if (row := found.get(key)) is not None]
        return pa.concat_batches(wanted) if wanted else now.slice(0, 0)

    def _note(self, keys: pa.RecordBatch) -> None:
        self.layers[-1].append((keys, self._rows.find(keys)))

    def _near(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(is_of_keys(rows, keys, self._width))


class QueryableBackend:
    """Implements StateBackend, by another one. `tables` are those that can be asked, by their names. `restored` is the
    epoch whose state that backend restores."""

    def __init__(self, backend: StateBackend, restored: StateMoment) -> None:
        self._backend = backend
        self._frozen: deque[StateMoment] = deque()  # the epochs that are not completed, the oldest first
        self._committed = restored
        self._watermark_us: Callable[[], int | None] = lambda: None
        self._running_ms: Callable[[], int] = lambda: 0
        self.tables: dict[str, UndoTable | UndoBlocks | UndoRows] = {}
        self.restore, self.operator, self.earlier = backend.restore, backend.operator, backend.earlier
        self.size, self.close = backend.size, backend.close

    def table(self, spec: StateSpec) -> StateTable:
        table = self._backend.table(spec)
        if spec.kind not in _BY_KEY:
            return table
        known = self.tables.get(spec.name)
        if not isinstance(known, UndoTable):
            known = self.tables[spec.name] = UndoTable(table, len(self._frozen) + 1)
        return known

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        table = self._backend.blocks(uid, name, schema, width)
        if name not in _BLOCKS:
            return table
        found = self.tables[name] = UndoBlocks(table, len(self._frozen) + 1)
        return found

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> RowTable:
        key = pa.schema([*schema][:width])
        found = UndoRows(self._backend.rows(uid, name, schema, width), key, len(self._frozen) + 1)
        self.tables[name] = found
        return found

    def freeze(self, epoch: int) -> Frozen:
        frozen = self._backend.freeze(epoch)
        self._frozen.append(StateMoment(epoch, 0, self._watermark_us()))
        for table in self.tables.values():
            layers: list[Any] = table.layers
            layers.append(type(layers[-1])())
        return frozen

    def begin(self, watermark_us: Callable[[], int | None], running_ms: Callable[[], int]) -> None:
        """Before the first epoch: the operator's clock is restored, too. These ask it, and for the time of the epoch
        that runs. What was changed so far, as times taken away, was so in what is restored."""
        self._watermark_us, self._running_ms = watermark_us, running_ms
        self._committed = replace(self._committed, watermark_us=watermark_us())
        for table in self.tables.values():
            table.layers[-1].clear()

    def completed(self, epoch: int, timestamp_ms: int) -> None:
        """This epoch is complete, in all sinks."""
        while self._frozen and self._frozen[0].epoch <= epoch:
            done = self._frozen.popleft()
            self._committed = replace(done, timestamp_ms=timestamp_ms)
            for table in self.tables.values():
                del table.layers[0]

    def moment(self, is_committed: bool) -> StateMoment:
        """The last completed epoch; or the last frozen one, beside which the state has a part of the next."""
        if is_committed:
            return self._committed
        return replace(self._frozen[-1] if self._frozen else self._committed, watermark_us=self._watermark_us())

    def now_ms(self, clock: TtlClock, is_committed: bool) -> int | None:
        """By when what is in that view has expired; None where that is not known."""
        at = self.moment(is_committed)
        if clock == "event":
            return None if at.watermark_us is None else at.watermark_us // 1_000
        return at.timestamp_ms if is_committed else max(self._running_ms(), self._committed.timestamp_ms)


def _by_key(rows: pa.RecordBatch, width: int) -> dict[Key, pa.RecordBatch]:
    """Each row, by its key."""
    return {key: rows.slice(at, 1) for at, key in enumerate(values_of(rows.select(range(width))))}


def _distinct(keys: Iterable[Key], count: int) -> list[Key]:
    found: dict[Key, None] = {}
    for key in keys:
        found[key] = None
        if len(found) >= count:
            break
    return [*found]
