"""Barriers that overtake before operators that go by event time: rows come epoch by epoch all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from flight_parts import TASK, batch, node, numbers, of_two_exchanges, stored, taken
from harness.errors import raises

from onefold.core import CheckpointMismatch, ConfigError
from onefold.engine.dataflow.alignment import ALIGNED, Alignment, alignment_in
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.dataflow.inbound import Inbound
from onefold.engine.dataflow.items import Barrier, EpochInFlight, Flight
from onefold.engine.dataflow.overtaking import UnalignedInTime, inbound_of
from onefold.engine.state.storage import Storage
from onefold.engine.workers.flights import FlightFile, flights_by_chain
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import MappingBatches, Processing, Reading, Reducing, Writing
from onefold.flow.time.clocks import Times
from onefold.flow.time.ttl import Ttl

AT = ("rows", "t/0")
TIMED = Processing(cast(Any, None), ("key",), (), "event")


def said(us: int) -> Times:
    return Times(frozenset([AT]), {AT: us})


def in_time(*items: tuple[int, Any]) -> UnalignedInTime:
    inbound = UnalignedInTime(2, Alignment("unaligned"), (), "totals")
    for channel, item in items:
        inbound.put(channel, item)
    return inbound


def overtaken(inbound: Inbound, run: int) -> Flight:
    for channel in (0, 1):
        inbound.announced(channel, run)
    assert inbound.overtakes
    flight = inbound.reopen()
    assert flight is not None
    return flight


def test_in_event_time_rows_of_the_next_epoch_wait_for_what_was_overtaken() -> None:
    inbound = in_time((0, said(5)), (0, Barrier(1)), (0, batch(2)), (1, batch(1)))
    assert inbound.take() is not None
    inbound.put(1, batch(11))
    flight = overtaken(inbound, 1)
    assert flight.open == {1} and inbound.barrier is None and inbound.ended is None
    inbound.put(1, said(7))
    inbound.put(1, Barrier(1))
    assert flight.times == {1: said(7)} and [(run, numbers(each)) for _, run, each in flight.batches] == [(1, [11])]
    assert taken(inbound) == [(1, [11])], "and of the other channel nothing yet"
    assert inbound.ended == 1 and inbound.times == said(7) and inbound.has_ready
    inbound.go_on()
    assert taken(inbound) == [(0, [2])] and inbound.ended is None
    for channel in (0, 1):
        inbound.put(channel, said(9))
        inbound.put(channel, Barrier(2))
    assert taken(inbound) == [] and inbound.barrier == Barrier(2) and inbound.reopen() is None


def test_in_event_time_a_flight_has_each_epoch_that_has_not_come_to_its_end() -> None:
    inbound = in_time((0, said(5)), (0, Barrier(1)), (1, batch(1)), (1, batch(2)))
    assert inbound.take() is not None and not inbound.restored
    overtaken(inbound, 1)
    for channel, item in ((0, batch(3)), (0, said(6)), (0, Barrier(2)), (1, said(5)), (1, Barrier(1)), (1, batch(4))):
        inbound.put(channel, item)
    assert inbound.take() is not None
    flight = overtaken(inbound, 2)
    inbound.put(1, said(8))
    inbound.put(1, Barrier(2))
    tasks = {run: replace(TASK, epoch=7 + run, timestamp_ms=run) for run in (1, 2)}
    first, second = flight.epochs([0, 0], tasks)
    assert (first.epoch, first.timestamp_ms, first.times, first.batches) == (8, 1, said(5), {})
    assert (second.epoch, second.times) == (9, said(8))
    assert sorted(n for each in second.batches[0] for n in numbers(each)) == [3, 4]


def test_in_event_time_what_was_in_flight_is_taken_epoch_by_epoch_again() -> None:
    inbound = in_time()
    for run, times, n in ((-1, said(5), 1), (0, said(6), 2)):
        inbound.replay(run, times, [(0, batch(n))])
    inbound.put(1, batch(9))
    found = []
    for ended in (-1, 0):
        found += taken(inbound)
        assert (inbound.ended, inbound.times) == (ended, said(6 + ended))
        inbound.go_on()
    assert [*found, *taken(inbound)] == [(0, [1]), (0, [2]), (1, [9])]


def test_in_event_time_barriers_do_not_overtake_what_an_epoch_says_of_it_alone() -> None:
    inbound = in_time((0, said(5)), (1, said(5)))
    for channel in (0, 1):
        inbound.announced(channel, 1)
    assert not inbound.overtakes


# of a plan


def of_event_time() -> Plan:
    nodes = (
        node(0, Reading(cast(Any, "a source")), uid="rows"),
        node(1, TIMED, Edge(0, Shipping.KEYED, ("key",)), uid="timed"),
        node(2, TIMED, Edge(1, Shipping.KEYED, ("key",)), uid="of these"),
    )
    return plan(Graph("shop", nodes, 8))


def test_chains_that_lead_to_event_time_are_aligned_unless_stages_are_asked_for() -> None:
    timed = TIMED
    before, behind = Edge(0, Shipping.KEYED, ("key",)), Edge(2, Shipping.KEYED, ("n",))
    nodes = (
        node(0, Reading(cast(Any, "a source")), uid="rows"),
        node(1, MappingBatches(lambda each: each), Edge(0, Shipping.REBALANCE)),
        node(2, timed, Edge(1, Shipping.KEYED, ("key",)), uid="timed"),
        node(3, Reducing(max, ("n",)), behind, uid="behind"),
        node(4, Reducing(max, ("key",)), before, uid="beside"),
    )
    of = plan(Graph("shop", nodes, 8))
    asked = Alignment("unaligned")
    assert [alignment_in(of, chain, asked) is ALIGNED for chain in of.chains] == [True, True, False, False, False]
    assert type(inbound_of(of.chains[2], of.chains[2].channels(0, 2), asked)) is UnalignedInTime
    not_waited = Alignment("at_least_once")
    assert [alignment_in(of, chain, not_waited) is ALIGNED for chain in of.chains] == [True, True, True, False, False]
    assert all(alignment_in(of, chain, Alignment("staged")).kind == "staged" for chain in of.chains)


def test_before_event_time_barriers_overtake_the_last_of_a_way_alone() -> None:
    of = of_event_time()
    found = [alignment_in(of, chain, Alignment("unaligned")).kind for chain in of.chains]
    assert found == ["aligned", "aligned", "unaligned"]


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_row_of_a_key_comes_once_an_epoch_to_a_sink_that_goes_by_the_epoch_alone(is_numbered: bool) -> None:
    sink = cast(Any, type("Sink", (), {"name": "shop"})())
    nodes = (
        node(0, Reading(cast(Any, "a source")), uid="rows"),
        node(1, Reducing(max, ("key",), Ttl("1 day", clock="event")), Edge(0, Shipping.KEYED, ("key",)), uid="largest"),
        Node(2, Writing(sink, is_numbered=is_numbered), (Edge(1),), None),
    )
    of = plan(Graph("shop", nodes, 8))
    found = [alignment_in(of, chain, Alignment("unaligned")).kind for chain in of.chains]
    assert found == ["aligned", "aligned" if is_numbered else "unaligned"]


@pytest.mark.parametrize("kind", ["aligned", "unaligned", "at_least_once"])
def test_what_was_in_flight_is_taken_in_time_and_overtaken_only_where_barriers_may_by_now(kind: Any) -> None:
    of, asked = of_event_time(), Alignment(kind)
    for chain, overtakes in ((of.chains[1], False), (of.chains[2], kind == "unaligned")):
        inbound = inbound_of(chain, chain.channels(0, 2), alignment_in(of, chain, asked, has_flight=True))
        assert isinstance(inbound, UnalignedInTime)
        inbound.replay(0, said(5), [(0, batch(1))])
        for channel in (0, 1):
            inbound.announced(channel, 1)
        assert inbound.overtakes is overtakes


# what is stored


def in_epochs(root: Path) -> RestoreFrom:
    """Of two subtasks."""
    late = Times(frozenset([AT]), {AT: None}, frozenset(["rows"]))
    epochs = [EpochInFlight({}, 6, 60, said(-3)), EpochInFlight({0: [batch(1), batch(2)]}, 7, 70, late)]
    handles = [
        FlightFile(Storage(str(root), "shop"), TASK, 8, "of these", of, index, 2).store()
        for index, of in enumerate((epochs, epochs[1:]))
    ]
    return RestoreFrom(str(root), "shop", "memory", 4, tuple(handles))


def test_a_flight_of_event_time_comes_to_its_own_subtask_epoch_by_epoch(tmp_path: Path) -> None:
    at, late = in_epochs(tmp_path), Times(frozenset([AT]), {AT: None}, frozenset(["rows"]))
    for index, epochs in enumerate(([(6, 60, said(-3)), (7, 70, late)], [(7, 70, late)])):
        flights = flights_by_chain(at, of_event_time(), index, 2)
        assert flights.keys() == {2}
        assert [(each.epoch, each.timestamp_ms, each.times) for each in flights[2]] == epochs
        assert [numbers(each) for each in flights[2][-1].batches[1]] == [[1], [2]]


def test_other_workers_do_not_take_a_flight_of_event_time(tmp_path: Path) -> None:
    at = in_epochs(tmp_path)
    with raises(ConfigError, "flight-worker-count", "workers=2", "'of these'"):
        flights_by_chain(at, of_event_time(), 0, 3)


def test_a_flight_of_event_time_to_what_does_not_go_by_it_is_refused(tmp_path: Path) -> None:
    for handles, of in ((in_epochs(tmp_path).handles, "largest"), ((stored(tmp_path, "timed", 0, batch(1)),), "timed")):
        at = RestoreFrom(str(tmp_path), "shop", "memory", 4, handles)
        with raises(CheckpointMismatch, "state-flight-orphaned"):
            flights_by_chain(at, of_two_exchanges() if of == "largest" else of_event_time(), 0, 2)
