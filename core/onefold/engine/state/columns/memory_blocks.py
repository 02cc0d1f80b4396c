"""The memory backend's blocks: record batches, which nobody changes, so that they are never copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from onefold.core.checks import require
from onefold.engine.state.columns.block_codec import conformed, from_stream, note_of, to_stream, wanted_rows
from onefold.engine.state.sharded_tables import SHARDS
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockId, Migration

Changes = dict[BlockId, "pa.RecordBatch | None"]


class MemoryBlocks:
    """Implements BlockTable. `changes` are the blocks since the last `take`; None says that it is gone.

    A restore by fewer subtasks finds several blocks of one id, of keys of different groups, and gives them as one. A
    file tells only of the key groups that count in it, so of a block it replaces those rows: `_loading` has them apart,
    by the first of these groups.
    """

    copy_cost = 1

    def __init__(self) -> None:
        self.changes: Changes = {}
        self._blocks: dict[BlockId, list[pa.RecordBatch]] = {}
        self._loading: dict[BlockId, dict[int, pa.RecordBatch]] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def opened(self, schema: pa.Schema, width: int) -> None:
        """As what its blocks are read, and of how many columns their key is."""
        self._schema, self._width = schema, width

    def ids(self) -> list[BlockId]:
        return sorted(self._blocks)

    def get(self, at: BlockId) -> pa.RecordBatch:
        return conformed(self._blocks[at], self._schema)

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        require(block.num_rows > 0, "a block has rows")
        self._rows += block.num_rows - sum(map(len, self._blocks.get(at, ())))
        self._blocks[at] = [block]
        self.changes[at] = block

    def delete(self, at: BlockId) -> None:
        self._rows -= sum(map(len, self._blocks.pop(at)))
        self.changes[at] = None

    # for the backend

    def take(self) -> Changes:
        changes, self.changes = self.changes, {}
        return changes

    def copy(self, shard: int) -> list[tuple[BlockId, pa.RecordBatch]]:
        mine = [at for at in self._blocks if (at[0] + at[1]) % SHARDS == shard]
        return [(at, self.get(at)) for at in mine]

    @staticmethod
    def count(changes: Changes | list[tuple[BlockId, pa.RecordBatch]]) -> int:
        pairs = changes.items() if isinstance(changes, dict) else changes
        return sum(1 if block is None else block.num_rows for _, block in pairs)

    def changed(self, changes: Changes) -> Iterator[tuple[int, pa.Buffer]]:
        return (self._stored(at, block) for at, block in changes.items())

    def copied(self, shards: Sequence[list[tuple[BlockId, pa.RecordBatch]]]) -> Iterator[tuple[int, pa.Buffer]]:
        return (self._stored(at, block) for shard in shards for at, block in shard)

    def load(self, data: bytes, wanted: Wanted, migration: Migration | None = None) -> int:
        block = from_stream(data)
        parts = self._loading.setdefault((note_of(block, "slice"), note_of(block, "number")), {})
        for first in [first for first in parts if first in wanted.groups]:
            del parts[first]
        if (mine := wanted_rows(block, wanted)).num_rows:
            parts[wanted.groups.start] = mine if migration is None else migration.rows(mine, note_of(mine, "keys"))
        return len(block)

    def loaded(self) -> None:
        self._blocks = {at: [*parts.values()] for at, parts in self._loading.items() if parts}
        self._rows = sum(part.num_rows for parts in self._blocks.values() for part in parts)
        self._loading = {}

    def _stored(self, at: BlockId, block: pa.RecordBatch | None) -> tuple[int, pa.Buffer]:
        """A block that is gone is one without rows."""
        kept = conformed([], self._schema) if block is None else block
        return kept.num_rows, to_stream(kept, slice=at[0], number=at[1], keys=self._width)
