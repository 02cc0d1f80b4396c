"""The life of a worker process: what it makes of its first message, and then runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import TaskId
from onefold.core.extras import uncollected
from onefold.engine.dataflow.alignment import alignment_in
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.progress_marks import Mark, Marks
from onefold.engine.dataflow.subtask import KeepFlight, Kept, Subtask, SubtaskState
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.queries.place import socket_of
from onefold.engine.queries.questions import Views, queryable
from onefold.engine.queries.undo import QueryableBackend, StateMoment
from onefold.engine.state.participant import committable
from onefold.engine.state.state_backend import Frozen, StateBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.answering import QueryServer
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.flights import FlightFile, InFlight, flights_by_chain
from onefold.engine.workers.frames import Outgoing, receive_message
from onefold.engine.workers.full_collections import make_rare
from onefold.engine.workers.messages import Launch, RestoreFrom
from onefold.engine.workers.snapshots import restore, snapshots_by_uid
from onefold.engine.workers.storing import StoringThread, stored_at_once
from onefold.engine.workers.worker import Reader, Worker, tell_failure

KeepIn = Callable[[Storage, TaskId, Frozen], "Future[Kept]"]  # where a subtask's files are


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker is made of: another mechanism has others."""

    worker: Callable[..., Worker] = Worker
    subtask: type[Subtask] = Subtask
    reader: type[Reader] = Reader


def warm(plan: Plan) -> None:
    """Import what every worker needs. State makes arrays of Python's values, and pyarrow's first one imports pandas,
    where that is installed, for a third of a second."""
    if plan.has_state:
        pa.array([], pa.null())


def run_worker(
    plan: Plan,
    marks: Marks | None,
    control: socket.socket,
    sockets: list[socket.socket],
    parts: WorkerParts = WorkerParts(),
) -> None:
    """What a forked process does as a worker of that plan."""
    launch = receive_message(control)
    if launch is None:
        return  # the driver has ended meanwhile
    require(isinstance(launch, Launch), launch)
    launched(plan, launch, control, sockets, None if marks is None else marks.of(launch.index), parts)


def launched(
    plan: Plan,
    launch: Launch,
    control: socket.socket,
    sockets: list[socket.socket],
    mark: Mark | None,
    parts: WorkerParts,
) -> None:
    """What it does once it is launched: it works until its driver stops it, or fails."""
    try:
        with uncollected():  # up to `make_rare`: what is restored is never looked through
            worker = _worker(plan, launch, control, sockets, mark, parts)
            make_rare()
    except BaseException as error:
        tell_failure(Outgoing(control), error)
    else:
        worker.run()


def _worker(
    plan: Plan,
    launch: Launch,
    control: socket.socket,
    sockets: list[socket.socket],
    place: Mark | None,
    parts: WorkerParts,
) -> Worker:
    snapshots, flights, storing = dict[str, list[str]](), InFlight(), None
    if launch.state is not None:
        snapshots = snapshots_by_uid(launch.state, plan)
        flights = flights_by_chain(launch.state, plan, launch.index, launch.parallelism)
        storing = StoringThread()
    keep = keeping(stored_at_once if storing is None else storing.store)
    views: dict[str, Views] = {}
    subtasks = [
        subtask_of(plan, chain, launch, snapshots, keep, place, views, parts.subtask, chain.number in flights)
        for chain in plan.chains
    ]
    for number, epochs in flights.items():
        subtasks[number].restore(epochs)
    readers = {
        c.number: parts.reader(launch.sources[c.head.number], launch.guarded, c.highest)
        for c in plan.chains
        if c.source is not None
    }
    links = dict(zip(launch.links, sockets, strict=True))
    answering = None if launch.queries is None else QueryServer(socket_of(launch.queries, launch.index), views)
    of = launch.alignment
    return parts.worker(plan, launch.index, control, links, subtasks, readers, place, storing, answering, of)


def subtask_of(
    plan: Plan,
    chain: Chain,
    launch: Launch,
    snapshots: Mapping[str, Sequence[str]],
    keep: KeepIn,
    place: Mark | None,
    views: dict[str, Views] | None = None,
    of: type[Subtask] = Subtask,
    has_flight: bool = False,
) -> Subtask:
    """The subtask of a chain that a launch asks for. `snapshots` are those that it restores, by their operators, and
    there may be flights. What can be asked of it goes into `views`."""
    groups = key_groups_of_subtask(launch.index, launch.parallelism, plan.graph.max_parallelism)
    state = None
    if chain.uid is not None:
        restoring = launch.state or RestoreFrom("", plan.graph.flow, "memory", 0, ())  # where nothing is kept
        storage = Storage(restoring.root, restoring.flow)
        backend: StateBackend = made_backend(
            restoring.backend, storage, restoring.generation, plan.graph.max_parallelism, restoring.scratch
        )
        if chain.head.queryable and launch.queries is not None:
            backend = QueryableBackend(backend, StateMoment(restoring.epoch, restoring.timestamp_ms))
        restore(backend, storage, plan.graph, chain.head, snapshots.get(chain.uid, ()), groups)
        state = SubtaskState(backend, partial(keep, storage))
    backend_of = None if state is None else state.backend
    logics = {
        node.number: make_logic(plan.graph, node, launch.sinks, backend_of, launch.index, launch.parallelism)
        for node in chain.nodes
    }
    if isinstance(backend_of, QueryableBackend) and views is not None:
        views[str(chain.uid)] = queryable(plan.graph, chain.head, logics[chain.head.number], backend_of)
    return of(
        chain,
        launch.index,
        launch.parallelism,
        plan.graph.max_parallelism,
        logics,
        state,
        chain.head.number in launch.in_order,
        place,
        alignment_in(plan, chain, launch.alignment, has_flight),
        launch.alignment.overtakes,
        None if launch.state is None else _keeping_flights(plan, chain, launch, launch.state, keep),
    )


def _keeping_flights(plan: Plan, chain: Chain, launch: Launch, into: RestoreFrom, keep: KeepIn) -> KeepFlight:
    storage, of, head = Storage(into.root, into.flow), plan.graph.max_parallelism, chain.head.name
    at = launch.index, launch.parallelism
    return lambda task, flight: keep(storage, task, FlightFile(storage, task, of, head, flight, *at))


def keeping(store: Callable[[Callable[[], Kept]], Future[Kept]]) -> KeepIn:
    """How a subtask's snapshot of an epoch is stored in its storage: by `store`, which calls what it is given now or
    later."""

    def kept(storage: Storage, task: TaskId, frozen: Frozen) -> Kept:
        before = storage.written_bytes
        try:
            handle = frozen.store()
        finally:
            frozen.release()
        found = committable(handle)
        require((found.generation, found.epoch) == (task.generation, task.epoch), f"a snapshot of {task}, not {found}")
        return replace(found, bytes=storage.written_bytes - before), time.monotonic()

    return lambda storage, task, frozen: store(partial(kept, storage, task, frozen))
