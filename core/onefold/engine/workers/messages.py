"""What a driver and its workers tell each other. Everything pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onefold.core.contract import Committable, Sink, TaskId
from onefold.core.source import Source, Split
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.flow.time.clocks import ClockStatus, SourceEnd


@dataclass(frozen=True, slots=True)
class Link:
    """A socket over which one worker sends to another: of which exchange, and from whom to whom. On that of none what
    is announced of barriers overtakes all exchanges."""

    exchange: int | None
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    """Where a flow's state is kept, by which backend, and the snapshots that the last decided epoch, of that time,
    made it. `scratch` is the driver's folder for databases."""

    root: str = field(repr=False)  # a URL may have a password
    flow: str
    backend: str
    generation: int
    handles: tuple[str, ...]
    scratch: str | None = None
    epoch: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """The first message to a worker. `links` are those of its sockets, in the order in which it got them. Sources are
    resolved and sinks open, by the numbers of their nodes. `guarded`: a worker before this one was lost. `in_order` has
    the nodes that take their input in a fixed order. `queries` is the folder of the sockets by which workers are
    asked. `alignment` is how subtasks wait for barriers."""

    index: int
    parallelism: int
    links: tuple[Link, ...]
    sources: Mapping[int, Source]
    sinks: Mapping[int, Sink]
    state: RestoreFrom | None
    guarded: bool = False
    in_order: frozenset[int] = frozenset()
    queries: str | None = None
    alignment: Alignment = ALIGNED


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has restored its state, of which this timer is due first. `clocks` as `Done` has them."""

    timer_ms: int | None
    clocks: Mapping[str, ClockStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begin:
    """Read these splits, by the numbers of the chains that read, and then send the barrier of the run. `opened` is None
    where the epoch is not open yet: that is read ahead. `ends` has, by the same numbers, those sources that say
    something of event time."""

    run: int
    splits: Mapping[int, Sequence[Split]]
    ends: Mapping[int, SourceEnd]
    opened: OpenedEpoch | None = None


@dataclass(frozen=True, slots=True)
class OpenedEpoch:
    """The epoch of a run is open. `aligned`: no barrier overtakes, whatever the launch has asked for."""

    run: int
    task: TaskId
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """The epoch of that time is complete: committed in all sinks, whose ledgers say so. No restart takes it back."""

    epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The flow has ended."""


@dataclass(frozen=True, slots=True)
class Done:
    """All subtasks of the worker have acknowledged the run. To prepare it took them `prepared_s` seconds, together.
    `clocks` are of the operators that go by event time, by their uids: each worker has all of them."""

    run: int
    committables: tuple[Committable, ...]
    bad: Mapping[int, int]  # records that could not be read, by the number of the chain
    timer_ms: int | None = None
    prepared_s: float = 0.0
    clocks: Mapping[str, ClockStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker ends by this error: its class's name, code and message; for any other than onefold's, code is None.
    Its last progress was `idle_s` seconds ago; None where there was none."""

    kind: str
    code: str | None
    message: str
    idle_s: float | None = None
