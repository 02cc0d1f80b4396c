"""What a daemon and its drivers tell each other: lines of JSON on a pair of sockets, which only these two have."""

from __future__ import annotations

import json
import select
import socket
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass
from operator import add
from typing import Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict

from onefold.core import OnefoldError
from onefold.core.checks import present
from onefold.core.errors import kind_of, named
from onefold.flow.drawing.svg import Box, Connector
from onefold.flow.time.told import ToldClock
from onefold.store.epoch_figures import EpochSteps, GaveUp, OperatorAcks, RunningEpoch

_READ_BYTES = 1 << 16
M = TypeVar("M", bound="_Message")
Do: TypeAlias = 'Literal["start", "pause", "resume", "drain", "close"]'


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Failure(_Message):
    """An error of the other process."""

    kind: str
    code: str
    message: str

    @classmethod
    def of(cls, error: OnefoldError) -> Failure:
        return cls(kind=kind_of(error), code=error.code, message=error.message)

    def error(self) -> OnefoldError:
        return present(named(self.kind, self.code, self.message), "both processes have the same errors")


class Recovered(_Message):
    """What the start of a pipeline found of earlier ones."""

    generation: int
    finished: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a pipeline's runs have counted."""

    restarts: int = 0  # after failures
    replays: int = 0  # batches that were skipped, since they had been written before
    dead_letters: int = 0  # of its sources
    skipped: int = 0  # records that could not be read
    late: int = 0  # rows that came too late for their windows
    given_up: int = 0  # runs of epochs, which ran again or ended the flow

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(add, astuple(self), astuple(other)))


class Status(_Message):
    """Where a pipeline's work stands, and what it has counted since its host began with it."""

    started_at_s: float | None = None  # its last run, where that could start: seconds since 1970
    recovered: Recovered | None = None  # None before a start has succeeded
    waiting_for: Failure | None = None  # a server that is away or busy
    progress_at_s: float | None = None  # when its last epoch was complete: seconds since 1970
    running: RunningEpoch | None = None  # with its operators on the engine, once it is slow; None between epochs
    gave_up: GaveUp | None = None  # the last run of an epoch that was given up
    spark_state: tuple[int, int] | None = None  # rows and bytes, as Spark has said last; None on the engine
    totals: Totals = Totals()


class Drawing(_Message):
    """A pipeline's graph, to be drawn."""

    boxes: tuple[Box, ...]
    ways: tuple[Connector, ...]


class Flowing(_Message):
    """What has flowed by the ways of the drawing, since the host began with it; None by one that is not counted. By the
    numbers of the boxes: in how many of the looks workers were in its code, or it waited to hand a batch on; the
    entries and bytes of its state; its event time."""

    ways: tuple[tuple[int, int] | None, ...]  # rows, bytes
    busy: dict[int, int] = {}
    backpressured: dict[int, int] = {}
    looks: int = 0
    state: dict[int, tuple[int, int]] = {}
    times: dict[int, ToldClock] = {}


class Finished(_Message):
    """An epoch that is complete; with its operators on the engine."""

    epoch: int
    steps: EpochSteps
    operators: tuple[OperatorAcks, ...] = ()


class LogLine(_Message):
    """What was logged, and when: seconds since 1970."""

    at_s: float
    level: str
    message: str


class Order(_Message):
    """To a host. `start` begins the work, or goes on with one that has failed; `close` forgets that."""

    do: Do
    work: int
    pipeline: str = ""  # how commands call it, and its name
    name: str = ""
    parts: dict[str, str] = {}  # to start: its identity, as the daemon has read it
    goes_on: bool = False  # it has run before
    is_paused: bool = False


class Report(_Message):
    """Of a host."""

    work: int
    status: Status = Status()
    has_ended: bool = False
    failure: Failure | None = None  # by which it has ended
    is_last: bool = False  # the host ends now
    drawing: Drawing | None = None  # once
    flowing: Flowing | None = None  # of the engine, now and then
    finished: tuple[Finished, ...] = ()  # this and the next: since the last report
    lines: tuple[LogLine, ...] = ()


class Channel(Generic[M]):
    """One end. Any thread may send, one receives messages of `kind`."""

    def __init__(self, connection: socket.socket, kind: type[M]) -> None:
        self._socket, self._kind = connection, kind
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, message: _Message) -> None:
        """Raises OSError where the other process is gone."""
        with self._sending:
            # By `json`, which keeps the bytes of a file's name that are no UTF-8.
            self._socket.sendall(json.dumps(message.model_dump()).encode() + b"\n")

    def receive(self, within_s: float | None = None) -> list[M] | None:
        """What has come; after a while, nothing. None once the other process is gone."""
        waiting = select.poll()  # which takes the sockets of a process with more than 1024 open files
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(None if within_s is None else within_s * 1000):
            return []
        try:
            part = self._socket.recv(_READ_BYTES)
        except OSError:
            part = b""
        if not part:
            return None
        *lines, self._rest = (self._rest + part).split(b"\n")
        return [self._kind.model_validate(json.loads(line)) for line in lines]

    def close(self) -> None:
        """The other process reads an end, and so does who receives here."""
        with suppress(OSError):  # it is gone
            self._socket.shutdown(socket.SHUT_RDWR)
