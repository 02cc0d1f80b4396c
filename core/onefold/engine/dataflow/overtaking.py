"""Inputs that do not align barriers as `inbound` does.

Barriers overtake where each sender announces its own on a way that overtakes: once every barrier is here or announced,
the subtask takes its snapshot, and what the barriers have overtaken is a part of it. So a flight is bounded by what
channels hold: a sender that is not through with its epoch is waited for, as the epoch is anyway.

Sources are aligned always: their barrier is at the planned end. So is an input whose flight could not be shared out
anew, as of broadcast rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any, cast

import pyarrow as pa

from onefold.core.source import Part
from onefold.engine.dataflow.alignment import HOW, Alignment
from onefold.engine.dataflow.chains import Chain, Channel
from onefold.engine.dataflow.inbound import Inbound, InOrder, SpillQueue
from onefold.engine.dataflow.items import Barrier, Flight, Item
from onefold.flow.time.clocks import NO_TIMES, Times

IN_HAND_S = 0.2  # about how long a batch may take before which barriers wait
FIRST_ROWS = 32  # before it is known how long they take

log = logging.getLogger("onefold")


def inbound_of(chain: Chain, channels: tuple[Channel, ...], alignment: Alignment, in_order: bool = False) -> Inbound:
    """The inputs of a subtask. `in_order` as `Launch` has it: stages keep to that, too."""
    if in_order:
        return InOrder(chain.turns(channels))
    if chain.source is not None or not alignment.overtakes:
        kinds: dict[str, type[Inbound]] = {"at_least_once": AtLeastOnce, "staged": Staged}
        return (Inbound if chain.source is not None else kinds.get(alignment.kind, Inbound))(len(channels))
    overtaking = {each.number for each in chain.inputs if each.edge.can_overtake}
    aligned = {number for number, channel in enumerate(channels) if channel.exchange not in overtaking}
    of = UnalignedInTime if chain.head.keeps_event_time else Unaligned
    return of(len(channels), alignment, aligned, chain.head.name)


class Unaligned(Inbound):
    """Barriers overtake, but on the channels in `aligned`. Until they do, channels wait as aligned ones do. `name` is
    the operator's, for people.

    Nothing overtakes the batch in hand, so none is given that would take for long, by what those before it took.
    """

    def __init__(self, channels: int, alignment: Alignment, aligned: Collection[int] = (), name: str = "") -> None:
        super().__init__(channels)
        self._alignment, self._aligned, self._name = alignment, aligned, name
        self._announced = [0] * channels  # the last run whose barrier is here, or comes
        self._flight: Flight | None = None  # that is not whole
        self._rows_max, self._took = FIRST_ROWS, (0, 0.0)
        self._overtook = 0  # the last run in which barriers overtake here
        self._is_still = False  # nothing was taken since batches were overtaken: the next barriers do not overtake them
        self._stays = 0  # the last run in which it stays aligned, since there is too much to overtake

    def put(self, channel: int, item: Item) -> None:
        super().put(channel, item)
        flight = self._flight
        if flight is not None and channel in flight.open:
            flight.add(channel, item, flight.run)
            if isinstance(item, Barrier):
                flight.open.discard(channel)

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        is_restored = bool(self.restored)
        taken = super().take()
        if taken is None:
            return None
        self._is_still = False
        channel, batch = taken
        if isinstance(batch, Part) or batch.num_rows <= self._rows_max:
            return taken
        rest = batch.slice(self._rows_max)
        if is_restored:
            self.restored.appendleft((channel, rest))
        else:
            self._queues[channel].appendleft(rest)
            self._bytes[channel] += rest.nbytes
        return channel, batch.slice(0, self._rows_max)

    def took(self, rows: int, for_s: float) -> None:
        wanted, (more, more_s) = int(rows * IN_HAND_S / max(for_s, 1e-6)), self._took
        if wanted < rows < more and for_s > more_s * (1 + rows / more) / 2:
            wanted = 2 * more  # most of it is what a call takes, with however few rows
        self._took, self._rows_max = (rows, for_s), max(1, min(2 * self._rows_max, wanted))

    def announced(self, channel: int, run: int) -> None:
        self._announced[channel] = run
        if run == self._run:
            self._first_s = self._first_s or time.monotonic()

    @property
    def overtakes(self) -> bool:
        if self._overtook == self._run:
            return True
        late = self._late
        if any(channel in self._aligned or self._announced[channel] < self._run for channel in late):
            return False
        if self._is_still or self._stays == self._run or time.monotonic() < self._first_s + self._alignment.timeout_s:
            return False
        waits = sum(self._bytes[channel] for channel in late) + sum(batch.nbytes for _, batch in self.restored)
        if waits <= self._alignment.flight_bytes_max:
            self._overtook = self._run
            return True
        if not self._stays:
            log.warning("%r aligns barriers now and then: they would overtake %d MB", self._name, waits >> 20)
        self._stays = self._run
        return False

    def queued_bytes(self, channel: int) -> int:
        """Nothing while its barrier comes behind a flight: that is waited for, however much is before it."""
        is_open = self._flight is not None and channel in self._flight.open
        return 0 if is_open else super().queued_bytes(channel)

    def reopen(self) -> Flight | None:
        run, late, flight = self._run, self._late, None
        self.how = HOW[0]
        if late:
            self.how, flight = HOW[2 if self._alignment.timeout_s else 1], self._overtaken(late)
            self.aligned_s = time.monotonic() - self._first_s
            self.held_bytes = sum(self._bytes[channel] for channel in self._at_barrier)
        super().reopen()
        self._first_s = time.monotonic() if max(self._announced) > run else 0.0
        self._flight, self._is_still = flight, flight is not None and bool(flight.batches)
        return flight

    @property
    def _late(self) -> list[int]:
        """The channels whose barrier was not taken."""
        return [channel for channel in range(len(self._queues)) if channel not in self._at_barrier]

    def _times(self) -> dict[int, Times]:
        """What is known by now of the event time of the runs that were not taken to their end, where that counts."""
        return {}

    def _overtaken(self, late: Collection[int]) -> Flight:
        flight = Flight(self._run, self._times())
        for channel, batch in self.restored:
            flight.add(channel, batch, self._run)
        for channel in late:
            run = self._at + (channel in self._at_barrier)
            flight.open.add(channel)
            for item in self._queues[channel]:
                flight.add(channel, item, run)
                if isinstance(item, Barrier):
                    run = item.run + 1
                    if item.run == self._run:
                        flight.open.discard(channel)
                        break
        return flight

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        """Without barriers that were overtaken: of these the snapshot was taken."""
        item = super()._pop(channel)
        while isinstance(item, Barrier) and item.run < self._run:
            item = super()._pop(channel)
        return item


class UnalignedInTime(Unaligned):
    """Of an operator that goes by event time. It takes the rows of an epoch, and what that says of event time, before
    those of the next, as if barriers were aligned: so each row is judged by the same watermark, and fires the same. Its
    snapshot alone does not wait, and may be of the midst of an epoch of long before: then all of these epochs are in
    flight, and `ended` is that which has come to its end meanwhile: the operators advance, before it is to `go_on`.

    Its senders are aligned: their barriers come behind all that they say of the epoch.
    """

    @property
    def known_times(self) -> Times | None:
        return self.times if self.barrier is not None else None

    def replay(self, run: int, times: Times | None, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """An epoch from before the launch, whose last run is 0."""
        if times is None:  # of an operator that did not go by event time then
            super().replay(run, times, batches)
            return
        self._at = min(self._at, run)
        for channel, batch in batches:
            self.put(channel, batch)
        self.put(0, times)
        for channel in range(len(self._queues)):
            self.put(channel, Barrier(run))

    def go_on(self) -> None:
        """Where all of the run's rows were taken."""
        if not super()._late:
            super().go_on()

    @property
    def overtakes(self) -> bool:
        """Not where nothing waits: what it says of event time comes soon, and a flight would have that alone."""
        return any(self._bytes[channel] for channel in self._late) and super().overtakes

    @property
    def _late(self) -> list[int]:
        return super()._late if self._at == self._run else [*range(len(self._queues))]

    def _times(self) -> dict[int, Times]:
        return {run: self.times if run == self._at else NO_TIMES for run in range(self._at, self._run + 1)}

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        return Inbound._pop(self, channel)


class AtLeastOnce(Inbound):
    """No channel waits for another: a snapshot has what came by then, of the next epoch, too."""

    how = HOW[3]

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self._passed = [0] * channels  # the last barrier that was taken

    @property
    def barrier(self) -> Barrier | None:
        return Barrier(self._run) if min(self._passed) >= self._run else None

    def _pop(self, channel: int) -> pa.RecordBatch | Part | Barrier | None:
        while self.barrier is None:
            item = super()._pop(channel)
            if not isinstance(item, Barrier):
                return item
            self._passed[channel] = item.run
        return None


class Staged(Inbound):
    """Micro-batches: gives nothing before all of an epoch is here, so one chain begins when those before it are done in
    all workers. What waits never holds its sender back: beyond what memory may have it is in a file."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self._queues = cast(Any, [SpillQueue() for _ in range(channels)])
        self._here = [0] * channels  # the last run whose barrier has come

    def put(self, channel: int, item: Item) -> None:
        super().put(channel, item)
        if isinstance(item, Barrier):
            self._here[channel] = item.run

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        return super().take() if self.has_ready else None

    @property
    def has_ready(self) -> bool:
        return min(self._here) >= self._run and super().has_ready

    def queued_bytes(self, channel: int) -> int:
        del channel
        return 0
