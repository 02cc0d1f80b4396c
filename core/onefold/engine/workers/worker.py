"""A worker: one subtask of each chain, a reader of each source, and the event loop that moves bytes between them and
other workers."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from onefold.core.checks import present
from onefold.core.errors import OnefoldError, kind_of
from onefold.core.failpoints import failpoint
from onefold.core.source import Part, Source, Split
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.engine.dataflow.chain_operators import operator_failed
from onefold.engine.dataflow.chains import Chain, Exchange, Plan
from onefold.engine.dataflow.items import Acknowledge, Announce, Barrier, Effect, Item, Send
from onefold.engine.dataflow.progress_marks import NODE, NOWHERE, STEPS, STREAMS, Mark, NodeMark, no_mark
from onefold.engine.dataflow.subtask import Phase, Subtask
from onefold.engine.own_process import OwnProcess
from onefold.engine.workers.answering import QueryServer
from onefold.engine.workers.frames import Incoming, Outgoing, decoded_item, encoded_item
from onefold.engine.workers.full_collections import FullCollections
from onefold.engine.workers.messages import Begin, Completed, Done, Failed, Link, OpenedEpoch, Ready, Stop
from onefold.engine.workers.storing import StoringThread
from onefold.flow.time.clocks import ClockStatus, Highest, SourceEnd

LOOKS_S = 0.05
QUEUED_BYTES_MAX = 8 << 20  # on one channel before a subtask, and in one socket's buffer: each may pass it by one batch


class Reader:
    """Its orders are runs, each of some splits; it works on one after the other. `guarded` as `Source.read` has it.
    `highest` is there where its records say something of event time: each run then has its end."""

    def __init__(self, source: Source, guarded: bool = False, highest: Highest | None = None) -> None:
        self._source, self._guarded, self._highest = source, guarded, highest
        self._runs: deque[tuple[int, deque[Split], SourceEnd | None]] = deque()
        self._parts: Iterator[Part] | None = None
        self._partition = ""  # of these parts
        self._has_told = False

    def begin(self, run: int, splits: Sequence[Split], end: SourceEnd | None = None) -> None:
        self._runs.append((run, deque(splits), end))

    @property
    def has_orders(self) -> bool:
        return bool(self._runs)

    def read(self) -> Item | None:
        """The next part of the running epoch; behind all of them what they say of event time, and its barrier. None
        where a split has ended, and the next may follow."""
        run, splits, end = self._runs[0]
        if self._parts is None:
            if not splits and self._highest is not None and not self._has_told:
                self._has_told = True
                return self._highest.take(present(end, "a run of such a source has its end"))
            if not splits:
                self._runs.popleft()
                self._has_told = False
                return Barrier(run)
            split = splits.popleft()
            self._partition, self._parts = split.partition, iter(self._source.read(split, guarded=self._guarded))
        part = next(self._parts, None)
        if part is None:
            self._parts = None
        elif self._highest is not None:
            try:
                self._highest.see(self._partition, part)
            except Exception as error:  # of a policy of the user's own
                raise operator_failed(self._highest.uid, error) from error
        return part


class _DriverGone(Exception):
    """The driver has ended, and so does the worker."""


class Worker:
    """`sockets` are those of its links. `subtasks` has one of each of the plan's chains, in their order.

    What is further down the flow comes first, so that channels hold little. Where barriers overtake, all take turns
    behind the sources, so that a slow subtask keeps its worker neither from reading up to the barrier nor from sending
    that on."""

    def __init__(
        self,
        plan: Plan,
        index: int,
        control: socket.socket,
        sockets: Mapping[Link, socket.socket],
        subtasks: Sequence[Subtask],
        readers: Mapping[int, Reader],
        mark: Mark | None = None,
        storing: StoringThread | None = None,
        answering: QueryServer | None = None,
        alignment: Alignment = ALIGNED,
    ) -> None:
        self._take_turns = alignment.overtakes
        self._order = [*reversed(subtasks)]
        self._looks_s = LOOKS_S if alignment.overtakes and alignment.timeout_s else None  # whether one may overtake
        self._index, self._subtasks, self._readers, self._storing = index, subtasks, readers, storing
        self._answering = answering
        self._orders, self._answers = Incoming(control), Outgoing(control)
        self._outgoing = {(k.exchange, k.receiver): Outgoing(s) for k, s in sockets.items() if k.sender == index}
        incoming = {k: Incoming(s) for k, s in sockets.items() if k.receiver == index}
        self._incoming = {(k.exchange, k.sender): sock for k, sock in incoming.items() if k.exchange is not None}
        self._express = {k.sender: sock for k, sock in incoming.items() if k.exchange is None}
        self._exchanges = plan.exchanges
        self._heads = [chain.head.number + 1 for chain in plan.chains]
        self._targets = [subtasks[plan.chain_of(exchange.target).number] for exchange in plan.exchanges]
        streams, nodes = len(plan.streams), len(plan.graph.nodes)
        self._mark = no_mark(streams, nodes) if mark is None else mark
        self._nodes = [NodeMark(self._mark, STREAMS + 2 * streams, node) for node in range(nodes)]
        self._acknowledged: dict[int, list[tuple[Chain, Acknowledge]]] = {}
        self._halted: dict[Subtask, Iterator[Effect]] = {}
        self._held: dict[Subtask, int] = {}  # those that wait for room, and the nodes whose batches they have
        self._is_over = False
        self._own, self._collections = OwnProcess(), FullCollections()
        self._worked_at_s: float | None = None  # when it last made progress, on the monotonic clock
        self._selector = selectors.DefaultSelector()
        self._watched: set[socket.socket] = set()
        self._gone: set[socket.socket] = set()  # of workers that have ended: the driver then ends this one, too

    def run(self) -> None:
        """Until the driver stops it, or has ended itself."""
        try:
            self._loop()
        except _DriverGone:
            self._abort()
        except BaseException as error:  # a function of the user's may also exit
            self._own.check()
            self._abort()
            at_s = self._worked_at_s
            tell_failure(self._answers, error, None if at_s is None else time.monotonic() - at_s)
        else:
            for subtask in self._subtasks:
                subtask.close()

    def _loop(self) -> None:
        self._selector.register(self._orders.socket, selectors.EVENT_READ, self._take_orders)
        if self._storing is not None:
            self._selector.register(self._storing.socket, selectors.EVENT_READ, self._storing.woken)
        if self._answering is not None:
            self._answering.watch(self._selector)
        for subtask in self._subtasks:
            self._note_state(subtask)
        timers = (subtask.timer_ms for subtask in self._subtasks)
        clocks = clocks_by_uid((subtask.chain, subtask.clock) for subtask in self._subtasks)
        self._answer(Ready(min((ms for ms in timers if ms is not None), default=None), clocks))
        while not self._is_over:
            worked = self._work()
            self._own.check()
            self._mark[NODE] = NOWHERE
            self._collections.look()
            if worked:
                self._mark[STEPS] += 1
                self._worked_at_s = time.monotonic()
            self._watch()
            is_asked = self._answering is not None and self._answering.turn()
            for key, _ in self._selector.select(0 if worked or is_asked else self._looks_s):
                key.data()

    def _work(self) -> bool:
        """What is stored by now, one step of a subtask, or one part of a source."""
        for subtask in self._subtasks:
            if (done := subtask.acknowledged()) is not None:
                self._perform(subtask, done)
                return True
        order = self._order
        if self._take_turns:
            urgent = [subtask for subtask in order if subtask.is_urgent]
            if not urgent and self._read():
                return True
            order = [*urgent, *order]
        for subtask in order:
            if subtask in self._halted or subtask.is_ready:
                full = next((exchange for exchange, to in subtask.receivers if self._is_full(exchange, to)), None)
                if full is None or subtask.is_urgent:
                    self._step(subtask)
                    if self._take_turns:
                        self._order.remove(subtask)
                        self._order.append(subtask)
                    return True
                self._hold(subtask, full)
        return self._read()

    def _read(self) -> bool:
        for number, reader in self._readers.items():
            subtask = self._subtasks[number]
            if reader.has_orders and subtask.queued_bytes(None, self._index) < QUEUED_BYTES_MAX:
                self._mark[NODE] = self._heads[number]
                item = reader.read()
                if item is not None:
                    subtask.put(None, self._index, item)
                return True
        return False

    def _step(self, subtask: Subtask) -> None:
        """A step halts where a channel is full, since a function may make any number of rows of one."""
        if (node := self._held.pop(subtask, None)) is not None:
            self._nodes[node].held(False)
        effects = self._halted.pop(subtask, None)
        if effects is None:
            if subtask.phase is Phase.PREPARING:
                failpoint("writers:written")
            effects = subtask.step()
        for effect in effects:
            self._perform(subtask, effect)
            if not isinstance(effect, Send):
                continue
            exchange = self._exchanges[effect.exchange]
            if self._is_full(exchange, effect.to) and not subtask.is_urgent:
                self._halted[subtask] = effects
                self._hold(subtask, exchange)
                return

    def _hold(self, subtask: Subtask, full: Exchange) -> None:
        """It waits until there is room, and its turn. Until then the place is the first that was found full."""
        if subtask not in self._held:
            self._held[subtask] = full.edge.source
            self._nodes[full.edge.source].held(True)

    def _note_state(self, subtask: Subtask) -> None:
        if (size := subtask.state_size) is not None:
            self._nodes[subtask.chain.head.number].keeps(size.entries, size.bytes)

    def _perform(self, subtask: Subtask, effect: Effect) -> None:
        match effect:
            case Send(exchange, to, item) if to == self._index:
                self._targets[exchange].put(exchange, self._index, item)
            case Send(exchange, to, item):
                self._outgoing[exchange, to].put(encoded_item(item))
                self._send(self._outgoing[exchange, to])
            case Announce(exchange, to, run) if to == self._index:
                self._targets[exchange].announced(exchange, self._index, run)
            case Announce(exchange, to, run):
                self._outgoing[None, to].message((exchange, run))
                self._send(self._outgoing[None, to])
            case Acknowledge(run):
                done = self._acknowledged.setdefault(run, [])
                done.append((subtask.chain, effect))
                self._note_state(subtask)
                self._nodes[subtask.chain.head.number].acknowledges(effect)
                if len(done) == len(self._subtasks):
                    failpoint("writers:prepared")
                    self._answer(_done(run, self._acknowledged.pop(run)))

    def _answer(self, message: Done | Ready) -> None:
        self._answers.message(message)
        self._send(self._answers)

    def _is_full(self, exchange: Exchange, to: int) -> bool:
        """Whether a channel holds as much as it may."""
        if to == self._index:
            return self._targets[exchange.number].queued_bytes(exchange.number, to) > QUEUED_BYTES_MAX
        return self._outgoing[exchange.number, to].pending_bytes > QUEUED_BYTES_MAX

    # Sockets

    def _watch(self) -> None:
        """Wait for room for what is to be sent, and for frames of channels that hold less than they may."""
        if self._answers.pending_bytes:
            self._send(self._answers)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._answers.pending_bytes else 0)
        if self._selector.get_key(self._orders.socket).events != wanted:
            self._selector.modify(self._orders.socket, wanted, self._take_orders)
        for outgoing in self._outgoing.values():
            has_more = outgoing.pending_bytes > 0
            self._watch_for(outgoing.socket, selectors.EVENT_WRITE, has_more, partial(self._send, outgoing))
        for (exchange, sender), incoming in self._incoming.items():
            has_room = self._targets[exchange].queued_bytes(exchange, sender) < QUEUED_BYTES_MAX
            receive = partial(self._receive, exchange, sender)
            self._watch_for(incoming.socket, selectors.EVENT_READ, has_room, receive)
        for sender, incoming in self._express.items():
            self._watch_for(incoming.socket, selectors.EVENT_READ, True, partial(self._hear, sender))

    def _watch_for(self, sock: socket.socket, event: int, wanted: bool, then: Callable[[], None]) -> None:
        wanted = wanted and sock not in self._gone
        if wanted and sock not in self._watched:
            self._selector.register(sock, event, then)
            self._watched.add(sock)
        elif not wanted and sock in self._watched:
            self._selector.unregister(sock)
            self._watched.discard(sock)

    def _send(self, outgoing: Outgoing) -> None:
        try:
            outgoing.send()
        except OSError:
            if outgoing is self._answers:
                raise _DriverGone from None
            self._gone.add(outgoing.socket)

    def _receive(self, exchange: int, sender: int) -> None:
        target, schema, incoming = self._targets[exchange], self._exchanges[exchange].schema, self._incoming
        try:
            for frame in incoming[exchange, sender].frames():
                target.put(exchange, sender, decoded_item(frame, schema))
                if target.queued_bytes(exchange, sender) >= QUEUED_BYTES_MAX:
                    return
        except EOFError:
            self._gone.add(incoming[exchange, sender].socket)

    def _hear(self, sender: int) -> None:
        try:
            for exchange, run in self._express[sender].messages():
                self._targets[exchange].announced(exchange, sender, run)
        except EOFError:
            self._gone.add(self._express[sender].socket)

    def _take_orders(self) -> None:
        try:
            orders = [*self._orders.messages()]
        except EOFError:
            raise _DriverGone from None
        for order in orders:
            match order:
                case Begin(run, splits, ends, opened):
                    if opened is not None:
                        self._open(opened)
                    for number, reader in self._readers.items():
                        reader.begin(run, splits.get(number, ()), ends.get(number))
                case OpenedEpoch():
                    self._open(order)
                case Completed(epoch, timestamp_ms) if self._answering is not None:
                    self._answering.completed(epoch, timestamp_ms)
                case Stop():
                    self._is_over = True

    def _open(self, order: OpenedEpoch) -> None:
        for subtask in self._subtasks:
            subtask.open(order.run, order.task, order.aligned)

    def _abort(self) -> None:
        for subtask in self._subtasks:
            subtask.abort()


def _done(run: int, acknowledged: Sequence[tuple[Chain, Acknowledge]]) -> Done:
    timers = [each.timer_ms for _, each in acknowledged if each.timer_ms is not None]
    return Done(
        run,
        tuple(committable for _, each in acknowledged for committable in each.committables),
        {chain.number: each.bad for chain, each in acknowledged if each.bad},
        min(timers, default=None),
        sum(each.prepared_s for _, each in acknowledged),
        clocks_by_uid((chain, each.clock) for chain, each in acknowledged),
    )


def clocks_by_uid(clocks: Iterable[tuple[Chain, ClockStatus | None]]) -> dict[str, ClockStatus]:
    """Of the chains that go by event time, by the uids of their heads."""
    return {str(chain.uid): clock for chain, clock in clocks if clock is not None}


def tell_failure(answers: Outgoing, error: BaseException, idle_s: float | None = None) -> None:
    """Tell the driver by which error this worker ends. `idle_s` as `Failed` has it."""
    failed = Failed(type(error).__name__, None, str(error), idle_s)
    if isinstance(error, OnefoldError):
        failed = Failed(kind_of(error), error.code, error.message, idle_s)
    answers.message(failed)
    answers.send_all()
