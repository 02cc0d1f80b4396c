"""State that expires. The value of each entry begins with the time from which it is gone, in milliseconds of the clock
that counts; None while that clock is not known.

All of an epoch goes by one time, so that an epoch that runs again sees the same. What has expired is removed by a walk
through the entries, some of them in each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.state.state_backend import (
    EXPIRY,
    TIMES,
    Folding,
    Key,
    RowTable,
    StateKind,
    StateSpec,
    StateTable,
    StateTables,
    TimedEntries,
    Value,
)
from onefold.flow.time.ttl import Ttl, TtlClock

WALKS = 4  # through all entries in the time that one lives

# Of a walk: the clock that it goes by, when it went on last, None where nothing is there; and its place.
Progress = tuple[TtlClock, int | None, Any]


class Expiry:
    """The states of one operator in one subtask that expire. Its snapshots say which they are, and how far the walks
    are: so a start that gives a state a time to live, or takes it away, knows what was written."""

    def __init__(self, uid: str, backend: StateTables) -> None:
        self._uid, self._backend = uid, backend
        self._lifetimes: dict[str, _Lifetimes] = {}
        self._kept = StateSpec(uid, EXPIRY, StateKind.CLOCKS)

    def table(self, spec: StateSpec, ttl: Ttl | None) -> StateTable:
        """The table of a state, which expires where `ttl` says so."""
        table, progress = self._backend.table(spec), self._earlier().get(spec.name)
        if ttl is not None:
            return _ExpiringTable(table, self._expiring(spec.name, table, ttl))
        if progress is not None:
            _bared(table, self._last_ms(spec.name))
        return table

    def rows(self, name: str, schema: pa.Schema, width: int, ttl: Ttl | None) -> RowTable:
        """As `StateTables.rows`."""
        progress = self._earlier().get(name)
        if ttl is None and progress is None:
            return self._backend.rows(self._uid, name, schema, width)
        timed = schema.insert(width, pa.field(TIMES, pa.int64()))
        rows = self._backend.rows(self._uid, name, timed, width)
        if ttl is not None:
            return _ExpiringRows(rows, self._expiring(name, rows.entries, ttl), width)
        if progress is not None:
            _bared(rows.entries, self._last_ms(name))
        rows.reopened(schema)
        return rows

    def restored(self) -> None:
        """The backend has other entries now, of other key groups."""
        earlier = self._earlier()
        for name, each in self._lifetimes.items():
            progress = earlier.get(name)
            if progress is not None and progress[0] != each.clock:
                _bared(each.entries, self._last_ms(name))
                progress = None
            each.restored(progress)

    def begin(self, now_ms: int, watermark_ms: int | None) -> None:
        for each in self._lifetimes.values():
            each.begin(watermark_ms if each.clock == "event" else now_ms)

    def sweep(self) -> None:
        for each in self._lifetimes.values():
            each.sweep()

    def due_ms(self) -> int | None:
        """When the next walk is due where nothing else happens. A watermark does not go on by itself."""
        due = (each.due_ms for each in self._lifetimes.values() if each.clock == "processing")
        return min((ms for ms in due if ms is not None), default=None)

    def _expiring(self, name: str, entries: TimedEntries, ttl: Ttl) -> _Lifetimes:
        made = self._lifetimes[name] = _Lifetimes(entries, ttl)
        self._backend.operator(self._kept, lambda: [(of, *each.progress) for of, each in self._lifetimes.items()])
        return made

    def _earlier(self) -> dict[str, Progress]:
        """Of several snapshots together: the walk begins anew, and where one did not know its clock, none is known."""
        found = dict[str, Progress]()
        for name, clock, swept_ms, place in chain.from_iterable(self._backend.earlier(self._kept)):
            if name in found:
                before_ms, place = found[name][1], None
                swept_ms = None if before_ms is None or swept_ms is None else min(before_ms, swept_ms)
            found[name] = clock, swept_ms, place
        return found

    def _last_ms(self, name: str) -> int | None:
        """When a walk of that state went on last, in any of these snapshots: some had nothing to walk through."""
        earlier = chain.from_iterable(self._backend.earlier(self._kept))
        return max((ms for of, _, ms, _ in earlier if of == name and ms is not None), default=None)


class _Lifetimes:
    """Of the entries of one state. `now_ms` is None while the clock is not known."""

    def __init__(self, entries: TimedEntries, ttl: Ttl) -> None:
        self.entries = entries
        self._ttl_ms, self._walk_ms = ttl.ms, max(1, ttl.ms // WALKS)
        self.is_shown, self.is_renewed = ttl.visible == "until_cleaned", ttl.update == "read_and_write"
        self.clock = ttl.clock
        self._swept_ms: int | None
        self._place: Any
        self.restored(None)
        self.now_ms: int | None = None
        self.until_ms: int | None = None  # of what is written now

    def restored(self, progress: Progress | None) -> None:
        """The entries are others now. Without `progress` they were written without a time."""
        self._is_bare = progress is None
        _, self._swept_ms, self._place = progress or (None, None, None)
        self._has_some = True  # since the walk began anew, as far as is known

    def begin(self, now_ms: int | None) -> None:
        """An epoch begins. What was written before the clock was known, or without a time, lives from now on."""
        self.now_ms, self.until_ms = now_ms, None if now_ms is None else now_ms + self._ttl_ms
        if self._is_bare or (self._swept_ms is None and now_ms is not None):
            is_bare, self._is_bare = self._is_bare, False
            for key, sub, value in _every(self.entries):
                self.wrote()
                if is_bare or value[0] is None:
                    self.entries.put_time(key, (self.until_ms, *(value if is_bare else value[1:])), sub)

    def wrote(self) -> None:
        self._has_some = True
        if self._swept_ms is None:
            self._swept_ms = self.now_ms

    def have(self, value: Value) -> bool:
        """Whether an entry of that value is still to be seen."""
        return self.is_shown or self._is_alive(value)

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are still to be seen."""
        return batch if self.is_shown else alive(batch, self.now_ms)

    def sweep(self) -> None:
        """Remove what has expired, of as many entries as the time since the last call has of a walk."""
        if self.now_ms is None or self._swept_ms is None:
            return
        share = (self.now_ms - self._swept_ms) / self._walk_ms
        if share < self.entries.share_min:
            return
        place = self._place if share < 1 else None
        self._has_some &= place is not None
        for walked, after in self.entries.walk(place, min(share, 1.0)):
            self._place = after
            expired = [(key, sub) for key, sub, value in walked if not self._is_alive(value)]
            for key, sub in expired:
                self.entries.delete(key, sub)
            self._has_some |= len(walked) > len(expired)
        self._swept_ms = self.now_ms if self._has_some or self._place is not None else None

    @property
    def progress(self) -> Progress:
        return self.clock, self._swept_ms, self._place

    @property
    def due_ms(self) -> int | None:
        return None if self._swept_ms is None else self._swept_ms + self._walk_ms

    def _is_alive(self, value: Value) -> bool:
        return value[0] is None or self.now_ms is None or value[0] > self.now_ms


class _ExpiringTable:
    """Implements StateTable."""

    def __init__(self, table: StateTable, lifetimes: _Lifetimes) -> None:
        self._table, self._lifetimes, self.share_min = table, lifetimes, table.share_min
        self.delete, self.last, self.clear, self.put_time = table.delete, table.last, table.clear, table.put_time

    def get(self, key: Key, sub: Key = ()) -> Value | None:
        return self._read(key, sub, self._table.get(key, sub))

    def put(self, key: Key, value: Value, sub: Key = ()) -> None:
        self._lifetimes.wrote()
        self._table.put(key, (self._lifetimes.until_ms, *value), sub)

    def items(self, key: Key) -> Iterator[tuple[Key, Value]]:
        found = ((sub, self._read(key, sub, value)) for sub, value in self._table.items(key))
        return iter([(sub, value) for sub, value in found if value is not None])

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        return [self._read(key, (), value) for key, value in zip(keys, self._table.get_many(keys), strict=True)]

    def put_many(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        self._lifetimes.wrote()
        until = (self._lifetimes.until_ms,)
        self._table.put_many(keys, [until + value for value in values])

    def scan(self) -> Iterator[tuple[Key, Key, Value]]:
        return self._seen(self._table.scan())

    def walk(self, place: Any, share: float) -> Iterator[tuple[list[tuple[Key, Key, Value]], Any]]:
        return (([*self._seen(walked)], after) for walked, after in self._table.walk(place, share))

    def _seen(self, entries: Iterable[tuple[Key, Key, Value]]) -> Iterator[tuple[Key, Key, Value]]:
        return ((key, sub, value[1:]) for key, sub, value in entries if self._lifetimes.have(value))

    def _read(self, key: Key, sub: Key, value: Value | None) -> Value | None:
        if value is None or not (of := self._lifetimes).have(value):
            return None
        if of.is_renewed and of.until_ms is not None and of.now_ms < value[0] < of.until_ms:
            self._table.put(key, (of.until_ms, *value[1:]), sub)
        return value[1:]


class _ExpiringRows:
    """Implements RowTable over one with the column TIMES."""

    def __init__(self, rows: RowTable, lifetimes: _Lifetimes, width: int) -> None:
        self._rows, self._lifetimes, self._width = rows, lifetimes, width
        self.entries, self.reopened = rows.entries, rows.reopened
        self.find, self.some = rows.find, rows.some  # also of those that have expired, with their times

    def fold(self, states: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
        self._lifetimes.wrote()
        timed = _timed(states, self._width, self._lifetimes)
        return self._rows.fold(timed, _Unexpired(folding, self._lifetimes)).remove_column(self._width)


class _Unexpired:
    """Implements Folding, of states that have a time: those that have expired are not merged."""

    def __init__(self, folding: Folding, lifetimes: _Lifetimes) -> None:
        self._folding, self._lifetimes = folding, lifetimes
        self.states, self.results = folding.states, folding.results

    def merged(self, states: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        at, of = states[0].schema.get_field_index(TIMES), self._lifetimes
        states = [of.seen(batch) for batch in states]
        return _timed(self._folding.merged([batch.remove_column(at) for batch in states]), at, of)


def alive(batch: pa.RecordBatch, now_ms: int | None) -> pa.RecordBatch:
    """The rows that have not expired by then."""
    if now_ms is None:
        return batch
    return batch.filter(pc.fill_null(pc.greater(batch.column(TIMES), now_ms), True))


def _timed(batch: pa.RecordBatch, at: int, lifetimes: _Lifetimes) -> pa.RecordBatch:
    return batch.add_column(at, TIMES, pa.repeat(pa.scalar(lifetimes.until_ms, pa.int64()), len(batch)))


def _every(entries: TimedEntries) -> Iterator[tuple[Key, Key, Value]]:
    """All of them, which may be changed meanwhile."""
    place: Any = None
    while True:
        for walked, after in entries.walk(place, 1.0):
            place = after
            yield from walked
        if place is None:
            return


def _bared(entries: TimedEntries, now_ms: int | None) -> None:
    """Take the times away, and what had expired by then."""
    for key, sub, (until_ms, *value) in _every(entries):
        if until_ms is None or now_ms is None or until_ms > now_ms:
            entries.put_time(key, tuple(value), sub)
        else:
            entries.delete(key, sub)
