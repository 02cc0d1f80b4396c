"""Makes a backend by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage

if TYPE_CHECKING:
    from onefold.engine.state.rocks import RocksBackend


def made_backend(
    name: str, storage: Storage, generation: int, max_parallelism: int, scratch: str | None = None
) -> MemoryBackend | RocksBackend:
    if name == MemoryBackend.name:
        return MemoryBackend(storage, generation, max_parallelism)
    from onefold.engine.state.rocks import RocksBackend  # needs its package

    return RocksBackend(storage, generation, max_parallelism, folder=scratch)
