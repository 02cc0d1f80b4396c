"""A worker whose subtasks acknowledge batches, which it tells the driver after each turn of its loop."""

from __future__ import annotations

import socket
import time
import uuid
from concurrent.futures import Future
from functools import partial
from random import SystemRandom

from onefold.core.contract import TaskId
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.progress_marks import Mark, Marks
from onefold.engine.dataflow.subtask import SubtaskState
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask, UnkeptBackend
from onefold.engine.mechanisms.ack.tracking import Told
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import Done, Launch, Ready
from onefold.engine.workers.worker import Worker
from onefold.engine.workers.worker_setup import worker_of

__all__ = ["subtask_of", "work"]


class _AckWorker(Worker):
    told: Told
    _waited = 0

    def _watch(self) -> None:
        self._tell()
        super()._watch()

    def _answer(self, message: Done | Ready) -> None:
        if isinstance(message, Done):  # behind all that it acknowledges
            self.told.xors[-message.run] ^= 1 << self._index
            self._tell()
        super()._answer(message)

    def _tell(self) -> None:
        told = self.told
        if told.xors or told.ended or self._waited != told.waiting:
            self._waited = told.waiting
            self._answers.message(told)
            self._send(self._answers)
            told.clear()


def work(plan: Plan, marks: Marks, control: socket.socket, sockets: list[socket.socket]) -> None:
    """What a forked process does as a worker of the plan."""
    worker_of(plan, marks, _worker)(control, sockets)


def _worker(
    plan: Plan, launch: Launch, control: socket.socket, sockets: list[socket.socket], mark: Mark | None
) -> _AckWorker:
    told = Told()
    now_ms = time.time_ns() // 1_000_000
    subtasks = [subtask_of(plan, chain, launch, told, now_ms, mark) for chain in plan.chains]
    readers = {
        chain.number: AckReader(launch.sources[chain.head.number], launch.guarded, subtasks[chain.number], launch.index)
        for chain in plan.chains
        if chain.source is not None
    }
    links = dict(zip(launch.links, sockets, strict=True))
    made = _AckWorker(plan, launch.index, control, links, subtasks, readers, mark)
    made.told = told
    return made


def subtask_of(
    plan: Plan, chain: Chain, launch: Launch, told: Told, now_ms: int, mark: Mark | None = None
) -> AckSubtask:
    """The subtask of a chain, with no state yet."""
    graph, index, workers = plan.graph, launch.index, launch.parallelism
    backend = state = None
    if chain.uid is not None:
        backend = UnkeptBackend(Storage("", graph.flow), 0, graph.max_parallelism)
        backend.restore((), key_groups_of_subtask(index, workers, graph.max_parallelism))
        state = SubtaskState(backend, lambda *_: Future())  # nobody asks
    logics = {node.number: make_logic(graph, node, launch.sinks, backend, index, workers) for node in chain.nodes}
    subtask = AckSubtask(chain, index, workers, graph.max_parallelism, logics, state, mark=mark)
    subtask.begin(told, partial(SystemRandom().getrandbits, 64), TaskId(graph.flow, 0, 0, now_ms, uuid.uuid4()))
    return subtask
