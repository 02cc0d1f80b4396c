"""A worker's event loop."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from onefold.engine.dataflow.chains import Exchange, plan
from onefold.engine.dataflow.items import Effect, Send
from onefold.engine.dataflow.progress_marks import Marks, Traffic
from onefold.engine.dataflow.subtask import Phase
from onefold.engine.state.state_backend import StateSize
from onefold.engine.workers.frames import Incoming
from onefold.engine.workers.messages import Failed, Ready
from onefold.engine.workers.worker import QUEUED_BYTES_MAX, Worker
from onefold.flow.graph import Edge, Graph, Node, Reading, Reducing, Shipping, Writing

ROWS = pa.schema({"key": pa.string()})
BATCH = pa.record_batch({"key": ["x" * 1000] * 1000})
SOURCE = Node(0, Reading(cast(Any, "a source")), (), ROWS, (), "rows")
REDUCED = Node(1, Reducing(max, ("key",)), (Edge(0, Shipping.KEYED, ("key",)),), ROWS, (), "reduced")
PLAN = plan(Graph("shop", (SOURCE, REDUCED, Node(2, Writing(cast(Any, None)), (Edge(1),), None))))


class Endless:
    """A subtask whose function makes rows of one row without an end."""

    is_ready, phase, state_size = True, Phase.TAKING, None
    acknowledged = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.receivers: list[tuple[Exchange, int]] = [(PLAN.exchanges[0], 0)]
        self.steps = 0

    def step(self) -> Iterator[Effect]:
        self.steps += 1
        while True:
            yield Send(0, 0, BATCH)


class Slow:
    """A subtask that takes nothing by itself."""

    is_ready, timer_ms, state_size = False, 7, StateSize(3, 500)
    receivers, chain = (), PLAN.chains[1]
    acknowledged = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.bytes = 0

    def put(self, exchange: int, sender: int, item: pa.RecordBatch) -> None:
        del exchange, sender
        self.bytes += item.nbytes

    def queued_bytes(self, *_: Any) -> int:
        return self.bytes

    def abort(self) -> None:
        return


def test_a_step_halts_where_a_channel_is_full_and_goes_on_where_it_was() -> None:
    driver, control = socket.socketpair()
    endless, slow, marks = Endless(), Slow(), Marks(1, len(PLAN.streams), 3)
    with driver, control:
        worker = Worker(PLAN, 0, control, {}, cast(Any, [endless, slow]), {}, marks.of(0))
        assert marks.held() == {0: 0, 1: 0, 2: 0}
        for _ in range(3):
            assert worker._work()
            assert QUEUED_BYTES_MAX < slow.bytes <= QUEUED_BYTES_MAX + BATCH.nbytes
            assert not worker._work()
            assert marks.held() == {0: 1, 1: 0, 2: 0}, "it waits to hand a batch on"
            slow.bytes = 0
        assert endless.steps == 1
        marks.clear()
        assert marks.held() == {0: 0, 1: 0, 2: 0}


class Once(Endless):
    """A subtask that makes one batch a step."""

    def step(self) -> Iterator[Effect]:
        yield Send(0, 0, BATCH)


def test_a_subtask_that_is_not_begun_for_want_of_room_waits_until_it_takes_its_step() -> None:
    driver, control = socket.socketpair()
    slow, marks = Slow(), Marks(1, len(PLAN.streams), 3)
    traffic = Traffic(PLAN, marks)
    with driver, control:
        worker = Worker(PLAN, 0, control, {}, cast(Any, [Once(), slow]), {}, marks.of(0))
        slow.bytes = QUEUED_BYTES_MAX + 1
        assert not worker._work()
        traffic.look()
        slow.bytes = 0
        assert worker._work()
        traffic.look()
        assert (traffic.backpressured[0], traffic.looks) == (1, 2)


def test_the_state_that_is_kept_is_marked_once_it_is_restored() -> None:
    marks = Marks(2, len(PLAN.streams), 3)
    for index in range(2):
        driver, control = socket.socketpair()
        driver.close()
        with control:
            Worker(PLAN, index, control, {}, cast(Any, [Slow(), Slow()]), {}, marks.of(index)).run()
    assert Traffic(PLAN, marks).state() == {1: (6, 1000)}


class Raising:
    """A reader."""

    has_orders = True

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def read(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), EOFError("cut"), KeyboardInterrupt()], ids=repr)
def test_a_worker_says_by_what_it_ends_also_where_that_is_no_usual_error(error: BaseException) -> None:
    driver, control = socket.socketpair()
    with driver, control:
        Worker(PLAN, 0, control, {}, cast(Any, [Slow(), Slow()]), {0: cast(Any, Raising(error))}).run()
        said = [*Incoming(driver).messages()]
    assert said == [Ready(7), Failed(type(error).__name__, None, str(error))]


def test_a_worker_ends_quietly_with_its_driver() -> None:
    driver, control = socket.socketpair()
    driver.close()
    with control:
        Worker(PLAN, 0, control, {}, cast(Any, [Slow(), Slow()]), {}).run()
