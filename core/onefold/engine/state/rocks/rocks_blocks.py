"""Blocks of the RocksDB backend: changes in a dict over a column family, as in table.py.

A key in RocksDB is the slice and the number, in their order. A block is read when it is asked for, so that the state
may be larger than memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from onefold.core.checks import present, require
from onefold.engine.state.codec import unreadable
from onefold.engine.state.columns.block_codec import conformed, from_stream, note_of, to_stream, wanted_rows
from onefold.engine.state.rocks.layered import Layered
from onefold.engine.state.rocks.scratch import Naming
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockId, Migration

Changes = dict[BlockId, "pa.RecordBatch | None"]

_ID = struct.Struct(">QQ")
_ZERO = 1 << 63  # a slice may be negative


class RocksBlocks(Layered[Changes]):
    """Implements BlockTable. In changes None says that a block is gone."""

    def __init__(self, family: Any, naming: Naming) -> None:
        super().__init__(family, naming, {})

    def opened(self, schema: pa.Schema, width: int) -> None:
        """As what its blocks are read, and of how many columns their key is."""
        self._schema, self._width = schema, width

    def ids(self) -> list[BlockId]:
        layers = self._layers()
        with self._naming:
            there = dict.fromkeys(map(_id, self._family.keys()), True)
        for layer in layers:
            there.update((at, block is not None) for at, block in layer.items())
        return sorted(at for at, is_there in there.items() if is_there)

    def get(self, at: BlockId) -> pa.RecordBatch:
        for layer in reversed(self._layers()):
            if at in layer:
                return present(layer[at], "a block that is there")
        with self._naming:
            data = self._family.get(_key(at))
        return conformed([from_stream(present(data, "a block that is there"))], self._schema)

    def put(self, at: BlockId, block: pa.RecordBatch) -> None:
        require(block.num_rows > 0, "a block has rows")
        self._changes[at] = block

    def delete(self, at: BlockId) -> None:
        self._changes[at] = None

    # for the backend

    def encoded(self, changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
        for at, block in changes.items():
            yield _key(at), None if block is None else to_stream(block, keys=self._width).to_pybytes()

    def adopted(self, family: Any, wanted: Wanted, migration: Migration | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Another subtask's blocks, of the key groups that are wanted, under numbers above all that are here."""
        above = max((number for _, number in self.ids()), default=-1) + 1
        for place, (key, data) in enumerate(family.items()):  # in the order of slices and numbers
            if (mine := wanted_rows(from_stream(data), wanted)).num_rows:
                width = note_of(mine, "keys")
                mine = mine if migration is None else migration.rows(mine, width)
                yield _key((_id(key)[0], above + place)), to_stream(mine, keys=width).to_pybytes()


def _key(at: BlockId) -> bytes:
    return _ID.pack(at[0] + _ZERO, at[1])


def _id(key: bytes) -> BlockId:
    try:
        slice_, number = _ID.unpack(key)
    except struct.error as error:
        raise unreadable() from error
    return slice_ - _ZERO, number
