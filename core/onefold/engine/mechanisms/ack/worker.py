"""A worker whose subtasks acknowledge batches, which it tells the driver after each turn of its loop."""

from __future__ import annotations

import socket
import time
import uuid
from random import SystemRandom
from typing import NoReturn

from onefold.core.contract import TaskId
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.progress_marks import Mark, Marks
from onefold.engine.dataflow.subtask import SubtaskState
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask, Edges, UnkeptBackend
from onefold.engine.state.state_backend import Frozen
from onefold.engine.state.storage import Storage
from onefold.engine.workers.frames import Outgoing, receive_message
from onefold.engine.workers.messages import Done, Launch, Ready
from onefold.engine.workers.worker import Worker, tell_failure

__all__ = ["subtask_of", "work"]


class _AckWorker(Worker):
    edges: Edges
    _waits = False

    def _watch(self) -> None:
        self._tell()
        super()._watch()

    def _answer(self, message: Done | Ready) -> None:
        if isinstance(message, Done):  # behind all that it acknowledges
            self.edges.xors[-message.run] ^= 1 << self._index
            self._tell()
        super()._answer(message)

    def _tell(self) -> None:
        if self.edges.xors or self.edges.ended or self._waits != (self.edges.waiting > 0):
            told = self.edges.take()
            self._waits = told.waits
            self._answers.message(told)
            self._send(self._answers)


def work(plan: Plan, marks: Marks, control: socket.socket, sockets: list[socket.socket]) -> None:
    """What a forked process does as a worker of the plan."""
    launch = receive_message(control)
    if launch is None:
        return  # the driver has ended meanwhile
    try:
        worker = _worker(plan, marks, launch, control, sockets)
    except BaseException as error:
        tell_failure(Outgoing(control), error)
    else:
        worker.run()


def _worker(
    plan: Plan, marks: Marks, launch: Launch, control: socket.socket, sockets: list[socket.socket]
) -> _AckWorker:
    mark, edges = marks.of(launch.index), Edges(lambda: SystemRandom().getrandbits(64))
    began = TaskId(plan.graph.flow, 0, 0, time.time_ns() // 1_000_000, uuid.uuid4())
    subtasks = [subtask_of(plan, chain, launch, edges, began, mark) for chain in plan.chains]
    readers = {
        chain.number: AckReader(launch.sources[chain.head.number], launch.guarded, subtasks[chain.number], launch.index)
        for chain in plan.chains
        if chain.source is not None
    }
    links = dict(zip(launch.links, sockets, strict=True))
    made = _AckWorker(plan, launch.index, control, links, subtasks, readers, mark)
    made.edges = edges
    return made


def subtask_of(plan: Plan, chain: Chain, launch: Launch, edges: Edges, began: TaskId, mark: Mark | None) -> AckSubtask:
    """The subtask of a chain, with no state yet."""
    groups, state = plan.graph.max_parallelism, None
    if chain.uid is not None:
        backend = UnkeptBackend(Storage("", plan.graph.flow), 0, groups)
        backend.restore((), key_groups_of_subtask(launch.index, launch.parallelism, groups))
        state = SubtaskState(backend, _kept)
    logics = {
        node.number: make_logic(
            plan.graph, node, launch.sinks, state and state.backend, launch.index, launch.parallelism
        )
        for node in chain.nodes
    }
    subtask = AckSubtask(chain, launch.index, launch.parallelism, groups, logics, state, mark=mark)
    subtask.begin(edges, began)
    return subtask


def _kept(task: TaskId, frozen: Frozen) -> NoReturn:
    raise AssertionError(f"no epoch has a snapshot: {task}, {frozen}")
