"""The memory backend: dicts, and a change log for each epoch.

Every change is also noted; `freeze` takes the notes away and begins new ones, whatever the size of the state, and the
snapshot is a log of them. So that a restore need not read all logs there ever were, a *pass* copies the tables while
the flow goes on: each `freeze` of it copies some shards, at most `copies_max` entries, and stores them as bases beside
its log. Once a pass has been through all shards, its files alone make the state: logs and bases hold absolute values,
so putting them in order ends with the newest value of each key, whenever its shard was copied. A pass begins when the
logs since the last one have twice as many entries as the state: so an epoch costs its changes and half as much again.

Small logs are merged as they are, eight into one, so that a snapshot names few files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onefold.core.checks import require
from onefold.core.failpoints import failpoint
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.backend import Frozen, StateSpec, StateTable, Value
from onefold.engine.state.columns import Entries, from_ipc, to_ipc
from onefold.engine.state.snapshot import (
    BASE,
    LOG,
    OPERATOR,
    Draft,
    Footer,
    Piece,
    copied,
    footers_for,
    new_name,
    read_footer,
    read_part,
    write_snapshot,
)
from onefold.engine.state.storage import Storage
from onefold.engine.state.tables import SHARDS, FlatTable, NestedTable, table_for

__all__ = ["COPIES_MAX", "MemoryBackend"]

COPIES_MAX = 100_000  # entries, in some 5 ms
LOGGED_MIN = 1_000
MERGED = 8
ROWS_MAX = 1 << 17  # of one part: what is in memory twice while it is written or read

Table = FlatTable | NestedTable


class MemoryBackend:
    """Implements StateBackend. One at a time in a subtask; `generation` is the pipeline's."""

    name = "memory"

    def __init__(
        self,
        storage: Storage,
        generation: int,
        max_parallelism: int = MAX_PARALLELISM,
        *,
        copies_max: int = COPIES_MAX,
        logged_min: int = LOGGED_MIN,
    ) -> None:
        self._storage = storage
        self._generation = generation
        self._max_parallelism = max_parallelism
        self._copies_max = copies_max
        self._logged_min = logged_min
        self._groups = range(max_parallelism)
        self._tables: dict[StateSpec, Table] = {}
        self._operators: dict[StateSpec, Callable[[], Sequence[Value]]] = {}
        self._earlier: dict[StateSpec, list[list[Value]]] = {}
        self._pass: deque[tuple[StateSpec, int]] = deque()
        self._logged = 0  # entries of logs since the last pass began
        self._frozen: deque[_Frozen] = deque()  # not stored yet, the oldest first
        self._chain = _Chain()
        self._storing = threading.Lock()

    def table(self, spec: StateSpec) -> StateTable:
        if spec not in self._tables:
            self._tables[spec] = table_for(spec)
        return self._tables[spec]

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        self._operators[spec] = content

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        return self._earlier.get(spec, [])

    def freeze(self, epoch: int) -> Frozen:
        changes = [(spec, table, table.take()) for spec, table in self._tables.items() if table.changes]
        self._logged += sum(len(taken) for _, _, taken in changes)
        begins = not self._pass and self._logged > max(self._logged_min, 2 * sum(map(len, self._tables.values())))
        if begins:
            self._pass.extend((spec, shard) for spec in self._tables for shard in range(SHARDS))
            self._logged = 0
        was_passing = bool(self._pass)
        copies = list(self._copy_some())
        lists = [(spec, list(content())) for spec, content in self._operators.items()]
        frozen = _Frozen(self, epoch, changes, copies, lists, was_passing, begins, was_passing and not self._pass)
        self._frozen.append(frozen)
        return frozen

    def restore(self, handles: Sequence[str], key_groups: Collection[int]) -> None:
        require(not self._tables and not self._frozen, "restore comes before any table is used")
        self._groups = range(min(key_groups), max(key_groups) + 1)
        found = footers_for(self._storage, handles, self._groups, self.name, self._max_parallelism)
        for footer, own in found:
            for part in (part for part in footer.parts if part.what == OPERATOR):
                entries = from_ipc(read_part(self._storage, own.name, part), None, self._max_parallelism)
                self._earlier.setdefault(part.spec, []).append([v for v in entries.values if v is not None])
            pieces = (piece.narrowed(footer.first, footer.end) for piece in (*footer.pieces, own))
            mine = [piece.narrowed(self._groups.start, self._groups.stop) for piece in pieces]
            self._chain.pieces += [piece for piece in mine if piece.first < piece.end]
        for piece in self._chain.pieces:
            self._load(piece)
        for table in self._tables.values():
            table.loaded()

    def close(self) -> None:
        self._tables.clear()

    def _copy_some(self) -> Iterator[tuple[StateSpec, Table, dict[Any, Any]]]:
        left = self._copies_max
        while self._pass and left > 0:
            spec, shard = self._pass.popleft()
            table = self._tables[spec]
            copy = table.copy(shard)
            left -= max(1, len(copy) * table.copy_cost)
            if copy:
                yield spec, table, copy

    def _load(self, piece: Piece) -> None:
        footer, _ = read_footer(self._storage, piece.name, piece.crc)
        is_whole = footer.first >= piece.first and footer.end <= piece.end
        groups = None if is_whole else range(piece.first, piece.end)
        for part in footer.parts:
            if part.what == OPERATOR:
                continue
            entries = from_ipc(read_part(self._storage, piece.name, part), groups, self._max_parallelism)
            self.table(part.spec)
            self._tables[part.spec].load(entries)
            self._logged += len(entries.keys) if part.what == LOG else 0

    def _store_up_to(self, last: _Frozen) -> str:
        with self._storing:
            while not last.handle:
                first = self._frozen[0]
                first.handle = self._store(first)
                first.empty()
                self._frozen.popleft()
            return last.handle

    def _store(self, frozen: _Frozen) -> str:
        merged, level = ([], 0) if frozen.passing else self._chain.mergeable()
        kept = self._chain.pieces[: len(self._chain.pieces) - len(merged)]
        begins_at = len(kept) if frozen.begins else self._chain.pass_at
        if frozen.ends:
            kept, begins_at = kept[begins_at:], 0
        name = new_name(self._generation, frozen.epoch)
        footer = Footer(
            self.name, frozen.epoch, self._groups.start, self._groups.stop, self._max_parallelism, tuple(kept)
        )
        failpoint("before:StoreState")
        piece = write_snapshot(self._storage, name, footer, self._drafts(frozen, merged))
        failpoint("after:StoreState")
        self._chain.pieces = [*kept, piece]
        self._chain.pass_at = begins_at
        if not frozen.passing:  # what a pass wrote is neither merged nor written again
            self._chain.levels[name] = level
        return name

    def _drafts(self, frozen: _Frozen, merged: Sequence[Piece]) -> Iterator[Draft]:
        for piece in merged:
            yield from copied(self._storage, piece)
        for spec, table, changes in frozen.changes:
            yield from _parts(spec, LOG, table.changed(changes))
        for spec, table, copies in _joined(frozen.copies):
            entries = [table.copied(copy) for copy in copies]
            yield from _parts(spec, BASE, _concat(entries))
        for spec, items in frozen.lists:
            yield from _parts(spec, OPERATOR, Entries([(n,) for n in range(len(items))], [()] * len(items), items))


@dataclass(slots=True)
class _Chain:
    """The files that the next snapshot begins with, and those among them that may be merged, by how often they were."""

    pieces: list[Piece] = field(default_factory=list)
    pass_at: int = 0  # where the files of the running pass begin
    levels: dict[str, int] = field(default_factory=dict)

    def mergeable(self) -> tuple[list[Piece], int]:
        """The last files, if the next one is to take them in, and the level that it then has."""
        level, at = 0, len(self.pieces)
        while at >= MERGED - 1 and all(self._level(piece) == level for piece in self.pieces[at - MERGED + 1 : at]):
            level, at = level + 1, at - MERGED + 1
        return self.pieces[at:], level

    def _level(self, piece: Piece) -> int:
        return self.levels.get(piece.name, -1)


@dataclass(slots=True, eq=False)
class _Frozen:
    backend: MemoryBackend
    epoch: int
    changes: list[tuple[StateSpec, Any, dict[Any, Any]]]
    copies: list[tuple[StateSpec, Any, dict[Any, Any]]]
    lists: list[tuple[StateSpec, list[Value]]]
    passing: bool
    begins: bool
    ends: bool
    handle: str = ""

    def store(self) -> str:
        return self.backend._store_up_to(self)

    def release(self) -> None:
        """What is not stored stays until the next snapshot is, which needs it."""

    def empty(self) -> None:
        self.changes, self.copies, self.lists = [], [], []


def _joined(
    copies: list[tuple[StateSpec, Any, dict[Any, Any]]],
) -> Iterator[tuple[StateSpec, Any, list[dict[Any, Any]]]]:
    """Shards of one table together, as long as they make one part."""
    group: list[dict[Any, Any]] = []
    for number, (spec, table, copy) in enumerate(copies):
        group.append(copy)
        is_last = number + 1 == len(copies) or copies[number + 1][0] != spec
        if is_last or sum(map(len, group)) > ROWS_MAX // 2:
            yield spec, table, group
            group = []


def _concat(entries: Sequence[Entries]) -> Entries:
    if len(entries) == 1:
        return entries[0]
    return Entries(
        [key for part in entries for key in part.keys],
        [sub for part in entries for sub in part.subs],
        [value for part in entries for value in part.values],
    )


def _parts(spec: StateSpec, what: str, entries: Entries) -> Iterator[Draft]:
    for at in range(0, len(entries.keys), ROWS_MAX):
        end = at + ROWS_MAX
        part = Entries(entries.keys[at:end], entries.subs[at:end], entries.values[at:end])
        yield spec, what, len(part.keys), to_ipc(part)
