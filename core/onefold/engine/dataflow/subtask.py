"""A subtask: one chain's operators in one worker, as a state machine without I/O of its own.

It is given items of its channels and the epochs that open, and gives back what is to be sent and acknowledged. What
its operators call (a sink's writer, a state backend) was given to it.
"""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.core.checks import present, require
from onefold.core.contract import Committable, TaskId
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.engine.dataflow.chain_operators import Emitted, Operators
from onefold.engine.dataflow.chains import Chain
from onefold.engine.dataflow.items import Acknowledge, Announce, Barrier, Effect, EpochInFlight, Flight, Item
from onefold.engine.dataflow.outbound import Outbound
from onefold.engine.dataflow.overtaking import Unaligned, inbound_of
from onefold.engine.dataflow.progress_marks import Mark
from onefold.engine.logics.logic import Logic
from onefold.engine.state.state_backend import Frozen, StateBackend, StateSize
from onefold.flow.time.clocks import ClockStatus

Kept = tuple[Committable, float]  # a stored snapshot, and when it was stored, on the monotonic clock
Keep = Callable[[TaskId, Frozen], "Future[Kept]"]  # the subtask goes on meanwhile
KeepFlight = Callable[[TaskId, Sequence[EpochInFlight]], "Future[Kept]"]


class Phase(enum.Enum):
    """Where a subtask is in an epoch. A call of `step` does what the phase says, once, and goes on to the next."""

    TAKING = "takes a batch of a channel that is not held back; until all channels' barriers are here, or overtake"
    FLUSHING = "has the operators emit what they emit once an epoch, which still belongs to it"
    FREEZING = "freezes the state: it has all of the epoch, and nothing of the next"
    FORWARDING = "sends the barrier on, behind all that the epoch has emitted, and what is known of its event time"
    PREPARING = "has the frozen state stored, and the writers of sinks prepare; then takes again"


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """A subtask's keyed state: where it is, and how a frozen one is stored as a committable of the epoch."""

    backend: StateBackend
    keep: Keep


class Subtask:
    """Subtask `index` of a chain in `parallelism` workers, with one logic a node. `in_order`: it does the same in an
    epoch that runs again. `mark` is the worker's. `hurries`: barriers overtake somewhere in the flow, so this one hands
    its own on at once; `keep_flight` stores what they overtake here."""

    def __init__(
        self,
        chain: Chain,
        index: int,
        parallelism: int,
        max_parallelism: int,
        logics: Mapping[int, Logic],
        state: SubtaskState | None = None,
        in_order: bool = False,
        mark: Mark | None = None,
        alignment: Alignment = ALIGNED,
        hurries: bool = False,
        keep_flight: KeepFlight | None = None,
    ) -> None:
        require((chain.uid is None) is (state is None), "operators with state have a backend")
        self.chain = chain
        self.phase = Phase.TAKING
        self.channels = chain.channels(index, parallelism)
        self.inbound = inbound_of(chain, self.channels, alignment, in_order)
        self._numbers = {(each.exchange, each.sender): number for number, each in enumerate(self.channels)}
        self._operators = Operators(chain, logics, mark)
        self._outbound = Outbound(chain, index, parallelism, max_parallelism, in_order)
        self.receivers = self._outbound.receivers
        self._hurries, self._keep_flight = hurries, keep_flight
        # Of the run that it has prepared, until that is stored, with the epochs of its runs.
        self._flight: tuple[TaskId, Flight, dict[int, TaskId]] | None = None
        self._aligned_run = 0  # in which it waits for all barriers, whatever is asked for
        self._state = state
        self._frozen: Frozen | None = None
        self._prepared: Acknowledge | None = None  # but for the state that is being stored
        self.storing: Future[Kept] | None = None
        self._tasks: dict[int, TaskId] = {}  # of the epochs that are open, and those that opened ahead
        self._run = 1
        self._has_begun = False
        self._prepared_at_s = 0.0  # on the monotonic clock

    def put(self, exchange: int | None, sender: int, item: Item) -> None:
        """Something has arrived from a sender of an exchange, or from the source."""
        self.inbound.put(self._numbers[exchange, sender], item)

    def queued_bytes(self, exchange: int | None, sender: int) -> int:
        """How much of what has arrived there still waits."""
        return self.inbound.queued_bytes(self._numbers[exchange, sender])

    def announced(self, exchange: int, sender: int, run: int) -> None:
        """A sender has announced its barrier of that run."""
        self.inbound.announced(self._numbers[exchange, sender], run)

    def restore(self, epochs: Sequence[EpochInFlight]) -> None:
        """Take what they have, by exchanges, before everything else; the last one is the decided one."""
        for run, each in enumerate(epochs, start=1 - len(epochs)):
            batches = [(self._numbers[way, 0], batch) for way, of in each.batches.items() for batch in of]
            if each.times is not None:
                self._tasks[run] = TaskId("", 0, each.epoch, each.timestamp_ms, uuid.UUID(int=0))
            self.inbound.replay(run, each.times, batches)

    def open(self, run: int, task: TaskId, aligned: bool = False) -> None:
        """The store has opened the epoch: its time is known, and its sinks may be written to. `aligned`: no barrier of
        it overtakes."""
        self._tasks[run] = task
        if aligned:
            self._aligned_run = run

    @property
    def is_ready(self) -> bool:
        """Whether `step` would do something."""
        if self.phase is not Phase.TAKING or self._overtakes:
            return True
        if self.inbound.barrier is not None:
            return self._run in self._tasks
        return self.inbound.has_ready and (not self._operators.need_task or self._run in self._tasks)

    @property
    def is_urgent(self) -> bool:
        """Whether a barrier that overtakes waits for it. Then it passes its channels' bound: these may be full."""
        return self._hurries and (self.phase is not Phase.TAKING or self._overtakes)

    @property
    def _overtakes(self) -> bool:
        is_open = self._hurries and self._run in self._tasks and self._run != self._aligned_run
        return is_open and self.inbound.overtakes

    def step(self) -> Iterator[Effect]:
        """Do one thing of the current phase. The effects must be used up before the next call."""
        match self.phase:
            case Phase.TAKING:
                yield from self._take()
            case Phase.FLUSHING:
                yield from self._sent(self._operators.flush(self._task, self.inbound.known_times))
                self.phase = Phase.FREEZING
            case Phase.FREEZING:
                self._frozen = None if self._state is None else self._state.backend.freeze(self._task.epoch)
                self.phase = Phase.FORWARDING
            case Phase.FORWARDING:
                if self._hurries:
                    yield from (Announce(exchange.number, to, self._run) for exchange, to in self.receivers)
                yield from self._outbound.barrier(Barrier(self._run), self.inbound.times)
                self.phase = Phase.PREPARING
            case Phase.PREPARING:
                self._prepare()
                self.phase = Phase.TAKING
                if (done := self.acknowledged()) is not None:
                    yield done

    def acknowledged(self) -> Acknowledge | None:
        """What is acknowledged, once: of the run that it has prepared, when its state is stored, and its flight whole
        and stored. Raises what storing has raised. A step that halts does not keep it: the next run goes on where this
        one is acknowledged."""
        done, storing = self._prepared, self.storing
        if done is None or (storing is not None and not storing.done()):
            return None
        self.storing = None
        if storing is not None:
            state, stored_s = storing.result()
            prepared_s = done.prepared_s + max(0.0, stored_s - self._prepared_at_s)
            committables, stored = (state, *done.committables), done.stored_bytes + state.bytes
            done = replace(done, committables=committables, prepared_s=prepared_s, stored_bytes=stored)
        self._prepared = done
        if self._flight is not None:
            task, flight, tasks = self._flight
            if flight.open:
                return None
            self._flight = None
            if flight.batches or flight.times:
                self._prepared, self._prepared_at_s = replace(done, flight_bytes=flight.bytes), time.monotonic()
                keep = present(self._keep_flight, "where barriers overtake, flights are kept")
                self.storing = keep(task, flight.epochs([channel.port for channel in self.channels], tasks))
                return self.acknowledged()
        self._prepared = None
        return done

    @property
    def timer_ms(self) -> int | None:
        """When the next timer is due, in milliseconds since 1970."""
        return self._operators.timer_ms()

    @property
    def clock(self) -> ClockStatus | None:
        """None where it does not go by event time."""
        return self._operators.clock()

    @property
    def state_size(self) -> StateSize | None:
        """None where it keeps no state."""
        return None if self._state is None else self._state.backend.size()

    def abort(self) -> None:
        """Undo what is not prepared."""
        self._operators.abort()

    def close(self) -> None:
        self._operators.close()
        if self._state is not None:
            self._state.backend.close()

    @property
    def _task(self) -> TaskId:
        return self._tasks[self._run]

    def _take(self) -> Iterator[Effect]:
        if self._operators.need_task and not self._has_begun:
            self._operators.begin(self._task)
            self._has_begun = True
        if (ended := self.inbound.ended) is not None:
            yield from self._sent(self._operators.flush(self._tasks.pop(ended), self.inbound.times))
            self._operators.begin_again(self._task)
            self.inbound.go_on()
            return
        if self.inbound.barrier is not None or self._overtakes:
            self.phase = Phase.FLUSHING
            return
        taken = self.inbound.take()
        if taken is not None:
            channel, batch = taken
            sent = self._sent(self._operators.take(batch, self.channels[channel].port))
            if isinstance(self.inbound, Unaligned) and isinstance(batch, pa.RecordBatch):
                sent = self._timed(sent, batch.num_rows)
            yield from sent

    def _timed(self, effects: Iterator[Effect], rows: int) -> Iterator[Effect]:
        """Tells the inbound how long these took to make: for the next one a receiver may have it wait."""
        took_s, began_s = 0.0, time.monotonic()
        for effect in effects:
            took_s += time.monotonic() - began_s
            yield effect
            began_s = time.monotonic()
        self.inbound.took(rows, took_s + time.monotonic() - began_s)

    def _sent(self, emitted: Iterable[Emitted]) -> Iterator[Effect]:
        for each in emitted:
            yield from self._outbound.batch(*each)

    def _prepare(self) -> None:
        require(self._prepared is None, "the run before is acknowledged where the next epoch is open")
        task, began_s = self._task, time.monotonic()
        if self._state is not None:
            frozen = present(self._frozen, "the state was frozen before the barrier went on")
            self.storing = self._state.keep(task, frozen)
        prepared = tuple(self._operators.prepare())
        self._prepared_at_s = time.monotonic()
        took_s = self._prepared_at_s - began_s
        bad = self._operators.bad_of_epoch()
        flight = self.inbound.reopen()
        self._flight = None if flight is None else (task, flight, dict(self._tasks))
        aligned = self.inbound.aligned_s, self.inbound.held_bytes, 0, self.inbound.how
        timer_ms, clock = self.timer_ms, self.clock
        self._prepared = Acknowledge(self._run, prepared, bad, timer_ms, took_s, clock, task.epoch, *aligned)
        if flight is None or not flight.times:
            del self._tasks[self._run]
        self._frozen, self._has_begun = None, False
        self._run += 1
