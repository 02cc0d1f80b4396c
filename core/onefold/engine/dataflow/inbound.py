"""The inputs of a subtask: alone responsible for the alignment of barriers.

Barriers are aligned: once a channel has delivered an epoch's barrier, what comes after it waits until all channels
have delivered theirs, so that a snapshot in between has all of the epoch's records and nothing of the next. Barriers
that overtake (unaligned), and channels that do not wait (at least once), are other ways to write `take`; in_order.py
has one.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.source import Part
from onefold.engine.dataflow.items import Barrier, Item, size_bytes

__all__ = ["Inbound"]


class Inbound:
    """Queues of what has arrived, one a channel.

    `take` gives the next batch that may be processed. Once it gives nothing and `barrier` is set, the epoch is complete
    here, and `reopen` begins the next one.
    """

    def __init__(self, channels: int) -> None:
        require(channels > 0, "a subtask has an input")
        self._queues: list[deque[Item]] = [deque() for _ in range(channels)]
        self._at_barrier: set[int] = set()
        self._next = 0  # the channel that is asked first, so that none starves
        self._run = 1
        self._bytes = [0] * channels

    def put(self, channel: int, item: Item) -> None:
        """What has arrived on a channel."""
        self._queues[channel].append(item)
        self._bytes[channel] += size_bytes(item)

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        """The next batch of a channel that is not held back, and its channel."""
        count = len(self._queues)
        for number in range(count):
            channel = (self._next + number) % count
            if channel in self._at_barrier or not self._queues[channel]:
                continue
            item = self._queues[channel].popleft()
            if isinstance(item, Barrier):
                require(item.run == self._run, f"the barrier of run {self._run}, not {item.run}")
                self._at_barrier.add(channel)
                continue
            self._next = channel + 1
            self._bytes[channel] -= size_bytes(item)
            return channel, item
        return None

    @property
    def has_ready(self) -> bool:
        """Whether `take` would move on: a batch, or a barrier, waits on a channel that is not held back."""
        return any(queue and channel not in self._at_barrier for channel, queue in enumerate(self._queues))

    def queued_bytes(self, channel: int) -> int:
        """How much waits on a channel. Its sender is to wait where that is much: others must not wait for it."""
        return self._bytes[channel]

    @property
    def barrier(self) -> Barrier | None:
        """The barrier that all channels have delivered; None until then."""
        return Barrier(self._run) if len(self._at_barrier) == len(self._queues) else None

    def reopen(self) -> None:
        """Begin the next epoch: no channel is held back any more."""
        require(self.barrier is not None, "an epoch ends with the barriers of all channels")
        self._at_barrier.clear()
        self._run += 1
