"""The alignment of barriers."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import InternalError
from onefold.engine.dataflow.inbound import Inbound, InOrder
from onefold.engine.dataflow.items import Barrier


def batch(value: int) -> pa.RecordBatch:
    return pa.record_batch([[value]], names=["n"])


def taken(inbound: Inbound) -> list[tuple[int, int]]:
    found = []
    while (item := inbound.take()) is not None:
        channel, rows = item
        assert isinstance(rows, pa.RecordBatch)
        found.append((channel, rows.column(0)[0].as_py()))
    return found


def test_a_channel_that_had_its_barrier_is_held_back_until_all_have() -> None:
    inbound = Inbound(2)
    for item in (batch(1), Barrier(1), batch(2)):
        inbound.put(0, item)
    inbound.put(1, batch(3))
    assert sorted(taken(inbound)) == [(0, 1), (1, 3)]
    assert inbound.barrier is None
    inbound.put(1, Barrier(1))
    assert taken(inbound) == [] and inbound.barrier == Barrier(1)
    inbound.reopen()
    assert inbound.barrier is None and taken(inbound) == [(0, 2)]


@pytest.mark.parametrize("inbound", [Inbound(3), InOrder((0, 1, 2))], ids=["as it comes", "in order"])
def test_how_long_alignment_took_and_what_it_held_back_is_known_once_all_barriers_are_here(
    inbound: Inbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for channel in range(3):
        inbound.put(channel, Barrier(1))
        inbound.put(channel, batch(channel))  # of the next epoch
        assert taken(inbound) == []
        now_s[0] += 2.0
    assert (inbound.aligned_s, inbound.held_bytes) == (4.0, 16), "the last channel held nothing back"


def test_no_channel_starves() -> None:
    inbound = Inbound(2)
    for value in range(4):
        inbound.put(0, batch(value))
    inbound.put(1, batch(9))
    assert taken(inbound)[1] == (1, 9)


def test_what_waits_is_counted_by_channel() -> None:
    inbound = Inbound(2)
    inbound.put(0, batch(1))
    assert (inbound.queued_bytes(0), inbound.queued_bytes(1)) == (8, 0)
    inbound.take()
    assert inbound.queued_bytes(0) == 0


def test_a_barrier_of_another_epoch_is_a_defect() -> None:
    inbound = Inbound(1)
    inbound.put(0, Barrier(2))
    with raises(InternalError, "internal-check-failed"):
        inbound.take()
