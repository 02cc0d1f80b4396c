"""The memory backend: dicts and columns, and a change log for each epoch.

Every change is also noted; `freeze` takes the notes away and begins new ones, whatever the size of the state, and the
snapshot is a log of them. So that a restore need not read all logs there ever were, a *pass* copies the tables while
the flow goes on: each `freeze` of it copies some shards, at most `copies_max` entries, and stores them as bases beside
its log. Once a pass has been through all shards, its files alone make the state: logs and bases hold absolute values,
so putting them in order ends with the newest value of each key, whenever its shard was copied. A pass begins when the
logs since the last one have twice as many entries as the state: so an epoch costs its changes and half as much again.

Small logs are merged as they are, eight into one, so that a snapshot names few files.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.extras import uncollected
from onefold.core.failpoints import failpoint
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.columns.memory_blocks import MemoryBlocks
from onefold.engine.state.columns.slot_table import SlotTable
from onefold.engine.state.common import BaseBackend, Delta, OneFrozen, list_parts
from onefold.engine.state.sharded_tables import SHARDS, FlatTable, NestedTable
from onefold.engine.state.snapshot import (
    BASE,
    LOG,
    OPERATOR,
    Draft,
    Piece,
    Wanted,
    copied,
    new_name,
    read_footer,
    read_part,
    write_snapshot,
)
from onefold.engine.state.state_backend import (
    NO_MIGRATIONS,
    BlockTable,
    Frozen,
    Migrations,
    StateKind,
    StateSize,
    StateSpec,
    StateTable,
    WholeRowTable,
)
from onefold.engine.state.storage import Storage

COPIES_MAX = 100_000  # entries, in some 5 ms
LOGGED_MIN = 1_000
MERGED = 8

Table = FlatTable | NestedTable | MemoryBlocks | SlotTable
_TABLES: dict[StateKind, Callable[[], Table]] = {
    StateKind.VALUE: FlatTable,
    StateKind.BLOCKS: MemoryBlocks,
    StateKind.ROWS: SlotTable,
}


class MemoryBackend(BaseBackend):
    """Implements StateBackend."""

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
        super().__init__(storage, generation, max_parallelism)
        self._copies_max = copies_max
        self._logged_min = logged_min
        self._tables: dict[StateSpec, Table] = {}
        self._pass: deque[tuple[StateSpec, int]] = deque()
        self._is_changed = False  # since they were stored: no file has the entries as they are
        self._logged = 0  # entries of logs since the last pass began
        self._chain = _Chain()

    def table(self, spec: StateSpec) -> StateTable:
        table = self._table(spec)
        assert isinstance(table, FlatTable | NestedTable)
        return table

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        table = self._table(StateSpec(uid, name, StateKind.BLOCKS))
        assert isinstance(table, MemoryBlocks)
        table.opened(schema, width)
        return table

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> WholeRowTable:
        table = self._table(StateSpec(uid, name, StateKind.ROWS))
        assert isinstance(table, SlotTable)
        table.opened(schema, width)
        return table

    def asked_for(self) -> Iterator[tuple[StateSpec, pa.Schema, int]]:
        """Blocks, rows and lists, with their columns, of which the first are the key's: so many."""
        for spec, table in self._tables.items():
            if isinstance(table, MemoryBlocks | SlotTable):
                yield spec, table._schema, table._width
        yield from ((spec, pa.schema([]), 0) for spec in self._operators)

    def freeze(self, epoch: int) -> Frozen:
        changes: list[tuple[StateSpec, Any]] = [
            (spec, table.take()) for spec, table in self._tables.items() if table.changes
        ]
        self._logged += sum(self._tables[spec].count(taken) for spec, taken in changes)
        is_due = self._is_changed or self._logged > max(self._logged_min, 2 * self._entries)
        begins = not self._pass and is_due
        if begins:
            self._pass.extend((spec, shard) for spec in self._tables for shard in range(SHARDS))
            self._logged = 0
        is_passing = bool(self._pass)
        copies = list(self._copy_some(sys.maxsize if self._is_changed else self._copies_max))
        self._is_changed = False
        delta = _Delta(epoch, self._lists(), changes, copies, is_passing, begins, is_passing and not self._pass)
        self._unstored.append(delta)
        return OneFrozen(self, delta)

    def forget_changes(self) -> None:
        """Where no snapshot is ever stored."""
        for table in self._tables.values():
            if table.changes:
                table.take()

    def restore(
        self, handles: Sequence[str], key_groups: Collection[int], migrations: Migrations = NO_MIGRATIONS
    ) -> None:
        require(not self._tables and not self._unstored, "restore comes before any table is used")
        for footer, own in self._begin(handles, key_groups, migrations):
            pieces = (piece.narrowed(footer.first, footer.end) for piece in (*footer.pieces, own))
            mine = [piece.narrowed(self._groups.start, self._groups.stop) for piece in pieces]
            self._chain.pieces += [piece for piece in mine if piece.first < piece.end]
        with uncollected():
            for piece in self._chain.pieces:
                self._load(piece, migrations)
            for table in self._tables.values():
                table.loaded()
        self._is_changed = bool(migrations)

    def specs(self) -> list[StateSpec]:
        return [*self._tables]

    def size(self) -> StateSize:
        return StateSize(self._entries, sum(piece.bytes for piece in self._chain.pieces))

    def close(self) -> None:
        """Nothing is held but memory."""

    @property
    def _entries(self) -> int:
        return sum(map(len, self._tables.values()))

    def _table(self, spec: StateSpec) -> Table:
        if spec not in self._tables:
            self._tables[spec] = _TABLES.get(spec.kind, NestedTable)()
        return self._tables[spec]

    def _copy_some(self, left: int) -> Iterator[tuple[StateSpec, Any]]:
        while self._pass and left > 0:
            spec, shard = self._pass.popleft()
            table = self._tables[spec]
            copy: Any = table.copy(shard)
            entries = table.count(copy)
            left -= max(1, entries * table.copy_cost)
            if entries:
                yield spec, copy

    def _load(self, piece: Piece, migrations: Migrations) -> None:
        footer, _ = read_footer(self._storage, piece.name, piece.crc)
        is_whole = footer.first >= piece.first and footer.end <= piece.end
        wanted = Wanted(range(piece.first, piece.end), self._max_parallelism, is_whole)
        for part in footer.parts:
            if part.what == OPERATOR:
                continue
            migration = migrations.get(part.spec)
            target = part.spec if migration is None else migration.target
            if target is not None:
                loaded = self._table(target).load(read_part(self._storage, piece.name, part), wanted, migration)
                self._logged += loaded if part.what == LOG else 0

    def _store(self, deltas: Sequence[Any], epoch: int) -> str:
        chain = replace(self._chain)
        for delta in deltas:
            self._store_one(delta, epoch, chain)
        self._chain = chain
        return chain.pieces[-1].name

    def _store_one(self, delta: _Delta, epoch: int, chain: _Chain) -> None:
        merged, level = ([], 0) if delta.is_passing else chain.mergeable()
        kept = chain.pieces[: len(chain.pieces) - len(merged)]
        if delta.begins:
            chain.pass_at = len(kept)
        if delta.ends:
            kept = kept[chain.pass_at :]
        name = new_name(self._generation, epoch)
        failpoint("before:StoreState")
        piece = write_snapshot(self._storage, name, self._footer(epoch, kept), self._drafts(delta, merged))
        failpoint("after:StoreState")
        chain.pieces = [*kept, piece]
        if not delta.is_passing:  # what a pass wrote is neither merged nor written again
            chain.levels[name] = level

    def _drafts(self, delta: _Delta, merged: Sequence[Piece]) -> Iterator[Draft]:
        for piece in merged:
            yield from copied(self._storage, piece)
        for spec, changes in delta.changes:
            yield from ((spec, LOG, *part) for part in self._tables[spec].changed(changes))
        for spec, copies in groupby(delta.copies, itemgetter(0)):
            yield from ((spec, BASE, *part) for part in self._tables[spec].copied([copy for _, copy in copies]))
        yield from list_parts(delta.lists)


@dataclass(slots=True)
class _Chain:
    """The files that the next snapshot begins with, and those among them that may be merged, by how often they were."""

    pieces: list[Piece] = field(default_factory=list)
    pass_at: int = 0  # where the files of the running pass begin
    levels: dict[str, int] = field(default_factory=dict)

    def mergeable(self) -> tuple[list[Piece], int]:
        """The last files, if the next one is to take them in, and the level that it then has."""
        level, at = 0, len(self.pieces)
        while at >= MERGED - 1 and all(
            self.levels.get(piece.name) == level for piece in self.pieces[at - MERGED + 1 : at]
        ):
            level, at = level + 1, at - MERGED + 1
        return self.pieces[at:], level


@dataclass(slots=True, eq=False)
class _Delta(Delta):
    """What was taken from each table, and copied of it."""

    changes: list[tuple[StateSpec, Any]]
    copies: list[tuple[StateSpec, Any]]
    is_passing: bool
    begins: bool  # a pass
    ends: bool
