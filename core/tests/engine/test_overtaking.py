"""Barriers that overtake, that nobody waits for, and stages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from flight_parts import batch, node, numbers, of_two_exchanges, stored, taken
from harness.errors import raises

from onefold.core import CheckpointMismatch, ConfigError
from onefold.engine.dataflow import overtaking
from onefold.engine.dataflow.alignment import Alignment, alignment_in, alignment_of
from onefold.engine.dataflow.chains import plan
from onefold.engine.dataflow.inbound import Inbound, InOrder
from onefold.engine.dataflow.items import Barrier
from onefold.engine.dataflow.overtaking import AtLeastOnce, Staged, Unaligned, inbound_of
from onefold.engine.dataflow.subtask import Subtask
from onefold.engine.state import FLIGHT, refuse_in_flight
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.storage import Storage
from onefold.engine.workers.flights import InFlight, flights_by_chain
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import snapshots_by_uid
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import MappingBatches, Reading, Reducing, Writing
from onefold.flow.processing.mechanisms import refuse_write_through


def unaligned(channels: int = 2, aligned: tuple[int, ...] = (), **settings: Any) -> Unaligned:
    return Unaligned(channels, Alignment("unaligned", **settings), aligned, "totals")


def in_flight(inbound: Inbound) -> tuple[list[tuple[int, list[int]]], set[int]]:
    flight = inbound.reopen()
    assert flight is not None
    return [(channel, numbers(each)) for channel, _, each in flight.batches], flight.open


def test_a_barrier_overtakes_once_each_is_here_or_announced() -> None:
    inbound = unaligned()
    inbound.put(0, batch(1))
    inbound.put(1, batch(2))
    inbound.announced(0, 1)
    assert not inbound.overtakes, "the second sender may be in the middle of its epoch"
    inbound.announced(1, 1)
    assert inbound.overtakes and inbound.barrier is None
    assert in_flight(inbound) == ([(0, [1]), (1, [2])], {0, 1})
    assert not inbound.overtakes


def test_a_flight_has_what_comes_up_to_the_barriers_and_nothing_behind_them() -> None:
    inbound = unaligned()
    inbound.put(0, batch(1))
    for channel in (0, 1):
        inbound.announced(channel, 1)
    assert inbound.overtakes
    flight = inbound.reopen()
    assert flight is not None
    assert taken(inbound) == [(0, [1])], "of the next epoch by now"
    for channel, item in ((0, batch(2)), (0, Barrier(1)), (0, batch(3)), (1, batch(4)), (1, Barrier(1))):
        inbound.put(channel, item)
    assert ([(channel, numbers(each)) for channel, _, each in flight.batches], flight.open) == (
        [(0, [1]), (0, [2]), (1, [4])],
        set(),
    )
    assert flight.bytes == sum(each.nbytes for *_, each in flight.batches)
    assert sorted(taken(inbound)) == [(0, [2]), (0, [3]), (1, [4])]
    assert inbound.barrier is None, "the barriers that were overtaken end no other epoch"


def test_a_channel_whose_barrier_was_taken_is_held_back_until_the_others_are_overtaken() -> None:
    inbound = unaligned()
    for channel, item in ((0, batch(1)), (0, Barrier(1)), (0, batch(2)), (1, batch(3))):
        inbound.put(channel, item)
    assert sorted(taken(inbound)) == [(0, [1]), (1, [3])]
    inbound.put(1, batch(4))
    inbound.announced(1, 1)
    assert inbound.overtakes
    assert in_flight(inbound) == ([(1, [4])], {1})
    assert (inbound.how, inbound.held_bytes) == ("unaligned", batch(2).nbytes)


def test_what_was_overtaken_twice_is_in_both_flights() -> None:
    inbound = unaligned(1)
    inbound.put(0, batch(0))
    for run in (1, 2):
        inbound.put(0, batch(run))
        inbound.put(0, Barrier(run))
        inbound.announced(0, run)
        assert not inbound.overtakes or run == 1, "an epoch comes forward by a batch"
        if run == 2:
            assert inbound.take() is not None
        assert inbound.overtakes
        assert in_flight(inbound) == ([(0, [each]) for each in range(run - 1, run + 1)], set())
    assert taken(inbound) == [(0, [1]), (0, [2])] and inbound.barrier is None


def test_barriers_that_come_in_time_are_aligned() -> None:
    inbound = unaligned()
    for channel in (0, 1):
        inbound.announced(channel, 1)
        inbound.put(channel, Barrier(1))
    assert taken(inbound) == [] and inbound.barrier == Barrier(1)
    assert inbound.reopen() is None and inbound.how == "aligned"


def test_barriers_overtake_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    inbound = unaligned(1, timeout_s=5.0)
    inbound.put(0, batch(1))
    inbound.announced(0, 1)
    now_s[0] += 4.9
    assert not inbound.overtakes
    now_s[0] += 0.2
    assert inbound.overtakes
    inbound.reopen()
    assert (inbound.how, round(inbound.aligned_s, 3)) == ("switched", 5.1)


def test_broadcast_rows_are_waited_for() -> None:
    inbound = unaligned(2, aligned=(1,))
    for channel in (0, 1):
        inbound.put(channel, batch(channel))
        inbound.announced(channel, 1)
    assert not inbound.overtakes
    inbound.put(1, Barrier(1))
    assert sorted(taken(inbound)) == [(0, [0]), (1, [1])] and inbound.barrier is None
    inbound.put(0, batch(2))
    assert inbound.overtakes and in_flight(inbound) == ([(0, [2])], {0})


def test_a_channel_holds_its_sender_back_but_not_before_a_barrier_that_has_overtaken() -> None:
    inbound = unaligned(1)
    inbound.put(0, batch(1))
    assert inbound.queued_bytes(0) == batch(1).nbytes
    inbound.announced(0, 1)
    assert inbound.overtakes and inbound.queued_bytes(0) == batch(1).nbytes
    inbound.reopen()
    assert inbound.queued_bytes(0) == 0
    inbound.put(0, Barrier(1))
    assert inbound.queued_bytes(0) == batch(1).nbytes


def test_a_barrier_that_would_overtake_too_much_is_aligned_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbound = unaligned(1, flight_bytes_max=batch(1).nbytes)
    with caplog.at_level(logging.WARNING, "onefold"):
        for run in (1, 2):
            for item in (batch(1), batch(2)):
                inbound.put(0, item)
            inbound.announced(0, run)
            assert not inbound.overtakes
            taken(inbound)
            assert not inbound.overtakes, "it stays so, as long as that epoch lasts"
            inbound.put(0, Barrier(run))
            assert taken(inbound) == [] and inbound.barrier is not None and inbound.reopen() is None
    assert len(caplog.records) == 1 and "'totals'" in caplog.text


def test_what_was_restored_comes_first_and_is_overtaken_again() -> None:
    inbound = unaligned()
    inbound.put(1, batch(9))
    inbound.restored.extend([(0, batch(1)), (0, batch(2))])
    assert inbound.has_ready
    first = inbound.take()
    assert first is not None and numbers(cast(Any, first[1])) == [1]
    for channel in (0, 1):
        inbound.announced(channel, 1)
    assert inbound.overtakes and in_flight(inbound)[0] == [(0, [2]), (1, [9])]
    assert taken(inbound) == [(0, [2]), (1, [9])]


@pytest.mark.parametrize("make", [Inbound, AtLeastOnce, Staged])
def test_what_was_restored_comes_first_however_barriers_are_aligned_by_now(make: Callable[[int], Inbound]) -> None:
    inbound = make(2)
    inbound.restored.append((1, batch(1)))
    assert inbound.has_ready or make is Staged
    for channel in (0, 1):
        inbound.put(channel, batch(2))
        inbound.put(channel, Barrier(1))
    assert [each for _, each in taken(inbound)] == [[1], [2], [2]] and inbound.barrier == Barrier(1)


def test_no_batch_is_in_hand_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overtaking, "FIRST_ROWS", 4)
    inbound = unaligned(1)
    inbound.put(0, batch(*range(10)))
    inbound.restored.append((0, batch(*range(20, 25))))
    lengths = []
    while (item := inbound.take()) is not None:
        rows = item[1].num_rows if isinstance(item[1], pa.RecordBatch) else 0
        lengths.append(numbers(cast(Any, item[1])))
        inbound.took(rows, rows * 0.1)  # so that two rows take as long as one batch may
    assert lengths == [[20, 21, 22, 23], [24], *([n, n + 1] for n in range(0, 10, 2))]
    assert inbound.queued_bytes(0) == 0


@pytest.mark.parametrize(
    ("a_call_s", "a_row_s", "calls", "rows"),
    [(0.25, 0.0, 30, 20_000), (0.25, 0.0001, 40, 2_000), (0.0, 0.006, 650, 34)],
)
def test_a_call_that_takes_long_with_however_few_rows_gets_many(
    a_call_s: float, a_row_s: float, calls: int, rows: int
) -> None:
    inbound = unaligned(1)
    inbound.put(0, batch(*range(20_000)))
    lengths = []
    while (item := inbound.take()) is not None:
        assert isinstance(item[1], pa.RecordBatch)
        lengths.append(item[1].num_rows)
        inbound.took(lengths[-1], a_call_s + lengths[-1] * a_row_s)
    assert len(lengths) < calls and max(lengths) <= rows and sum(lengths) == 20_000


def test_what_a_batch_takes_is_without_what_its_receivers_have_it_wait() -> None:
    subtask: Any = Subtask.__new__(Subtask)
    took_s: list[float] = []
    subtask.inbound = SimpleNamespace(took=lambda *of: took_s.append(of[1]))
    for _ in subtask._timed(iter([1, 2]), 4):
        time.sleep(0.2)
    assert took_s[0] < 0.2


def test_at_least_once_nothing_is_held_back_and_one_channel_alone_ends_with_its_barrier() -> None:
    inbound = AtLeastOnce(2)
    for channel, item in ((0, batch(1)), (0, Barrier(1)), (0, batch(2)), (1, batch(3))):
        inbound.put(channel, item)
    assert sorted(taken(inbound)) == [(0, [1]), (0, [2]), (1, [3])] and inbound.barrier is None
    inbound.put(1, Barrier(1))
    inbound.put(1, batch(4))
    assert taken(inbound) == [] and inbound.barrier == Barrier(1), "it is complete, and nothing more comes into it"
    assert inbound.reopen() is None and taken(inbound) == [(1, [4])]


def test_a_stage_begins_when_all_of_its_epoch_is_here_and_holds_nobody_back() -> None:
    inbound = Staged(2)
    for item in (batch(1), Barrier(1), batch(2)):
        inbound.put(0, item)
    inbound.put(1, batch(3))
    assert not inbound.has_ready and taken(inbound) == [] and inbound.queued_bytes(0) == 0
    inbound.put(1, Barrier(1))
    assert inbound.has_ready
    assert sorted(taken(inbound)) == [(0, [1]), (1, [3])] and inbound.barrier == Barrier(1)
    inbound.reopen()
    assert taken(inbound) == []


# of a plan


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("aligned", [Inbound, Inbound, Inbound, Inbound]),
        ("unaligned", [Inbound, Unaligned, Unaligned, Unaligned]),
        ("at_least_once", [Inbound, AtLeastOnce, AtLeastOnce, AtLeastOnce]),
        ("staged", [Inbound, Staged, Staged, Staged]),
    ],
)
def test_a_source_is_aligned_and_others_are_as_is_asked_for(kind: Any, types: list[type]) -> None:
    chains = of_two_exchanges().chains
    found = [inbound_of(chain, chain.channels(0, 2), Alignment(kind)) for chain in chains]
    assert [type(each) for each in found] == types
    assert all(type(inbound_of(each, each.channels(0, 2), Alignment(kind), True)) is InOrder for each in chains)


def test_an_input_that_is_handed_on_in_its_own_worker_is_aligned() -> None:
    (*_, united) = of_two_exchanges().chains
    inbound = inbound_of(united, united.channels(0, 2), Alignment("unaligned"))
    inbound.announced(0, 1)
    inbound.announced(1, 1)
    assert not inbound.overtakes


@pytest.mark.parametrize("kind", ["unaligned", "at_least_once"])
@pytest.mark.parametrize("is_numbered", [True, False])
def test_rows_of_two_epochs_do_not_meet_before_a_sink_that_goes_by_the_epoch_alone(
    kind: Any, is_numbered: bool
) -> None:
    sink = cast(Any, type("Sink", (), {"name": "shop"})())
    nodes = (
        node(0, Reading(cast(Any, "a source")), uid="rows"),
        node(1, Reducing(max, ("key",)), Edge(0, Shipping.KEYED, ("key",)), uid="largest"),
        node(2, MappingBatches(lambda each: each), Edge(1, Shipping.REBALANCE)),
        Node(3, Writing(sink, is_numbered=is_numbered), (Edge(2, Shipping.KEYED, ("key",)),), None),
    )
    of = plan(Graph("shop", nodes, 8))
    found = [alignment_in(of, chain, Alignment(kind)).kind for chain in of.chains]
    assert found == [kind, kind, *(["aligned"] * 2 if is_numbered else [kind] * 2)]


# what is stored


def on_their_way(flights: InFlight, chain: int) -> list[tuple[int, pa.RecordBatch]]:
    """Exchanges, and batches."""
    return [(way, each) for of in flights.get(chain, ()) for way, batches in of.batches.items() for each in batches]


def test_a_flight_is_a_file_that_has_all_batches_in_their_order(tmp_path: Path) -> None:
    batches = [batch(*range(n, n + 5)) for n in range(0, 100, 5)]
    handle = stored(tmp_path, "largest", 0, *batches)
    footer, _ = read_footer(Storage(str(tmp_path), "shop"), handle)
    assert [(part.uid, part.name, part.rows) for part in footer.parts] == [("largest", "0", 100)]
    at = RestoreFrom(str(tmp_path), "shop", "memory", 4, (handle,))
    flights = flights_by_chain(at, of_two_exchanges(), 0, 1)
    assert flights.keys() == {1}
    assert [numbers(each) for _, each in on_their_way(flights, 1)] == [numbers(each) for each in batches]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_shares_flights_out_each_row_once_and_each_key_in_its_order(
    tmp_path: Path, workers: int
) -> None:
    keyed = [batch(n, n + 100, key=f"key {n % 5}") for n in range(20)]
    turns = [batch(n) for n in range(50, 57)]
    handles = stored(tmp_path, "largest", 0, *keyed[:9]), stored(tmp_path, "map_batches-2", 0, *turns)
    handles = *handles, stored(tmp_path, "largest", 0, *keyed[9:])
    of, at = of_two_exchanges(), RestoreFrom(str(tmp_path), "shop", "memory", 4, handles)
    assert snapshots_by_uid(at, of) == {}
    by_key: dict[str, list[int]] = {}
    in_turns: list[list[int]] = []
    for index in range(workers):
        flights = flights_by_chain(at, of, index, workers)
        keys = {key for _, each in on_their_way(flights, 1) for key in each["key"].to_pylist()}
        assert not keys & by_key.keys(), "a key comes to one subtask"
        for exchange, each in on_their_way(flights, 1):
            assert exchange == 0
            for key, n in zip(each["key"].to_pylist(), numbers(each), strict=True):
                by_key.setdefault(key, []).append(n)
        in_turns.append([n for _, each in on_their_way(flights, 2) for n in numbers(each)])
    for number in range(5):
        assert by_key[f"key {number}"] == [m for n in range(number, 20, 5) for m in (n, n + 100)]
    assert sorted(n for mine in in_turns for n in mine) == [*range(50, 57)]
    assert max(map(len, in_turns)) <= -(-7 // workers)


@pytest.mark.parametrize(("head", "number"), [("gone", 0), ("largest", 1), ("unite-3", 0)])
def test_a_flight_whose_way_is_gone_is_refused(tmp_path: Path, head: str, number: int) -> None:
    at = RestoreFrom(str(tmp_path), "shop", "memory", 4, (stored(tmp_path, head, number, batch(1)),))
    with raises(CheckpointMismatch, "state-flight-orphaned", head):
        flights_by_chain(at, of_two_exchanges(), 0, 1)


def test_a_flight_of_other_columns_is_refused(tmp_path: Path) -> None:
    other = pa.record_batch({"key": ["a"], "n": ["1"]})
    at = RestoreFrom(str(tmp_path), "shop", "memory", 4, (stored(tmp_path, "largest", 0, other),))
    with raises(CheckpointMismatch, "state-flight-orphaned"):
        flights_by_chain(at, of_two_exchanges(), 0, 1)


# settings


@pytest.mark.parametrize(
    ("kind", "timeout_s"),
    [("loose", None), ("staged", None), ("aligned", 1.0), ("unaligned", 0.0), ("unaligned", float("nan"))],
)
def test_settings_that_make_no_sense_are_refused(kind: str, timeout_s: float | None) -> None:
    with raises(ConfigError, "option-value"):
        alignment_of(kind, timeout_s)


@pytest.mark.parametrize("kind", ["unaligned", "at_least_once"])
def test_a_sink_that_writes_through_needs_aligned_barriers(kind: str) -> None:
    with raises(ConfigError, "alignment-write-through", "shop"):
        refuse_write_through(kind, ["shop"])
    refuse_write_through(kind, [])
    refuse_write_through("aligned", ["shop"])


def test_what_is_in_flight_is_in_no_savepoint() -> None:
    refuse_in_flight("shop", ["3/7-a"], "Nothing was written")
    with raises(ConfigError, "epoch-in-flight", "Nothing was written"):
        refuse_in_flight("shop", ["3/7-a", f"3/7-b{FLIGHT}"], "Nothing was written")
