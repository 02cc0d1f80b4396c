"""A checkpoint store with some epochs in it."""

from __future__ import annotations

import time

from onefold.core import Committable, Positions, Range, SinkKind
from onefold.core.protocol.effects import EpochRequest
from onefold.store.checkpoint_store import CheckpointStore


def with_epochs(url: str, count: int, pipeline: str = "orders") -> CheckpointStore:
    """A store in which that many epochs of ten rows are complete, and the next is open."""
    store = CheckpointStore(url)
    generation = store.acquire(pipeline, above=0)
    store.freeze(generation, at(0))
    for number in range(count + 1):
        request = EpochRequest(Range(at(10 * number), at(10 * number + 10)), "q", number, "job", ("rows",))
        record = store.open_epoch(generation, request, number, now_ms() - 3000)
        if number < count:
            manifest = [Committable("rows", SinkKind.TWO_PHASE, f"gid-{number}", 1, record.epoch, 10, 80)]
            store.complete(generation, store.decide(generation, record, manifest, now_ms() - 1000), now_ms())
    return store


def at(offset: int) -> Positions:
    return Positions.of({"orders/0": offset})


def now_ms() -> int:
    return time.time_ns() // 1_000_000
