"""A worker whose subtasks acknowledge batches, which it tells the driver after each turn of its loop."""

from __future__ import annotations

import socket
import time
import uuid
from random import SystemRandom
from typing import Any

from onefold.core.contract import TaskId
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.mechanisms.ack.subtask import AckReader, AckSubtask, begun
from onefold.engine.mechanisms.ack.tracking import Told
from onefold.engine.workers.messages import Done, Ready
from onefold.engine.workers.worker import Worker
from onefold.engine.workers.worker_setup import WorkerParts, run_worker


class _AckWorker(Worker):
    def __init__(self, plan: Plan, *parts: Any) -> None:
        super().__init__(plan, *parts)
        task = TaskId(plan.graph.flow, 0, 0, time.time_ns() // 1_000_000, uuid.uuid4())
        self._told = begun(self._subtasks, self._readers, task, SystemRandom())

    def _watch(self) -> None:
        self._tell()
        super()._watch()

    def _answer(self, message: Done | Ready) -> None:
        self._tell()  # all that it acknowledges
        super()._answer(message)

    def _tell(self) -> None:
        if self._told != Told():
            self._answers.message(self._told)
            self._send(self._answers)
            self._told.clear()


def work(plan: Plan, marks: Marks, control: socket.socket, sockets: list[socket.socket]) -> None:
    """What a forked process does as a worker of the plan."""
    run_worker(plan, marks, control, sockets, WorkerParts(_AckWorker, AckSubtask, AckReader))
