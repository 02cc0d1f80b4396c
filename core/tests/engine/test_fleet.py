"""What the driver hears of a worker that ends."""

from __future__ import annotations

import signal
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import TaskId
from onefold.core.errors import ConfigError, DataLoss, OnefoldError, Retriable
from onefold.engine.dataflow import progress_marks
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.dataflow.progress_marks import NODE, NOWHERE, STEPS, Marks
from onefold.engine.driver import fleet as fleet_module
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.restarts import WorkerFailed
from onefold.engine.workers.frames import Incoming, Outgoing, receive_message
from onefold.engine.workers.messages import Failed, Launch, Ready, RestoreFrom
from onefold.engine.workers.worker import Worker, tell_failure
from onefold.engine.workers.worker_setup import run_worker
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Reading, Reducing, Writing

STUCK_S = 0.2
ROWS = pa.schema({"key": pa.string()})


class OneWorker:
    """A fork server whose only worker is this process."""

    worker: socket.socket

    def fork(self, control: socket.socket, sockets: list[socket.socket]) -> int:
        del sockets
        self.worker = control
        return 1

    def end(self, pid: int) -> int:
        del pid
        return -9


def reducing() -> Plan:
    source, sink = Reading(cast(Any, "a source")), Writing(cast(Any, None))
    reduced = Node(1, Reducing(max, ("key",)), (Edge(0, Shipping.KEYED, ("key",)),), ROWS, (), "reduced")
    nodes = Node(0, source, (), ROWS, (), "rows"), reduced, Node(2, sink, (Edge(1),), None)
    return plan(Graph("shop", nodes))


def launched() -> tuple[Fleet, socket.socket]:
    fork_server = OneWorker()
    fleet = Fleet(cast(Any, fork_server), reducing(), 1)
    fleet.launch(Launch(0, 1, (), {}, {}, None))
    return fleet, fork_server.worker


@pytest.mark.parametrize("error", [Retriable("server-down", "no answer"), ConfigError("option-value", "wrong")])
def test_a_worker_that_ends_before_its_next_order_is_known_by_its_own_error(error: OnefoldError) -> None:
    fleet, worker = launched()
    with worker:
        assert isinstance(receive_message(worker), Launch)
        tell_failure(Outgoing(worker), error)
    with pytest.raises(type(error)) as raised:
        fleet.begin({}, {}, None)
    fleet.end()
    assert (raised.value.code, raised.value.message) == (error.code, error.message)


def test_a_flow_that_has_ended_does_not_fail_for_what_a_worker_was_at() -> None:
    fleet, worker = launched()
    with worker:
        assert isinstance(receive_message(worker), Launch)
        tell_failure(Outgoing(worker), Retriable("server-down", "no answer"))
    fleet.stop()
    assert not fleet.is_up


@pytest.mark.parametrize("by", [Fleet.look, lambda fleet: fleet.begin({}, {}, None)], ids=["a look", "an order"])
def test_a_worker_that_is_gone_is_lost(by: Callable[[Fleet], object]) -> None:
    fleet, worker = launched()
    worker.close()
    with raises(WorkerFailed, "worker-lost"):
        by(fleet)
    assert not fleet.is_up


def test_a_worker_that_a_signal_without_a_name_has_ended_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, worker = launched()
    monkeypatch.setattr(fleet._fork_server, "end", lambda _pid: -(signal.SIGRTMIN + 1))
    worker.close()
    with raises(WorkerFailed, "worker-lost"):
        fleet.look()


def test_a_look_finds_the_first_timer_that_was_restored_and_waits_for_none() -> None:
    fleet, worker = launched()
    assert fleet.look() is None
    with worker:
        answers = Outgoing(worker)
        answers.message(Ready(1_700_000_000_000))
        answers.send_all()
        assert fleet.look() == Ready(1_700_000_000_000)
        fleet.end()
        assert fleet.look() is None, "other workers restore others"


def test_a_worker_that_cannot_restore_its_state_says_why(tmp_path: Path) -> None:
    driver, worker = socket.socketpair()
    with driver, worker:
        state = RestoreFrom(str(tmp_path), "shop", "memory", 1, (f"1/0-{'a' * 32}",))
        orders = Outgoing(driver)
        orders.message(Launch(0, 1, (), {}, {}, state))
        orders.send_all()
        run_worker(reducing(), None, worker, [])
        (said,) = Incoming(driver).messages()
    assert isinstance(said, Failed)
    assert (said.kind, said.code) == (DataLoss.__name__, "state-file-missing")
    assert said.idle_s is None, "it made no progress"


class Stuck:
    """A reader that gives one part, and then hears nothing from its server for a while."""

    has_orders = True

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> None:
        self.reads += 1
        if self.reads > 1:
            time.sleep(STUCK_S)
            raise Retriable("server-down", "no answer")


class NothingToDo:
    """A subtask."""

    is_ready, timer_ms, clock, state_size, chain = False, None, None, None, None

    def queued_bytes(self, *_: Any) -> int:
        return 0

    def abort(self) -> None:
        return

    def acknowledged(self) -> None:
        return


def test_a_worker_that_a_server_ends_says_for_how_long_it_has_come_forward() -> None:
    fork_server = OneWorker()
    fleet = Fleet(cast(Any, fork_server), reducing(), 1)
    fleet.launch(Launch(0, 1, (), {}, {}, None))
    time.sleep(2 * STUCK_S)
    with fork_server.worker as worker:
        assert isinstance(receive_message(worker), Launch)
        subtasks = cast(Any, [NothingToDo()] * 2)
        Worker(reducing(), 0, worker, {}, subtasks, {0: cast(Any, Stuck())}).run()
        with raises(Retriable, "server-down"):
            fleet.collect(1)
    assert 2 * STUCK_S <= fleet.worked_s < 3 * STUCK_S
    fleet.end()


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[Fleet, socket.socket, memoryview]:
    """A fleet that looks soon, its worker's socket, and the worker's mark; epoch 7 has begun."""
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.01)
    monkeypatch.setattr(progress_marks, "SILENT_S", 0.03)
    fork_server, marks = OneWorker(), Marks(1)
    fleet = Fleet(cast(Any, fork_server), reducing(), 1, marks)
    fleet.launch(Launch(0, 1, (), {}, {}, None))
    fleet.begin({}, {}, TaskId("shop", 1, 7, 0, uuid.UUID(int=0)))
    return fleet, fork_server.worker, marks.of(0)


def test_a_new_worker_is_not_where_the_one_before_it_has_ended() -> None:
    fork_server, marks = OneWorker(), Marks(2)
    for index in range(2):
        marks.of(index)[NODE] = 1 + 1
    fleet = Fleet(cast(Any, fork_server), reducing(), 1, marks)
    fleet.launch(Launch(0, 1, (), {}, {}, None))
    with fork_server.worker:
        assert [marks.of(index)[NODE] for index in range(2)] == [NOWHERE, NOWHERE], "they restore their state"
    fleet.end()


def test_a_worker_whose_function_does_not_return_is_named_and_given_up_when_the_flow_is_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_module, "STOP_S", 0.3)
    fleet, worker, mark = watched(monkeypatch)
    with worker:
        mark[NODE] = 1 + 1
        fleet.drain()
        with raises(Retriable, "epoch-not-ended", "'reduced'"):
            fleet.collect(1)
    fleet.end()
    told = [record.getMessage() for record in caplog.records if "has been in" in record.getMessage()]
    assert "worker 0 (process 1) has been in 'reduced' for 0 s, in epoch 7" in told[0]
    assert 2 <= len(told) <= 4, "less and less often"


@pytest.mark.parametrize("node", [0, 2])
def test_an_epoch_that_goes_on_has_longer_when_the_flow_is_to_end(monkeypatch: pytest.MonkeyPatch, node: int) -> None:
    monkeypatch.setattr(fleet_module, "STOP_S", 0.0)
    monkeypatch.setattr(fleet_module, "DRAIN_S", 0.3)
    fleet, worker, mark = watched(monkeypatch)

    def step(*_: object) -> None:
        mark[STEPS] += 1

    seen = progress_marks.WorkerWatch.look
    monkeypatch.setattr(progress_marks.WorkerWatch, "look", lambda *args: (step(), seen(*args))[1])
    with worker:
        mark[NODE] = node
        fleet.drain()
        began_s = time.monotonic()
        with raises(Retriable, "epoch-not-ended"):
            fleet.collect(1)
        assert time.monotonic() - began_s > 0.2
    fleet.end()
