"""Windows of a key whose rows are kept one by one: what is remembered of each, and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import pyarrow as pa

from onefold.engine.state.codec import decode, encode
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, StateTables, Value
from onefold.flow.time.clocks import END
from onefold.flow.time.triggers import WindowBounds, WindowState

WINDOWS, ROWS, KEY_STATE = "windows", "rows", "key state"
Row = tuple[Any, ...]  # its columns, and its time in microseconds
Entry = tuple[int, int, int, bytes, Key]  # when something is due, and the window: end, start and key


class Agenda:
    """Windows by the times at which something is due of them: at one time by their end and start, then by their keys.
    Some of it may be past."""

    def __init__(self, entries: list[Entry]) -> None:
        self._heap, self._later, self._at = entries, list[Entry](), -END
        heapify(self._heap)

    def add(self, at: int, window: OpenWindow) -> None:
        entry = (at, window.window.end_us, window.window.start_us, window.packed, window.key)
        if at > self._at:
            heappush(self._heap, entry)
        else:
            self._later.append(entry)

    def due(self, before: int) -> Iterator[Entry]:
        """What is due before that time. What is added meanwhile for the time of an entry or an earlier one stays."""
        while self._heap and self._heap[0][0] < before:
            entry = heappop(self._heap)
            self._at = entry[0]
            yield entry
        self._at = -END
        for entry in self._later:
            heappush(self._heap, entry)
        self._later = []

    @property
    def next(self) -> int | None:
        return self._heap[0][0] if self._heap else None


@dataclass(slots=True, eq=False)
class OpenWindow:
    """Implements WindowContext. `chunks` are the numbers of its rows that are stored, `fresh` are the others; `rows`
    are all of them, once they were asked for. `out` are the results that are not taken back."""

    key: Key
    packed: bytes  # the key
    window: WindowBounds
    contents: Contents
    emissions: int = 0
    new_rows: int = 0
    chunks: list[int] = field(default_factory=list)
    state: WindowState = field(default_factory=lambda: WindowState({}))
    event_us: set[int] = field(default_factory=set)
    processing_ms: set[int] = field(default_factory=set)
    out: list[Row] = field(default_factory=list)
    fresh: list[Row] = field(default_factory=list)
    rows: list[Row] | None = None
    stored: Value | None = None
    time_us: int = 0
    watermark_us: int = -END
    now_ms: int = 0
    has_ended: bool = False

    @property
    def key_state(self) -> dict[str, Any]:
        return self.contents.key_state(self.key)

    def on_event_time(self, time_us: int) -> None:
        is_past_all = self.watermark_us == END == self.window.end_us != time_us  # where a trigger would go on for ever
        if time_us not in self.event_us and not is_past_all:
            self.event_us.add(time_us)
            self.contents.event.add(time_us, self)

    def on_processing_time(self, time_ms: int) -> None:
        if time_ms not in self.processing_ms:
            self.processing_ms.add(time_ms)
            self.contents.processing.add(time_ms, self)

    def as_value(self) -> Value:
        rest = encode((self.state.values, self.out)) if self.state.values or self.out else None
        timers = sorted(self.event_us), sorted(self.processing_ms)
        return self.emissions, self.new_rows, [*self.chunks], *timers, rest

    def restore(self, value: Value) -> None:
        self.stored = value
        self.emissions, self.new_rows, chunks, event_us, processing_ms, rest = value
        self.chunks, self.event_us, self.processing_ms = [*chunks], {*event_us}, {*processing_ms}
        if rest is not None:
            self.state.values, self.out = decode(rest)

    def take_in(self, other: OpenWindow) -> None:
        """What is remembered of a session that begins later. The timers of its end are gone."""
        self.emissions += other.emissions
        self.new_rows += other.new_rows
        self.chunks = sorted([*self.chunks, *other.chunks])
        self.fresh += other.fresh
        self.out += other.out
        self.state.merge(other.state)
        for time_us in other.event_us - {other.window.end_us}:
            self.on_event_time(time_us)
        for time_ms in other.processing_ms:
            self.on_processing_time(time_ms)


class Contents:
    """The windows of one operator by their keys. What an epoch looks at is held until `save`."""

    def __init__(self, uid: str, backend: StateTables) -> None:
        self._windows = backend.table(StateSpec(uid, WINDOWS, StateKind.MAP))
        self._rows = backend.table(StateSpec(uid, ROWS, StateKind.MAP))
        self._states = backend.table(StateSpec(uid, KEY_STATE, StateKind.VALUE))
        self.restored()

    def restored(self) -> None:
        """The tables have other entries now."""
        self._held: dict[Key, dict[WindowBounds, OpenWindow]] = {}
        self._packed: dict[Key, bytes] = {}
        self._key_states: dict[Key, dict[str, Any]] = {}
        self.fresh = 0  # rows that are not stored
        self.event, self.processing, self.closing = Agenda([]), Agenda([]), Agenda([])
        for key, bounds, value in [*self._windows.scan()]:
            window = self._made(key, WindowBounds(*bounds), value)
            for time_us in window.event_us:
                self.event.add(time_us, window)
            for time_ms in window.processing_ms:
                self.processing.add(time_ms, window)
            self.closing.add(window.window.end_us, window)

    def of_key(self, key: Key) -> dict[WindowBounds, OpenWindow]:
        if key not in self._held:
            found = ((WindowBounds(*bounds), value) for bounds, value in self._windows.items(key))
            self._held[key] = {bounds: self._made(key, bounds, value) for bounds, value in found}
        return self._held[key]

    def due(self, agenda: Agenda, before: int) -> Iterator[tuple[int, OpenWindow]]:
        """What is due before that time of windows that are there."""
        for at, end_us, start_us, _, key in agenda.due(before):
            if (window := self.of_key(key).get(WindowBounds(start_us, end_us))) is not None:
                yield at, window

    def open(self, key: Key, bounds: WindowBounds) -> OpenWindow:
        made = self.of_key(key)[bounds] = self._made(key, bounds)
        self.closing.add(bounds.end_us, made)
        return made

    def leave(self, window: OpenWindow) -> None:
        """The window is no more; its rows may be another's."""
        del self._held[window.key][window.window]
        if window.stored is not None:
            self._windows.delete(window.key, tuple(window.window))

    def add(self, window: OpenWindow, row: Row) -> None:
        window.fresh.append(row)
        window.new_rows += 1
        self.fresh += 1
        if window.rows is not None:
            window.rows.append(row)

    def rows(self, window: OpenWindow) -> list[Row]:
        """All, in the order in which they came."""
        if window.rows is None:
            stored = (self._rows.get(window.key, (chunk,)) or () for chunk in window.chunks)
            window.rows = [*(row for columns in stored for row in zip(*columns, strict=True)), *window.fresh]
        return window.rows

    def replace(self, window: OpenWindow, rows: list[Row]) -> None:
        """It has these rows now."""
        for chunk in window.chunks:
            self._rows.delete(window.key, (chunk,))
        window.chunks, window.rows, window.fresh = [], rows, [*rows]

    def key_state(self, key: Key) -> dict[str, Any]:
        if key not in self._key_states:
            found = self._states.get(key)
            self._key_states[key] = {} if found is None else decode(found[0])
        return self._key_states[key]

    def save(self) -> None:
        for key, windows in self._held.items():
            number = max((chunk for window in windows.values() for chunk in window.chunks), default=-1)
            for window in windows.values():
                if window.fresh:
                    number += 1
                    self._rows.put(key, tuple(map(list, zip(*window.fresh, strict=True))), (number,))
                    window.chunks.append(number)
                if (value := window.as_value()) != window.stored:
                    self._windows.put(key, value, tuple(window.window))
        for key, values in self._key_states.items():
            if values:
                self._states.put(key, (encode(values),))
            else:
                self._states.delete(key)
        self._held, self._packed, self._key_states, self.fresh = {}, {}, {}, 0

    def _made(self, key: Key, bounds: WindowBounds, value: Value | None = None) -> OpenWindow:
        if key not in self._packed:
            self._packed[key] = encode(key)
        window = OpenWindow(key, self._packed[key], bounds, self)
        if value is not None:
            window.restore(value)
        return window


def stored_columns(given: pa.Schema) -> dict[str, tuple[pa.Schema, pa.Schema]]:
    """The columns of the states of rows of a schema, by their names: of an entry's key behind the operator's, and of
    its value."""
    bounds = pa.schema({"start_us": pa.int64(), "end_us": pa.int64()})
    numbers, lists = ("emissions", "new_rows"), ("chunks", "event_us", "processing_ms")
    kept = {**dict.fromkeys(numbers, pa.int64()), **dict.fromkeys(lists, pa.list_(pa.int64())), "state": pa.binary()}
    rows = {**{field.name: pa.list_(field.type) for field in given}, "$at": pa.list_(pa.int64())}
    return {
        WINDOWS: (bounds, pa.schema(kept)),
        ROWS: (pa.schema({"chunk": pa.int64()}), pa.schema(rows)),
        KEY_STATE: (pa.schema([]), pa.schema({"state": pa.binary()})),
    }
