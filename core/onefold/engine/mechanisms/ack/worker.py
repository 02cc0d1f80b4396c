"""A worker whose subtasks acknowledge batches, which it tells the driver after each turn of its loop."""

from __future__ import annotations

import socket
import time
import uuid
from functools import partial
from random import SystemRandom
from typing import Any

from onefold.core.contract import TaskId
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask
from onefold.engine.mechanisms.ack.tracking import Told
from onefold.engine.workers.messages import Done, Ready
from onefold.engine.workers.worker import Worker
from onefold.engine.workers.worker_setup import WorkerParts, worker_of

__all__ = ["work"]


class _AckWorker(Worker):
    def __init__(self, plan: Plan, index: int, *parts: Any) -> None:
        super().__init__(plan, index, *parts)
        self._told, self._waited = Told(), 0
        task = TaskId(plan.graph.flow, 0, 0, time.time_ns() // 1_000_000, uuid.uuid4())
        for number, subtask in enumerate(self._subtasks):
            assert isinstance(subtask, AckSubtask)
            subtask.begin(self._told, partial(SystemRandom().getrandbits, 64), task)
            if isinstance(reader := self._readers.get(number), AckReader):
                reader.index, reader.subtask = index, subtask

    def _watch(self) -> None:
        self._tell()
        super()._watch()

    def _answer(self, message: Done | Ready) -> None:
        if isinstance(message, Done):  # behind all that it acknowledges
            self._told.xors[-message.run] ^= 1 << self._index
            self._tell()
        super()._answer(message)

    def _tell(self) -> None:
        told = self._told
        if told.xors or told.ended or self._waited != told.waiting:
            self._waited = told.waiting
            self._answers.message(told)
            self._send(self._answers)
            told.clear()


def work(plan: Plan, marks: Marks, control: socket.socket, sockets: list[socket.socket]) -> None:
    """What a forked process does as a worker of the plan."""
    worker_of(plan, marks, WorkerParts(_AckWorker, AckSubtask, AckReader))(control, sockets)
