"""A worker's event loop."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import OutOfResources
from onefold.engine.dataflow.chains import Exchange, plan
from onefold.engine.dataflow.items import Acknowledge, Announce, Effect, Send
from onefold.engine.dataflow.progress_marks import NODE, Marks, Traffic
from onefold.engine.dataflow.subtask import Kept, Phase
from onefold.engine.state.participant import committable
from onefold.engine.state.state_backend import StateSize
from onefold.engine.workers.frames import Incoming
from onefold.engine.workers.messages import Done, Failed, Link, Ready
from onefold.engine.workers.storing import StoringThread
from onefold.engine.workers.worker import QUEUED_BYTES_MAX, Worker
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import Reading, Reducing, Writing

ROWS = pa.schema({"key": pa.string()})
BATCH = pa.record_batch({"key": ["x" * 1000] * 1000})
SOURCE = Node(0, Reading(cast(Any, "a source")), (), ROWS, (), "rows")
REDUCED = Node(1, Reducing(max, ("key",)), (Edge(0, Shipping.KEYED, ("key",)),), ROWS, (), "reduced")
PLAN = plan(
    Graph("shop", (SOURCE, REDUCED, Node(2, Writing(cast(Any, SimpleNamespace(name="shop"))), (Edge(1),), None)))
)


class Endless:
    """A subtask whose function makes rows of one row without an end."""

    is_ready, is_urgent, phase, state_size = True, False, Phase.TAKING, None
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

    is_ready, timer_ms, clock, state_size = False, 7, None, StateSize(3, 500)
    receivers, chain = (), PLAN.chains[1]
    acknowledged = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.bytes = 0
        self.announcements: list[tuple[int, int, int]] = []

    def announced(self, exchange: int, sender: int, run: int) -> None:
        self.announcements.append((exchange, sender, run))

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


class Urgent(Endless):
    """A subtask with a barrier that overtakes, as soon as its channel is full."""

    @property
    def is_urgent(self) -> bool:  # type: ignore[override]
        return self.steps > 0

    def step(self) -> Iterator[Effect]:
        self.steps += 1
        for _ in range(20):
            yield Send(0, 0, BATCH)
        yield Announce(0, 0, 1)


def test_a_step_before_a_barrier_that_overtakes_passes_what_a_channel_may_hold() -> None:
    driver, control = socket.socketpair()
    urgent, slow = Urgent(), Slow()
    with driver, control:
        worker = Worker(PLAN, 0, control, {}, cast(Any, [urgent, slow]), {})
        for times in (1, 2):
            assert worker._work()
            assert slow.bytes == 20 * times * BATCH.nbytes > QUEUED_BYTES_MAX
            assert slow.announcements == [(0, 0, 1)] * times


def test_an_announcement_overtakes_what_waits_for_a_worker() -> None:
    driver, control = socket.socketpair()
    out, into = socket.socketpair()
    express_out, express_into = socket.socketpair()
    sender_of = {Link(0, 0, 1): out, Link(None, 0, 1): express_out}
    receiver_of = {Link(0, 0, 1): into, Link(None, 0, 1): express_into}
    full, slow = Full(), Slow()
    with driver, control, out, into, express_out, express_into:
        sender = Worker(PLAN, 0, control, sender_of, cast(Any, [full, Slow()]), {})
        receiver = Worker(PLAN, 1, control, receiver_of, cast(Any, [Endless(), slow]), {})
        slow.bytes = QUEUED_BYTES_MAX + 1
        assert sender._work()
        receiver._selector.register(control, selectors.EVENT_READ)
        receiver._watch()
        for key, _ in receiver._selector.select(0):
            key.data()
        assert slow.announcements == [(0, 0, 1)] and slow.bytes == QUEUED_BYTES_MAX + 1


class Full(Urgent):
    """One that sends to the other worker."""

    is_urgent = True  # type: ignore[assignment]

    def step(self) -> Iterator[Effect]:
        for _ in range(20):
            yield Send(0, 1, BATCH)
        yield Announce(0, 1, 1)


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


class Acknowledging(Endless):
    """A subtask that has acknowledged an epoch."""

    is_ready, chain, state_size = False, PLAN.chains[1], StateSize(3, 500)

    def __init__(self, done: Acknowledge) -> None:
        super().__init__()
        self.left = [done]
        self.acknowledged = lambda: self.left.pop() if self.left else None  # type: ignore[assignment,return-value]


def test_what_a_subtask_has_acknowledged_its_epoch_with_is_marked_for_the_driver_until_workers_end() -> None:
    marks = Marks(2, len(PLAN.streams), 3)
    traffic = Traffic(PLAN, marks)
    done = Acknowledge(1, (), prepared_s=0.5, epoch=7, aligned_s=0.25, held_bytes=2**40, stored_bytes=70)
    driver, control = socket.socketpair()
    with driver, control:
        worker = Worker(PLAN, 1, control, {}, cast(Any, [Acknowledging(done), Slow()]), {}, marks.of(1))
        before_s = time.time()
        assert worker._work()
    source, reduced = traffic.acknowledged(7)
    assert (source.names, reduced.names) == (("rows",), ("reduced", "shop"))
    assert source.subtasks == (None, None) == traffic.acknowledged(8)[1].subtasks
    missing, found = reduced.subtasks
    assert missing is None and found is not None and before_s - 1 < found.at_s < time.time() + 1
    assert (found.aligned_s, found.held_bytes, found.prepared_s) == (0.25, 2**40, 0.5)
    assert (found.state_bytes, found.stored_bytes) == (500, 70)
    marks.of(0)[NODE] = 2
    assert traffic.at() == ("reduced", None)
    marks.clear()
    assert traffic.acknowledged(7)[1].subtasks == (None, None) and traffic.at() == (None, None)


class Acknowledged(Slow):
    """A subtask that has acknowledged an epoch, and goes on waiting."""

    def __init__(self, done: Acknowledge) -> None:
        super().__init__()
        self.left = [done]
        self.acknowledged = lambda: self.left.pop() if self.left else None  # type: ignore[assignment,return-value]


def test_an_answer_that_the_socket_does_not_hold_arrives_however_late_the_driver_reads() -> None:
    rows = Committable("shop", SinkKind.LAST_RESOURCE, "direct/1", 1, 1, 5, payload=bytes(4 << 20))
    driver, control = socket.socketpair()
    with driver, control:
        subtasks = [Acknowledged(Acknowledge(1, committables)) for committables in ((rows,), ())]
        worker = threading.Thread(target=Worker(PLAN, 0, control, {}, cast(Any, subtasks), {}).run)
        worker.start()
        time.sleep(0.3)  # it has sent what there was room for, and waits
        incoming, said, end_s = Incoming(driver), list[Any](), time.monotonic() + 10
        while len(said) < 2 and time.monotonic() < end_s:
            said += incoming.messages()
        driver.shutdown(socket.SHUT_RDWR)
        worker.join(10)
    assert not worker.is_alive()
    assert [type(each) for each in said] == [Ready, Done]
    assert len(said[1].committables[0].payload) == 4 << 20


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


FIRST, SECOND = ((committable(f"1/{epoch}-{epoch:032x}"), float(epoch)) for epoch in (1, 2))
FULL = OutOfResources("state-disk-full", "the disk is full")


def failing() -> Kept:
    raise FULL


def test_one_is_stored_after_the_other_and_each_wakes_the_loop() -> None:
    thread, may_store, order = StoringThread(), threading.Event(), list[int]()

    def first() -> Kept:
        may_store.wait(60)
        order.append(1)
        return FIRST

    def second() -> Kept:
        order.append(2)
        return SECOND

    stored = [thread.store(each) for each in (first, second, failing)]
    assert not any(each.done() for each in stored)
    may_store.set()
    with selectors.DefaultSelector() as selector:
        selector.register(thread.socket, selectors.EVENT_READ)
        while not stored[-1].done():
            assert selector.select(60)
            thread.woken()
    assert order == [1, 2]
    assert [each.result() for each in stored[:2]] == [FIRST, SECOND]
    with pytest.raises(OutOfResources) as raised:
        stored[2].result()
    assert raised.value.code == "state-disk-full"


class Storing(Endless):
    """A subtask that waits for room while its state of the run before is stored."""

    chain = PLAN.chains[0]

    def __init__(self, stored: Future[Kept]) -> None:
        super().__init__()
        self.stored = stored
        self.acknowledged = self.once  # type: ignore[assignment]

    def once(self) -> Acknowledge | None:
        return Acknowledge(1, self.stored.result()[:1]) if self.stored.done() else None


def test_a_run_is_acknowledged_while_the_subtask_waits_for_room_in_the_next() -> None:
    driver, control = socket.socketpair()
    stored, slow = Future[Kept](), Slow()
    with driver, control:
        worker = Worker(PLAN, 0, control, {}, cast(Any, [Storing(stored), slow]), {})
        assert worker._work()
        assert slow.bytes > QUEUED_BYTES_MAX
        assert not worker._work(), "it waits"
        stored.set_result(FIRST)
        assert worker._work()
        assert [done.committables for _, done in worker._acknowledged[1]] == [FIRST[:1]]


class Idle(Storing):
    is_ready, timer_ms, clock = False, None, None

    def abort(self) -> None:
        return


def test_a_failure_of_storing_ends_the_worker_as_one_of_the_stream_does() -> None:
    driver, control = socket.socketpair()
    thread, slow = StoringThread(), Slow()
    with driver, control:
        subtask = Idle(thread.store(failing))
        Worker(PLAN, 0, control, {}, cast(Any, [subtask, slow]), {}, None, thread).run()
        said = [*Incoming(driver).messages()]
    assert said == [Ready(7), Failed("OutOfResources", "state-disk-full", "the disk is full")]
