"""A flow in this process alone: its subtasks take turns, without workers, and what its sinks would get is kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import pyarrow as pa

from onefold.core.contract import Sink, TaskId
from onefold.core.source import Part
from onefold.engine.dataflow.chains import plan
from onefold.engine.dataflow.items import Acknowledge, Barrier, Send
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.driver.running import check_runs_here
from onefold.engine.state import STATE
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.workers.messages import Launch, RestoreFrom
from onefold.engine.workers.snapshots import snapshots_by_uid
from onefold.engine.workers.storing import stored_at_once
from onefold.engine.workers.worker import clocks_by_uid
from onefold.engine.workers.worker_setup import keeping, subtask_of
from onefold.flow.graph.nodes import Graph
from onefold.flow.time.clocks import ClockStatus, SourceEnd

T = TypeVar("T")


class InlineFlow:
    """The chains, subtasks and state of a flow as one worker has them. `root` is the folder of its state, which is
    kept by that backend.

    Raises ConfigError for an operator that only Spark runs.
    """

    def __init__(self, graph: Graph, root: str, backend: str = MemoryBackend.name) -> None:
        self._root, self._backend = root, backend
        self._epoch = self._generation = 0
        self._handles: tuple[str, ...] = ()
        self._subtasks: list[Subtask] = []
        self.change(graph)

    def change(self, graph: Graph) -> None:
        """Another version of the flow, from the state that the last epoch left."""
        check_runs_here(graph)
        self.close()
        self.graph = graph
        self._plan = plan(graph)
        self.restore()

    def restore(self) -> None:
        """Begin anew from the state that the last epoch left: whatever else is in memory is gone."""
        self.close()
        self._generation += 1
        self._run = 0
        self._highest = {chain.head.number: of for chain in self._plan.chains if (of := chain.highest) is not None}
        self._written: dict[str, list[pa.RecordBatch]] = {of.sink.name: [] for _, of in self.graph.writings()}
        state, snapshots = None, {}
        if self._plan.has_state:
            state = RestoreFrom(self._root, self.graph.flow, self._backend, self._generation, self._handles, self._root)
            snapshots = snapshots_by_uid(state, self._plan)
        sinks: dict[int, Any] = {
            node.number: _Kept(of.sink, self._written[of.sink.name]) for node, of in self.graph.writings()
        }
        launch = Launch(0, 1, (), {}, sinks, state)
        keep = keeping(stored_at_once)
        for chain in self._plan.chains:
            self._subtasks.append(subtask_of(self._plan, chain, launch, snapshots, keep, None))

    def run(
        self,
        parts: Mapping[int, Iterable[tuple[str, Part]]],
        ends: Mapping[int, SourceEnd],
        timestamp_ms: int,
        told: Callable[[pa.RecordBatch], Iterable[T]],
    ) -> dict[str, list[T]]:
        """An epoch at that time (ms since 1970) of these parts with their partitions, by the numbers of the nodes that
        read, whose sources stand at these `ends` then. Returns what each sink would get, by its name, as `told` tells
        it. Raises what the flow's functions and `told` raise: then nothing of the epoch is left."""
        if len(self._subtasks) < len(self._plan.chains):  # the epoch, or the restore, before has failed
            self.restore()
        task = TaskId(self.graph.flow, self._generation, self._epoch + 1, timestamp_ms, uuid.uuid4())
        self._run += 1
        handles: list[str] = []
        try:
            for subtask in self._subtasks:
                subtask.open(self._run, task)
            for number, subtask in enumerate(self._subtasks):
                if self._plan.chains[number].source is not None:
                    node = subtask.chain.head.number
                    highest = self._highest.get(node)
                    for partition, part in parts.get(node, ()):
                        if highest is not None:
                            highest.see(partition, part)
                        subtask.put(None, 0, part)
                        self._step(handles)
                    if highest is not None:
                        subtask.put(None, 0, highest.take(ends.get(node, SourceEnd(()))))
                    subtask.put(None, 0, Barrier(self._run))
            self._step(handles)
            written = {sink: [each for batch in of for each in told(batch)] for sink, of in self._written.items()}
        except BaseException:
            with suppress(Exception):  # of a processor's own close: the first error is what has to be read
                self.close()
            raise
        self._epoch, self._handles = task.epoch, tuple(handles)
        for batches in self._written.values():
            batches.clear()
        return written

    def clocks(self) -> dict[str, ClockStatus]:
        """Of the operators that go by event time, by their uids."""
        return clocks_by_uid((subtask.chain, subtask.clock) for subtask in self._subtasks)

    def close(self) -> None:
        subtasks, self._subtasks = self._subtasks, []
        with ExitStack() as closing_all:
            for subtask in subtasks:
                closing_all.callback(subtask.close)
                closing_all.callback(subtask.abort)

    def _step(self, handles: list[str]) -> None:
        """Until no subtask can go on. What is further down the flow comes first, as in a worker."""
        while (ready := next((each for each in reversed(self._subtasks) if each.is_ready), None)) is not None:
            for effect in ready.step():
                match effect:
                    case Send(exchange, _, item):
                        target = self._plan.chain_of(self._plan.exchanges[exchange].target)
                        self._subtasks[target.number].put(exchange, 0, item)
                    case Acknowledge(_, committables):
                        handles += [each.handle for each in committables if each.sink == STATE]


class _Kept:
    """A sink that keeps the rows which the one of the flow would get, as that one wants them arranged."""

    def __init__(self, sink: Sink, into: list[pa.RecordBatch]) -> None:
        self._sink, self._into = sink, into

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def writer(self, task: TaskId) -> _Kept:
        del task
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self._into.append(batch)

    def prepare(self) -> None:
        return None

    def abort(self) -> None:
        return
