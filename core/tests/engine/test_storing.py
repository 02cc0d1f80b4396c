"""Snapshots that are stored beside the stream."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Any, cast

import pytest
from test_worker import PLAN, Endless, Slow

from onefold.core.contract import Committable
from onefold.core.errors import OutOfResources
from onefold.engine.dataflow.items import Acknowledge
from onefold.engine.state.participant import committable
from onefold.engine.workers.frames import Incoming
from onefold.engine.workers.messages import Failed, Ready
from onefold.engine.workers.storing import Stored, StoringThread
from onefold.engine.workers.worker import QUEUED_BYTES_MAX, Worker

FIRST, SECOND = (committable(f"1/{epoch}-{epoch:032x}") for epoch in (1, 2))
FULL = OutOfResources("state-disk-full", "the disk is full")


def failing() -> Committable:
    raise FULL


def test_one_is_stored_after_the_other_and_each_wakes_the_loop() -> None:
    thread, may_store, order = StoringThread(), threading.Event(), list[int]()

    def first() -> Committable:
        may_store.wait(60)
        order.append(1)
        return FIRST

    def second() -> Committable:
        order.append(2)
        return SECOND

    stored = [thread.store(each) for each in (first, second, failing)]
    assert not any(each.is_done for each in stored)
    may_store.set()
    with selectors.DefaultSelector() as selector:
        selector.register(thread.socket, selectors.EVENT_READ)
        while not stored[-1].is_done:
            assert selector.select(60)
            thread.woken()
    assert order == [1, 2]
    assert [each.result() for each in stored[:2]] == [FIRST, SECOND]
    with pytest.raises(OutOfResources) as raised:
        stored[2].result()
    assert raised.value.code == "state-disk-full"
    assert stored[0].ended_s <= stored[1].ended_s <= stored[2].ended_s


class Storing(Endless):
    """A subtask that waits for room while its state of the run before is stored."""

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        self.stored = stored
        self.acknowledged = self.once  # type: ignore[assignment]

    def once(self) -> Acknowledge | None:
        return Acknowledge(1, (self.stored.result(),)) if self.stored.is_done else None


def test_a_run_is_acknowledged_while_the_subtask_waits_for_room_in_the_next() -> None:
    driver, control = socket.socketpair()
    stored, slow = Stored(lambda: FIRST), Slow()
    with driver, control:
        worker = Worker(PLAN, 0, control, {}, cast(Any, [Storing(stored), slow]), {})
        assert worker._work()
        assert slow.bytes > QUEUED_BYTES_MAX
        assert not worker._work(), "it waits"
        stored.run()
        assert worker._work()
        assert [done.committables for _, done in worker._acknowledged[1]] == [(FIRST,)]


class Idle(Storing):
    is_ready, timer_ms = False, None

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
