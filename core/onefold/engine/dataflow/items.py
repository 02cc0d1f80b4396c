"""What goes over a channel, and what a subtask gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from onefold.core.contract import Committable, TaskId
from onefold.core.source import Part
from onefold.flow.time.clocks import ClockStatus, Times


@dataclass(frozen=True, slots=True)
class Barrier:
    """The end of an epoch on a channel. `run` counts the epochs that these workers have run, from 1 on."""

    run: int


Item: TypeAlias = "pa.RecordBatch | Part | Times | Barrier"  # a part: from a source. Times: before the barrier


def size_bytes(item: Item) -> int:
    """How much memory an item holds."""
    if isinstance(item, Times | Barrier):
        return 0
    if isinstance(item, Part):
        return int(item.rows.nbytes + item.bad.nbytes)
    return int(item.nbytes)


@dataclass(frozen=True, slots=True)
class EpochInFlight:
    """Batches in flight in their order, by the inputs of a chain's head. Of operators that go by event time they are of
    that epoch, opened at `timestamp_ms`, and `times` is what it has said by then; None of all others, for which it does
    not matter of which epoch their rows are."""

    batches: dict[int, list[pa.RecordBatch]]
    epoch: int = 0
    timestamp_ms: int = 0
    times: Times | None = None


@dataclass(slots=True)
class Flight:
    """What the barriers of `run` have overtaken in one subtask, a part of its snapshot: batches in their order, with
    the channels that they came by, and their runs. `open` are those whose barrier has still to come: until then what
    comes there belongs to it. `times` has the runs whose event time is in flight, too."""

    run: int
    times: dict[int, Times] = field(default_factory=dict)
    batches: list[tuple[int, int, pa.RecordBatch]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    bytes: int = 0

    def add(self, channel: int, item: Item, run: int) -> None:
        if isinstance(item, pa.RecordBatch):
            self.batches.append((channel, run, item))
            self.bytes += item.nbytes
        elif isinstance(item, Times) and run in self.times:
            self.times[run] = self.times[run].joined(item)

    def epochs(self, inputs: Sequence[int], tasks: Mapping[int, TaskId]) -> list[EpochInFlight]:
        """What there is to store. `inputs` are those of the channels, and `tasks` the epochs' of the runs."""
        found: dict[int, dict[int, list[pa.RecordBatch]]] = {run: {} for run in self.times}
        for channel, run, batch in self.batches:
            found.setdefault(run if self.times else self.run, {}).setdefault(inputs[channel], []).append(batch)
        return [
            EpochInFlight(batches, tasks[run].epoch, tasks[run].timestamp_ms, self.times.get(run))
            for run, batches in found.items()
        ]


@dataclass(frozen=True, slots=True)
class Send:
    """A batch, times or a barrier for subtask `to` of the chain that exchange `exchange` leads to."""

    exchange: int
    to: int
    item: pa.RecordBatch | Times | Barrier


@dataclass(frozen=True, slots=True)
class Announce:
    """Of a channel: the barrier of the run has been sent, behind all that waits there. It overtakes that."""

    exchange: int
    to: int
    run: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The epoch is done here: what was prepared for it, how many records could not be read, when the next timer is due,
    in milliseconds since 1970, and how long preparing took. `clock` is of an operator that goes by event time. Then the
    epoch's number, for how long its inputs were aligned, how much was held back, and what was stored of its state; and
    how its barrier came (`alignment.HOW`), and what it has overtaken."""

    run: int
    committables: tuple[Committable, ...]
    bad: int = 0
    timer_ms: int | None = None
    prepared_s: float = 0.0
    clock: ClockStatus | None = None
    epoch: int = 0
    aligned_s: float = 0.0
    held_bytes: int = 0
    stored_bytes: int = 0
    how: str = "aligned"
    flight_bytes: int = 0


Effect = Send | Announce | Acknowledge
