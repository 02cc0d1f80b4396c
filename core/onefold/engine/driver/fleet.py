"""The workers of a flow, as the driver sees them: all of them run, or none does."""

from __future__ import annotations

import logging
import selectors
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onefold.core.checks import require
from onefold.core.contract import TaskId
from onefold.core.errors import InternalError, OnefoldError, Retriable, named
from onefold.core.source import Split
from onefold.core.values.names import signal_name
from onefold.engine.dataflow.alignment import Alignment
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks, Traffic, WorkerWatch
from onefold.engine.driver.restarts import WorkerFailed
from onefold.engine.workers.fork_server import ForkServer
from onefold.engine.workers.frames import Incoming, Outgoing
from onefold.engine.workers.messages import Begin, Completed, Done, Failed, Launch, Link, OpenedEpoch, Ready, Stop
from onefold.flow.graph.nodes import Shipping
from onefold.flow.time.clocks import SourceEnd

LOOK_S = 1.0
STOP_S = 10.0  # for what does not return, once the flow is to end
DRAIN_S = 60.0  # for an epoch that goes on

log = logging.getLogger("onefold")


@dataclass
class _Member:
    pid: int
    orders: Outgoing
    answers: Incoming


class Fleet:
    """`workers` processes that `fork_server` forks. Runs are counted from each launch on, from 1."""

    def __init__(self, fork_server: ForkServer, plan: Plan, workers: int, marks: Marks | None = None) -> None:
        self._fork_server, self._plan, self._workers = fork_server, plan, workers
        marks = marks or Marks(workers, len(plan.streams), len(plan.graph.nodes))
        self._watch = WorkerWatch(plan, marks)
        self.traffic = Traffic(plan, marks)
        self._epochs: dict[int, int] = {}  # of the runs that are open
        self._drains_s: float | None = None  # since when the flow is to end
        self._members: list[_Member] = []
        self._ready: dict[int, Ready] = {}
        self._done: dict[int, dict[int, Done]] = {}
        self._runs = 0
        self.aligned = False  # whether no barrier overtakes in the runs that begin from now on
        self._launched_s = 0.0
        self.worked_s = 0.0  # for how long the last worker that failed had made progress

    @property
    def is_up(self) -> bool:
        return bool(self._members)

    def launch(self, given: Launch) -> None:
        """Fork all workers. Their state is restored before they take orders. Each is told what is given, but for its
        own number and links."""
        require(not self._members, "workers are launched when none runs")
        self._launched_s, self.worked_s = time.monotonic(), 0.0
        self._watch.ended()  # those before these
        links: list[list[tuple[Link, socket.socket]]] = [[] for _ in range(self._workers)]
        for link in self._links(given.alignment):
            out, into = socket.socketpair()
            links[link.sender].append((link, out))
            links[link.receiver].append((link, into))
        for index in range(self._workers):
            mine, theirs = socket.socketpair()
            pid = self._fork_server.fork(theirs, [sock for _, sock in links[index]])
            member = _Member(pid, Outgoing(mine), Incoming(mine))
            self._members.append(member)
            keys = tuple(link for link, _ in links[index])
            member.orders.message(replace(given, index=index, parallelism=self._workers, links=keys))
            member.orders.send_all()

    def begin(self, splits: Mapping[int, Sequence[Split]], ends: Mapping[int, SourceEnd], task: TaskId | None) -> int:
        """Have the workers process these splits, by the number of the chain that reads; `task` is None where that is
        ahead of the epoch, `ends` as `Begin` has it. Returns the run's number."""
        self._runs += 1
        opened = None if task is None else self._opened(self._runs, task)
        shares = [
            {chain: share(of, index, self._workers) for chain, of in splits.items()} for index in range(self._workers)
        ]
        self._order([Begin(self._runs, share, ends, opened) for share in shares])
        return self._runs

    def open(self, run: int, task: TaskId) -> None:
        """The epoch of a run that began ahead is open."""
        self._order([self._opened(run, task)] * self._workers)

    def completed(self, epoch: int, timestamp_ms: int) -> None:
        """The epoch is complete. A worker that is gone is found when it is to do something."""
        for member in self._members:
            member.orders.message(Completed(epoch, timestamp_ms))
            with suppress(OSError):
                member.orders.send()

    def collect(self, run: int) -> list[Done]:
        """Wait until all workers have acknowledged the run. Raises the error of one that failed, WorkerFailed where one
        is lost, and where the error is not onefold's; Retriable where the flow is to end, and the run does not."""
        self._watch.forget()
        with selectors.DefaultSelector() as selector:
            for index, member in enumerate(self._members):
                selector.register(member.answers.socket, selectors.EVENT_READ, index)
            while len(self._done.setdefault(run, {})) < self._workers:
                for key, _ in selector.select(LOOK_S):
                    self._receive(key.data)
                self._look(run)
        self._epochs.pop(run, None)
        done = self._done.pop(run)
        return [done[index] for index in range(self._workers)]

    def look(self) -> Ready | None:
        """What was restored by now; None where no worker is ready. Raises as `collect` does."""
        for index in range(len(self._members)):
            self._receive(index)
        if not self._ready:
            return None
        timers = [ready.timer_ms for ready in self._ready.values() if ready.timer_ms is not None]
        return Ready(min(timers, default=None), next(iter(self._ready.values())).clocks)

    def drain(self) -> None:
        """Also from a signal's handler: what workers are at gets a bounded time from now on."""
        if self._drains_s is None:
            self._drains_s = time.monotonic()

    def stop(self) -> None:
        """Let the workers end in good order, if there are any."""
        if not self._members:
            return
        try:
            self._order([Stop()] * self._workers)
            for member in self._members:
                member.answers.socket.setblocking(True)
                member.answers.socket.settimeout(STOP_S)
                while member.answers.socket.recv(1):  # that it is ready, for one
                    pass
        except (OSError, OnefoldError) as error:  # what it was at is no epoch's any more
            log.debug("a worker did not end by itself: %s", error)
        self.end()

    def end(self) -> None:
        """Kill the workers. What they have prepared stays."""
        members, self._members = self._members, []
        for member in members:
            self._fork_server.end(member.pid)
            member.orders.socket.close()
        self._watch.ended()
        self._ready, self._done, self._runs, self._epochs = {}, {}, 0, {}

    def _look(self, run: int) -> None:
        """At the workers that have not acknowledged the run. Raises Retriable where the flow is to end, and one of them
        does not return, or all of them together go on for too long."""
        epoch, stuck = self._epochs.get(run), []
        for index, member in enumerate(self._members):
            if index not in self._done.get(run, {}) and (name := self._watch.look(index, member.pid, epoch)):
                stuck.append(f"worker {index} (process {member.pid}) is in {name!r}")
        since_s = self._drains_s
        left_s = 0.0 if since_s is None else since_s + (STOP_S if stuck else DRAIN_S) - time.monotonic()
        if since_s is not None and left_s <= 0.0:
            why = ", ".join(stuck) or "its workers still work on it"
            raise Retriable(
                "epoch-not-ended",
                f"the flow was asked to end, and epoch {epoch} does not: {why}. Nothing of it was decided, and the next"
                " start runs it again",
            )

    def _opened(self, run: int, task: TaskId) -> OpenedEpoch:
        self._epochs[run] = task.epoch
        return OpenedEpoch(run, replace(task, writers=self._workers), self.aligned)

    def _order(self, orders: Sequence[object]) -> None:
        for index, (member, order) in enumerate(zip(self._members, orders, strict=True)):
            try:
                member.orders.message(order)
                member.orders.send_all()
            except OSError:
                self._receive(index)  # raises what it said before it ended
                raise self._lost(index) from None

    def _receive(self, index: int) -> None:
        try:
            for answer in self._members[index].answers.messages():
                match answer:
                    case Ready():
                        self._ready[index] = answer
                    case Done(run):
                        self._done.setdefault(run, {})[index] = answer
                    case Failed(idle_s=idle_s):
                        if idle_s is not None:
                            self.worked_s = max(0.0, time.monotonic() - self._launched_s - idle_s)
                        raise _error_of(answer)
                    case _:
                        self._hear(answer)
        except EOFError:
            raise self._lost(index) from None

    def _hear(self, told: object) -> None:
        """Of what only the workers of another mechanism tell."""
        raise InternalError("worker-told", f"a worker has told {told!r}")

    def _lost(self, index: int) -> WorkerFailed:
        """A worker is gone; the others are ended, too, since they wait for it."""
        pid = self._members[index].pid
        how = self._fork_server.end(pid)
        lost = self._members.pop(index)
        lost.orders.socket.close()
        self.end()
        told = f"signal {signal_name(-how)}" if how < 0 else f"status {how}"
        return WorkerFailed(
            "worker-lost", f"worker {index} (process {pid}) has ended by {told} in the middle of its work"
        )

    def _links(self, alignment: Alignment) -> list[Link]:
        everyone = range(self._workers)
        shipped = [each.number for each in self._plan.exchanges if each.edge.shipping is not Shipping.FORWARD]
        return [
            Link(exchange, sender, receiver)
            for exchange in ([*shipped, None] if alignment.overtakes else shipped)
            for sender in everyone
            for receiver in everyone
            if sender != receiver
        ]


def share(splits: Sequence[Split], index: int, workers: int) -> tuple[Split, ...]:
    """A worker's splits: the same partitions in every epoch, so that it keeps what it has open for them."""
    return tuple(split for split in splits if owner_of(split.partition, workers) == index)


def owner_of(partition: str, workers: int) -> int:
    _, _, number = partition.rpartition("/")
    return (int(number) if number.isdecimal() else zlib.crc32(partition.encode())) % workers


def _error_of(failed: Failed) -> OnefoldError:
    """The error that ended a worker, as one of this process."""
    found = None if failed.code is None else named(failed.kind, failed.code, failed.message)
    return found or WorkerFailed("worker-failed", f"a worker of the flow has failed by {failed.kind}: {failed.message}")
