"""The inputs of a subtask: alone responsible for the alignment of barriers, and of what is said of event time.

Barriers are aligned: once a channel has delivered an epoch's barrier, what comes after it waits until all channels
have delivered theirs, so that a snapshot in between has all of the epoch's records and nothing of the next. `InOrder`
is another way to do that. Barriers that overtake, and channels that do not wait, are in `overtaking`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.errors import OutOfResources
from onefold.core.source import Part
from onefold.engine.dataflow.cutting import Cutter
from onefold.engine.dataflow.items import Barrier, Flight, Item, size_bytes
from onefold.flow.time.clocks import NO_TIMES, Times

MEMORY_BYTES_MAX = 16 << 20  # of one channel; twice what a worker lets a channel hold before its sender waits


class Inbound:
    """Queues of what has arrived, one a channel.

    `take` gives the next batch that may be processed. Once it gives nothing and `barrier` is set, the epoch is complete
    here, and `reopen` begins the next one. `times` is then what all channels said of it. `restored` are batches that
    an unaligned barrier had overtaken, with their channels: they come before everything else.
    """

    how = "aligned"  # as `HOW` of `alignment` has it, of the epoch that is complete here

    def __init__(self, channels: int) -> None:
        require(channels > 0, "a subtask has an input")
        self.restored: deque[tuple[int, pa.RecordBatch]] = deque()
        self._queues: list[deque[Item]] = [deque() for _ in range(channels)]
        self._at_barrier: set[int] = set()
        self._next = 0  # the channel that is asked first, so that none starves
        self._run = self._at = 1  # the run that is complete here next, and that whose rows are taken
        self._bytes = [0] * channels
        self._first_s = 0.0  # when the first barrier of the epoch was taken, on the monotonic clock; 0: none was
        self.aligned_s, self.held_bytes = 0.0, 0  # of the epoch that is complete here: see `_delivered`
        self.times = NO_TIMES

    def put(self, channel: int, item: Item) -> None:
        self._queues[channel].append(item)
        self._bytes[channel] += size_bytes(item)

    def announced(self, channel: int, run: int) -> None:
        """A channel's barrier of that run comes, behind all that is before it. One that aligns waits for it."""

    def took(self, rows: int, for_s: float) -> None:
        """How long so many rows took that were taken, where barriers overtake."""

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        """The next batch of a channel that is not held back, and its channel."""
        if self.restored:
            return self.restored.popleft()
        count = len(self._queues)
        for number in range(count):
            channel = (self._next + number) % count
            if channel in self._at_barrier or (item := self._pop(channel)) is None:
                continue
            if isinstance(item, Barrier):
                self._delivered(channel, item)
                continue
            self._next = channel + 1
            self._bytes[channel] -= size_bytes(item)
            return channel, item
        return None

    def _delivered(self, channel: int, barrier: Barrier) -> None:
        """Its barrier was taken. With the last one it is known for how long the first channel waited for that, and what
        had come meanwhile on those that waited."""
        require(barrier.run == self._at, f"the barrier of run {self._at}, not {barrier.run}")
        self._at_barrier.add(channel)
        if self._at == self._run:
            self._first_s = self._first_s or time.monotonic()
        if self.barrier is not None:
            self.aligned_s = time.monotonic() - self._first_s
            self.held_bytes = sum(self._bytes) - self._bytes[channel]

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        """The next of a channel, and what is said of event time before it."""
        queue = self._queues[channel]
        while queue:
            item = queue.popleft()
            if not isinstance(item, Times):
                return item
            self.times = self.times.joined(item)
        return None

    @property
    def has_ready(self) -> bool:
        """Whether there is something to do: a batch or a barrier on a channel that is not held back, or a run that has
        ended."""
        fronts = enumerate(self._queues)
        is_there = any(queue and channel not in self._at_barrier for channel, queue in fronts)
        return is_there or bool(self.restored) or self.ended is not None

    def queued_bytes(self, channel: int) -> int:
        """How much waits on a channel. Its sender is to wait where that is much: others must not wait for it."""
        return self._bytes[channel]

    @property
    def barrier(self) -> Barrier | None:
        """The barrier that all channels have delivered; None until then."""
        return Barrier(self._run) if self._at == self._run and len(self._at_barrier) == len(self._queues) else None

    @property
    def ended(self) -> int | None:
        """The run whose rows end here, where its snapshot was taken before: see `UnalignedInTime`."""
        return self._at if self._at < self._run and len(self._at_barrier) == len(self._queues) else None

    @property
    def known_times(self) -> Times | None:
        """All that the run says of event time, where it is complete here; None where its snapshot does not wait."""
        return self.times

    def replay(self, run: int, times: Times | None, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """What was in flight comes before everything else: of no run of its own, but where `times` are told."""
        require(times is None, f"run {run} in flight has a time of its own, by which nobody goes here")
        self.restored.extend(batches)

    def go_on(self) -> None:
        """Take the rows of the next run: no channel is held back any more."""
        self._at_barrier.clear()
        self.times = NO_TIMES
        self._at += 1

    @property
    def overtakes(self) -> bool:
        """Whether the epoch may be taken for complete before all barriers are here."""
        return False

    def reopen(self) -> Flight | None:
        """Begin the next epoch. Gives what barriers of the last have overtaken."""
        require(self.barrier is not None or self.overtakes, "an epoch ends with the barriers of all channels")
        self.go_on()
        self._first_s = 0.0
        self._run += 1
        return None


class InOrder(Inbound):
    """Takes the channels in a fixed order, `turns`: what the subtask does in an epoch is the same when that runs again.

    For operators whose rows depend on the order of their input, before a sink whose rows show before the epoch is
    decided (`onefold.flow.graph.order`). Each channel is taken to its barrier before the next is begun, in batches of a
    fixed number of rows: so the calls of all operators are a function of what the channels carry, which is the same
    again by induction from the sources' splits on, where as many workers run.

    No subtask waits for another for ever. A channel whose turn is to come never holds its sender up: what does not fit
    in memory waits in a file. A sender only waits for a receiver whose turn is the sender's and that has much to do, so
    for one further down the flow, and those that write to sinks wait for nobody.
    """

    def __init__(self, turns: Sequence[int]) -> None:
        super().__init__(len(turns))
        require(sorted(turns) == [*range(len(turns))], turns)
        self._turns = tuple(turns)
        self._waiting = [SpillQueue() for _ in turns]
        self._cutter = Cutter()
        self._at_end: Barrier | None = None  # of the channel whose turn it is: was reached, and rows may be left

    def put(self, channel: int, item: Item) -> None:
        self._waiting[channel].append(item)
        self._bytes[channel] += size_bytes(item)

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        """The next batch of the channel whose turn it is, and the channel."""
        while (channel := self._turn) is not None:
            if (cut := self._cutter.take()) is not None:
                return channel, cut
            if self._at_end is not None:
                if (cut := self._cutter.rest()) is not None:
                    return channel, cut
                self._delivered(channel, self._at_end)
                self._at_end = None
            elif self._waiting[channel]:
                item = self._waiting[channel].popleft()
                if isinstance(item, Barrier):
                    self._at_end = item
                elif isinstance(item, Times):
                    self.times = self.times.joined(item)
                else:
                    self._bytes[channel] -= size_bytes(item)
                    self._cutter.put(item)
            else:
                return None
        return None

    @property
    def _turn(self) -> int | None:
        return next((channel for channel in self._turns if channel not in self._at_barrier), None)

    @property
    def has_ready(self) -> bool:
        turn = self._turn
        return turn is not None and (len(self._waiting[turn]) > 0 or self._cutter.has_cut or self._at_end is not None)

    def queued_bytes(self, channel: int) -> int:
        """Nothing for a channel whose turn is to come."""
        return self._bytes[channel] if channel == self._turn or channel in self._at_barrier else 0


class SpillQueue:
    """A queue of items, whose batches beyond `memory_max` bytes go through a file without a name."""

    def __init__(self, memory_max: int = MEMORY_BYTES_MAX) -> None:
        self._items: deque[Item | tuple[int, int]] = deque()  # in the file: where, and how many bytes
        self._memory_max, self._memory = memory_max, 0
        self._file: BinaryIO | None = None
        self._filed = self._end = 0  # batches that are in the file, and its length

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        size = size_bytes(item)
        if isinstance(item, pa.RecordBatch) and self._memory + size > self._memory_max:
            self._items.append(self._write(item))
        else:
            self._items.append(item)
            self._memory += size

    def popleft(self) -> Item:
        item = self._items.popleft()
        if isinstance(item, tuple):
            return self._read(*item)
        self._memory -= size_bytes(item)
        return item

    def _write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Raises OutOfResources where there is no room for it."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, batch.schema) as stream:
            stream.write_batch(batch)
        buffer = content.getvalue()
        try:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it goes with the process
            left = memoryview(buffer)
            while left:
                left = left[os.pwrite(self._file.fileno(), left, self._end + buffer.size - len(left)) :]
        except OSError as error:
            self._drop()
            raise OutOfResources(
                "exchange-disk-full",
                "rows of an epoch that wait until those of other workers are processed cannot be kept in"
                f" {tempfile.gettempdir()}: {error.strerror}. Make room there, name another folder in TMPDIR, or let"
                " the source give fewer records an epoch",
            ) from error
        place = self._end, buffer.size
        self._end, self._filed = self._end + buffer.size, self._filed + 1
        return place

    def _read(self, at: int, size: int) -> pa.RecordBatch:
        assert self._file is not None
        content = bytearray()
        while len(content) < size:
            content += os.pread(self._file.fileno(), size - len(content), at + len(content))
        self._filed -= 1
        if not self._filed:
            self._drop()
        return pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._end = None, 0
