"""Workers in memory: subtasks, channels and readers that advance one step at a time, in an order that is chosen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Sink, TaskId
from onefold.core.source import Split
from onefold.engine.dataflow.alignment import ALIGNED, Alignment, alignment_in
from onefold.engine.dataflow.chains import Chain, Exchange, Plan
from onefold.engine.dataflow.inbound import Inbound, InOrder
from onefold.engine.dataflow.items import Acknowledge, Announce, EpochInFlight, Item, Send
from onefold.engine.dataflow.overtaking import Unaligned, UnalignedInTime
from onefold.engine.dataflow.subtask import Phase, Subtask, SubtaskState
from onefold.engine.driver.restarts import WorkerFailed
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.mechanisms.ack.tracking import Tracking
from onefold.engine.state import is_flight
from onefold.engine.testing.model_state import ModelBackend, ModelSnapshots, ModelStoring
from onefold.engine.workers.flights import share
from onefold.engine.workers.messages import Done, Ready
from onefold.engine.workers.worker import Reader, clocks_by_uid
from onefold.flow.time.clocks import SourceEnd

Choose = Callable[[Sequence[str]], str]
Action = Callable[[], None]

WORKERS_DIE, THEIR_WORK_LANDS_LATER = "workers die", "workers die, and what they prepare lands later"


@dataclass(frozen=True)
class FleetSubject:
    """What is tried: the production code, or a mutant of it. `replaced` as `TransactionWorld` has it."""

    subtask: type[Subtask] = Subtask
    inbound: type[Inbound] = Inbound
    in_order: Callable[[Sequence[int]], Inbound] = InOrder
    groups: Callable[[int, int, int], Sequence[int]] = key_groups_of_subtask
    unaligned: type[Unaligned] = Unaligned
    in_time: type[UnalignedInTime] = UnalignedInTime
    replayed: Callable[[EpochInFlight], EpochInFlight] = lambda epoch: epoch
    backend: type[ModelBackend] = ModelBackend
    share: Callable[[Exchange, Iterable[pa.RecordBatch], int, int, int], Iterable[pa.RecordBatch]] = share
    flights: Callable[[ModelSnapshots, Sequence[str]], Sequence[str]] = lambda _, decided: decided
    spoil: Callable[[Subtask], None] = lambda _subtask: None  # once it is restored
    tells_timers: bool = True  # that were restored
    tracking: type[Tracking] = Tracking
    replaced: tuple[tuple[Any, str, Any], ...] = ()
    ends_at: Callable[[int, int], int] = lambda cut, _planned: cut  # by which cut is asked whether the source has ended


@dataclass
class _Worker:
    subtasks: list[Subtask]
    readers: dict[int, Reader]


@dataclass
class ModelFleet:
    """As `driver.fleet.Fleet`; `choose` picks what happens next. `late` is what lands after its workers have
    died; `in_order` and `alignment` as `Launch` has them. `is_complete` says whether all sinks have an epoch."""

    plan: Plan
    workers: int
    sinks: Mapping[int, Sink]
    snapshots: ModelSnapshots
    subject: FleetSubject
    choose: Choose
    in_order: frozenset[int] = frozenset()
    alignment: Alignment = ALIGNED
    late: list[Action] = field(default_factory=list)
    worked_s: float = 0.0
    aligned: bool = False
    is_complete: Callable[[int], bool] = lambda _epoch: False
    READER: ClassVar[type[Reader]] = Reader

    @property
    def is_up(self) -> bool:
        return bool(self._workers)

    def __post_init__(self) -> None:
        self._workers: list[_Worker] = []
        self._channels: dict[tuple[int, int, int], deque[Item]] = {}
        self._express: deque[tuple[int, int, int, int]] = deque()  # exchange, sender, receiver, run
        self._done: dict[tuple[int, int], list[Acknowledge]] = {}
        self._runs = 0

    def launch(self, handles: Sequence[str]) -> None:
        self._workers = [self._worker(index, handles) for index in range(self.workers)]

    def begin(self, splits: Mapping[int, Sequence[Split]], ends: Mapping[int, SourceEnd], task: TaskId | None) -> int:
        self._runs += 1
        for index, worker in enumerate(self._workers):
            for chain, reader in worker.readers.items():
                mine = [split for split in splits.get(chain, ()) if int(split.partition[-1]) % self.workers == index]
                reader.begin(self._runs, mine, ends.get(chain))
        if task is not None:
            self.open(self._runs, task)
        return self._runs

    def open(self, run: int, task: TaskId) -> None:
        for worker in self._workers:
            for subtask in worker.subtasks:
                subtask.open(run, task, self.aligned)

    def completed(self, epoch: int, timestamp_ms: int) -> None:
        del timestamp_ms
        require(self.is_complete(epoch), f"workers are told of epoch {epoch} once it is complete")

    def collect(self, run: int) -> list[Done]:
        chains = len(self.plan.chains)
        while any(len(self._done.get((run, index), ())) < chains for index in range(self.workers)):
            actions = self.actions()
            chosen = self.choose([*actions, WORKERS_DIE, THEIR_WORK_LANDS_LATER])
            if chosen in actions:
                actions[chosen]()
                continue
            if chosen == THEIR_WORK_LANDS_LATER:
                subtasks = [s for w in self._workers for s in w.subtasks]
                self.late += [partial(_prepare, s) for s in subtasks if s.phase is Phase.PREPARING]
                self.late += [s.storing.land for s in subtasks if isinstance(s.storing, ModelStoring)]
            raise WorkerFailed("worker-lost", "the workers have died")
        return [self._joined(run, index) for index in range(self.workers)]

    def look(self) -> Ready:
        subtasks = [subtask for worker in self._workers for subtask in worker.subtasks]
        timers = [ms for subtask in subtasks if (ms := subtask.timer_ms) is not None]
        clocks = clocks_by_uid((subtask.chain, subtask.clock) for subtask in subtasks)
        return Ready(min(timers, default=None) if self.subject.tells_timers else None, clocks)

    def end(self) -> None:
        self._workers, self._channels, self._done, self._runs = [], {}, {}, 0
        self._express.clear()

    def actions(self) -> dict[str, Action]:
        """All that may happen next, by a name: snapshots that are stored, steps of subtasks, deliveries, and reads.
        Where barriers overtake, what is announced and read comes before what is delivered."""
        found: dict[str, Action] = {}
        deliveries: dict[str, Action] = {}
        for index, worker in enumerate(self._workers):
            for subtask in reversed(worker.subtasks):
                if isinstance(subtask.storing, ModelStoring):
                    found[f"{index}: chain {subtask.chain.number} is stored"] = partial(self._store, index, subtask)
                if subtask.is_ready:
                    found[f"{index}: chain {subtask.chain.number}"] = partial(self._step, index, subtask)
        for way, items in self._channels.items():
            if items:
                deliveries[f"exchange {way[0]}: {way[1]} to {way[2]}"] = partial(self._deliver, way)
        if self._express:
            exchange, sender, receiver, _ = self._express[0]
            found[f"exchange {exchange}: {sender} tells {receiver}"] = self._tell
        if not self.alignment.overtakes:
            found |= deliveries
        for index, worker in enumerate(self._workers):
            for chain, reader in worker.readers.items():
                if reader.has_orders:
                    subtask = worker.subtasks[chain]
                    found[f"{index}: reads"] = partial(self._read, index, reader, subtask)
        return found | deliveries

    def run_on(self) -> None:
        """Let the workers do all they can, in the first order there is."""
        while actions := self.actions():
            next(iter(actions.values()))()

    def _step(self, index: int, subtask: Subtask) -> None:
        for effect in subtask.step():
            match effect:
                case Send(exchange, to, item):
                    self._channels.setdefault((exchange, index, to), deque()).append(item)
                case Announce(exchange, to, told):
                    self._express.append((exchange, index, to, told))
                case Acknowledge(run):
                    self._done.setdefault((run, index), []).append(effect)

    def _store(self, index: int, subtask: Subtask) -> None:
        if isinstance(subtask.storing, ModelStoring):
            subtask.storing.land()
        self._look(index, subtask)

    def _look(self, index: int, subtask: Subtask) -> None:
        if (done := subtask.acknowledged()) is not None:
            self._done.setdefault((done.run, index), []).append(done)

    def _tell(self) -> None:
        exchange, sender, receiver, run = self._express.popleft()
        self._target(exchange, receiver).announced(exchange, sender, run)

    def _target(self, exchange: int, receiver: int) -> Subtask:
        chain = self.plan.chain_of(self.plan.exchanges[exchange].target).number
        return self._workers[receiver].subtasks[chain]

    def _deliver(self, way: tuple[int, int, int]) -> None:
        exchange, sender, receiver = way
        subtask = self._target(exchange, receiver)
        subtask.put(exchange, sender, self._channels[way].popleft())
        self._look(receiver, subtask)

    def _read(self, index: int, reader: Reader, subtask: Subtask) -> None:
        item = reader.read()
        if item is not None:
            subtask.put(None, index, item)

    def _joined(self, run: int, index: int) -> Done:
        done = self._done.pop((run, index))
        clocks = clocks_by_uid((subtask.chain, subtask.clock) for subtask in self._workers[index].subtasks)
        timers = [each.timer_ms for each in done if each.timer_ms is not None]
        committables = tuple(c for each in done for c in each.committables)
        return Done(run, committables, {}, min(timers, default=None), 0.0, clocks)

    def _worker(self, index: int, handles: Sequence[str]) -> _Worker:
        subtasks = [self._subtask(chain, index, handles) for chain in self.plan.chains]
        readers = {c.number: self.READER(c.source, highest=c.highest) for c in self.plan.chains if c.source is not None}
        return _Worker(subtasks, readers)

    def _subtask(self, chain: Chain, index: int, handles: Sequence[str]) -> Subtask:
        of, state, backend = self.plan.graph.max_parallelism, None, None
        if chain.uid is not None:
            backend = self.subject.backend(self.snapshots, chain.uid)
            snapshots = [handle for handle in handles if not is_flight(handle)]
            backend.restore(snapshots, self.subject.groups(index, self.workers, of))
            state = SubtaskState(backend, self.snapshots.keep)
        logics = {
            n.number: make_logic(self.plan.graph, n, self.sinks, backend, index, self.workers) for n in chain.nodes
        }
        is_in_order = chain.head.number in self.in_order
        alignment, keep = alignment_in(self.plan, chain, self.alignment), self.snapshots.keep_flight
        overtakes = self.alignment.overtakes, partial(keep, chain.head.name, index)
        subtask = self.subject.subtask(
            chain, index, self.workers, of, logics, state, is_in_order, None, alignment, *overtakes
        )
        turns = chain.turns(subtask.channels)
        if is_in_order:
            subtask.inbound = self.subject.in_order(turns)
        elif isinstance(subtask.inbound, UnalignedInTime):
            subtask.inbound.__class__ = self.subject.in_time
        elif isinstance(subtask.inbound, Unaligned):
            subtask.inbound.__class__ = self.subject.unaligned
        elif type(subtask.inbound) is Inbound:
            subtask.inbound = self.subject.inbound(len(turns))
        self._restore_flights(subtask, index, handles)
        self.subject.spoil(subtask)
        return subtask

    def _restore_flights(self, subtask: Subtask, index: int, handles: Sequence[str]) -> None:
        chain, of = subtask.chain, self.plan.graph.max_parallelism
        decided = self.subject.flights(self.snapshots, [*filter(is_flight, handles)])
        flights = (self.snapshots.flights[handle] for handle in decided)
        of_chain = [(sender, flight) for head, sender, flight in flights if head == chain.head.name]
        ways = {each.input: each for each in chain.inputs}
        if isinstance(subtask.inbound, UnalignedInTime):
            for epochs in (flight for sender, flight in of_chain if sender == index):
                by_ways = [{ways[at].number: batches for at, batches in each.batches.items()} for each in epochs]
                of_ways = (replace(each, batches=by) for each, by in zip(epochs, by_ways, strict=True))
                subtask.restore([*map(self.subject.replayed, of_ways)])
            return
        for number, exchange in ways.items():
            mine = [batch for _, (of_all,) in of_chain for batch in of_all.batches.get(number, ())]
            shares = [*self.subject.share(exchange, mine, index, self.workers, of)] if mine else []
            subtask.restore([EpochInFlight({exchange.number: shares})])


def _prepare(subtask: Subtask) -> None:
    for _ in subtask.step():
        pass  # nobody hears of it
    if isinstance(subtask.storing, ModelStoring):
        subtask.storing.land()
